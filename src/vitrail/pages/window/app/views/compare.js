// Compare: two models or two photos side by side; depth, head and patch are chosen for both at once.
import { layerNumber, layersOf } from "../attention_math.js";
import { chartWidth } from "../charts.js";
import { CompareSide } from "../compare_side.js";
import { element } from "../elements.js";
import { button, card, choice, note, setOptions, slider } from "../fields.js";
import { latest } from "../latest.js";
import { lineChart } from "../line_chart.js";
import { depthOf, layerAt, queryFrom, resolve } from "../linked_pickers.js";
import { define } from "../state.js";
import { headName, methodName } from "../words.js";

export const id = "compare";
const MOST_WIDTH = 1400; // pixels of the chart

// other_image: "" for the first side's photo, "sample:ID" or "data:ID", or "own" for a file
define({ depth: -1, other_model: "", other_image: "" });

let ctx = null;
let ui = null;
let ask = null;
let samples = { model: null, list: [] };
let ownPhoto = null; // {blob, name} of a file for the second side
let asked = ""; // what the second side was asked for
let second = null; // its inspection
let maps = { key: "", first: null, second: null };
let charted = "";

export function mount(root, given) {
  ctx = given;
  const { set } = ctx;
  const file = element("input", {
    type: "file", accept: "image/*", class: "unseen", on: { change: () => takeFile(file) },
  });
  ui = {
    depth: slider("compare.depth", { min: 0, max: 11, input: (step) => chooseDepth(depthOf(step, steps())) }),
    head: choice("attention.head", (value) => set({ head: Number(value) })),
    method: choice("attention.map", (method) => set({ method })),
    way: button("attention.back", () => set({ back: !ctx.state.back })),
    classToken: button("attention.token.class_token", () => set({ query: "t0" })),
    first: new CompareSide("first", pick),
    second: new CompareSide("second", pick),
    model: choice("frame.model", (other_model) => set({ other_model })),
    photo: choice("compare.photo", (other_image) => set({ other_image })),
    file: element("label", { class: "button" }, file, element("span", { data: { text: "frame.photo.open" } })),
    chart: element("div", {}),
    waiting: element("p", { class: "soft", role: "status" }),
  };
  ask = latest(async (signal, { model, image }) => ctx.api.inspect(await blobOf(image, signal), model, signal), {
    done: (found) => {
      second = { ...found, layers: layersOf(found) };
      maps = { key: "", first: null, second: null };
      ctx.refresh();
    },
    failed: refuse,
    busy: (on) => ui.second.root.classList.toggle("waiting", on),
  });
  root.append(element("div", { class: "stack" },
    card("compare.title", note("compare.why"),
      element("div", { class: "row compare-pickers" }, ui.depth.root, ui.head.root, ui.method.root, ui.classToken, ui.way),
      element("div", { class: "row compare-pickers", role: "group", data: { label: "compare.second" } },
        element("span", { class: "soft small", data: { text: "compare.second" } }), ui.model.root, ui.photo.root, ui.file)),
    element("div", { class: "sides" }, ui.first.root, ui.second.root),
    ui.waiting,
    ui.chartCard = card("compare.distance", note("compare.distance_why"), ui.chart)));
}

export function update(state) {
  if (!ctx.api || !ctx.model || ctx.model.state === "loading") return;
  askSecond(state);
  listChoices(state);
  ui.first.title.textContent = [ctx.model.name, ctx.photo?.name].filter(Boolean).join(" · ");
  ui.second.title.textContent = [modelOf(state), nameOf(imageOf(state))].filter(Boolean).join(" · ");
  ui.first.take(ctx.inspection);
  ui.second.take(second);
  const ready = Boolean(ctx.inspection && second);
  ui.waiting.textContent = ready ? "" : ctx.text("compare.waiting");
  ui.way.setAttribute("aria-pressed", String(state.back));
  if (!ready) return;
  showPickers(state);
  showSides(state);
  showChart();
}

export function leave() {
  ask.stop();
  asked = second ? asked : "";
}

/** The other model: of the address, else the next one where there are several. */
function modelOf({ other_model: wished }) {
  const names = comparable().map(({ name }) => name);
  if (names.includes(wished)) return wished;
  return names[(names.indexOf(ctx.model.name) + 1) % names.length];
}

/** The other photo: of the address, else the same one for another model, or the next sample for the same model. */
function imageOf(state) {
  const wished = state.other_image;
  if (wished === "own" ? ownPhoto : wished) return wished;
  if (modelOf(state) !== ctx.model.name) return "same";
  const others = samples.list.map((sample) => `sample:${sample.id}`).filter((name) => name !== ctx.photo?.id);
  return others[0] ?? "same";
}

const nameOf = (image) => {
  if (image === "same") return ctx.photo?.name;
  if (image === "own") return ownPhoto.name;
  return samples.list.find((sample) => image === `sample:${sample.id}`)?.name ?? image.replace("data:", "#");
};

async function blobOf(image, signal) {
  if (image === "same") return ctx.photo.blob;
  if (image === "own") return ownPhoto.blob;
  const sample = samples.list.find(({ id: one }) => image === `sample:${one}`);
  const query = `?model=${encodeURIComponent(ctx.model.name)}`;
  return ctx.api.image(sample?.url ?? `v1/data/${encodeURIComponent(image.slice(image.indexOf(":") + 1))}/image${query}`, signal);
}

function askSecond(state) {
  if (samples.model !== ctx.model.name) listSamples(ctx.model.name);
  if (!ctx.photo || !samples.ready) return;
  const [model, image] = [modelOf(state), imageOf(state)];
  const wanted = [model, image, image === "same" ? ctx.photo.url : image === "own" ? ownPhoto.number : ""].join(" ");
  if (wanted === asked) return;
  [asked, second] = [wanted, null];
  ask({ model, image });
}

async function listSamples(model) {
  samples = { model, list: [], ready: false };
  [asked, second] = ["", null]; // of another model's comparison
  try {
    const list = await ctx.api.samples(model);
    if (samples.model === model) samples = { model, list, ready: true };
  } catch (error) {
    if (samples.model === model) samples.ready = true;
    ctx.complain(error);
  }
  ctx.refresh();
}

function listChoices(state) {
  setOptions(ui.model.select, comparable().map(({ name }) => [name, name]), modelOf(state));
  ui.model.root.hidden = comparable().length < 2;
  const image = imageOf(state);
  const options = [["same", ctx.text("compare.same_photo")], ...samples.list.map((one) => [`sample:${one.id}`, one.name])];
  if (ownPhoto) options.push(["own", ownPhoto.name]);
  if (!options.some(([value]) => value === image)) options.push([image, nameOf(image)]);
  setOptions(ui.photo.select, options, image);
}

function takeFile(input) {
  const [blob] = input.files;
  input.value = "";
  if (!blob) return;
  ownPhoto = { blob, name: blob.name, number: (ownPhoto?.number ?? 0) + 1, before: { photo: ownPhoto, image: ctx.state.other_image } };
  ctx.set({ other_image: "own" });
  ctx.refresh();
}

// A file that cannot be shown leaves what was on the right before.
function refuse(error) {
  const { before, name } = ownPhoto ?? {};
  if (ctx.state.other_image !== "own" || !before || error.code === 401) {
    ctx.complain(error);
    return;
  }
  ctx.complain(ctx.text("frame.photo.broken", { name, reason: error.message }));
  ownPhoto = before.photo;
  ctx.set({ other_image: before.image });
  ctx.refresh();
}

/** The depth of the address, or of the layer that another view chose last. */
function depthNow(state) {
  const { layers } = ctx.inspection;
  const chosen = layerNumber(layers, state.layer);
  const depth = state.depth / 100;
  const fits = state.layer < 0 || layerAt(depth, layers.length) === chosen;
  return state.depth >= 0 && fits ? depth : depthOf(chosen, layers.length);
}

function chooseDepth(depth) {
  if (!ctx.inspection) return;
  ctx.set({ depth: Math.round(depth * 100), layer: layerAt(depth, ctx.inspection.layers.length) });
}

/** As many as the deeper of the two has layers. */
const steps = () => Math.max(ctx.inspection?.layers.length ?? 1, second?.layers.length ?? 1);

function pick(token, side) {
  const { image_size: size } = side.inspection.header;
  ctx.set({ query: queryFrom(side.chosen.layer, token, size, ctx.inspection.header.image_size) });
}

function showPickers(state) {
  const depth = depthNow(state);
  ui.depth.range.max = steps() - 1;
  ui.depth.range.value = layerAt(depth, steps());
  ui.depth.shown.textContent = ctx.percent(depth, 0);
  const heads = Math.max(...[ctx.inspection, second].map((one) => one.layers[layerAt(depth, one.layers.length)].heads));
  const options = Array.from({ length: heads }, (_, head) => [head, headName(head)]);
  setOptions(ui.head.select, [[-1, headName(-1)], ...options], state.head < heads ? state.head : -1);
  const methods = ctx.inspection.header.methods.filter((name) => second.header.methods.includes(name));
  setOptions(ui.method.select, methods.map((name) => [name, methodName(name)]), methodOf(state));
  const attention = methodOf(state) === "attention";
  ui.head.select.disabled = ui.depth.range.disabled = ui.way.disabled = !attention;
  const prefix = [ctx.inspection, second].some((one) => one.layers.some((layer) => layer.prefix));
  ui.classToken.hidden = !prefix;
  ui.classToken.disabled = !attention;
  ui.classToken.setAttribute("aria-pressed", String(state.query.startsWith("t")));
}

// The chosen method where both have it; else attention, or Grad-CAM where a convolutional network has none, or another.
function methodOf({ method }) {
  const both = ctx.inspection.header.methods.filter((name) => second.header.methods.includes(name));
  return [method, "attention", "gradcam"].find((name) => both.includes(name)) ?? both[0] ?? "attention";
}

function showSides(state) {
  const depth = depthNow(state);
  const size = ctx.inspection.header.image_size;
  const chosen = { depth, head: state.head, query: state.query, size };
  askMaps(state);
  for (const [name, side] of [["first", ui.first], ["second", ui.second]]) {
    if (!maps[name] && !side.inspection.layers[0].heads) continue; // its map is on the way
    side.show(resolve(side.inspection, chosen), { back: state.back, opacity: state.opacity, map: maps[name] });
  }
}

// The maps of a method of `explain` for both sides; attention needs none, it is in the inspection.
function askMaps(state) {
  const method = methodOf(state);
  const key = `${method} ${ctx.model.name} ${ctx.photo.url} ${asked}`;
  if (maps.key === key) return;
  maps = { key, first: null, second: null };
  if (method === "attention") return;
  const take = (name) => (map) => {
    if (maps.key !== key) return;
    maps[name] = map;
    ctx.refresh();
  };
  ctx.explain(method, -1).then(take("first"), ctx.complain);
  blobOf(imageOf(state)).then((blob) => ctx.api.explain(blob, modelOf(state), { method, target: -1 })).then(take("second"), ctx.complain);
}

// Mean attention distance of both with depth, as a share of the image's longer side.
function showChart() {
  const width = chartWidth(ui.chart, MOST_WIDTH);
  const key = [asked, ctx.photo.url, ctx.model.name, ctx.language(), width].join(" ");
  if (charted === key) return;
  charted = key;
  const attending = [[ui.first, ctx.inspection], [ui.second, second]].filter(([, { header }]) => header.attention_layers.length);
  const series = attending.map(([side, { header }]) => ({
    name: `${ctx.text(`compare.side.${side.name}`)}: ${side.title.textContent}`,
    points: header.attention_layers.map(({ distance }, number, all) => [
      depthOf(number, all.length), mean(distance) / Math.max(...header.image_size),
    ]),
  }));
  ui.chartCard.hidden = !series.length; // two convolutional networks
  if (!series.length) return;
  const most = Math.max(0.1, ...series.flatMap(({ points }) => points.map(([, y]) => y)));
  ui.chart.replaceChildren(lineChart(series, {
    width, label: ctx.text("compare.distance"), x: ctx.text("compare.depth"), y: ctx.text("compare.distance_axis"), most,
    format: (y) => ctx.percent(y, 0), formatX: (x) => ctx.percent(x, 0),
  }));
}

const mean = (values) => {
  const known = values.filter((value) => Number.isFinite(value));
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : 0;
};

// Exported files can be asked for predictions alone.
function comparable() {
  return ctx.models.filter(({ can_inspect: inspectable }) => inspectable !== false);
}
