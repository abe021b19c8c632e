// The Attention view: where each head of each layer looks, on the photo; maps of every method; distances and sinks.
import {
  cellOf, headNumber, layerNumber, neighbours, queryOf, row, summarise, summariseCells, tokenAt, tokenOf,
} from "../attention_math.js";
import { chartWidth } from "../charts.js";
import { distanceChart, distanceKey, distanceTable } from "../distance.js";
import { figure, gradient, photoCanvas, savePng, saveSvg } from "../draw.js";
import { element } from "../elements.js";
import { Heads } from "../heads.js";
import { define, link } from "../state.js";
import { Stage, step } from "../stage.js";
import { cellsOf, describeMap, describeRow, headName, layerName, methodName, patchName, prefixName, tokenName } from "../words.js";
import { buildAttention } from "./attention_elements.js";

export const id = "attention";
const CLASSLESS = ["attention", "rollout"]; // methods that know no classes
const STEP = 650; // ms of a layer when depth is played

define({ lines: true, windows: true, sinks: true, heads: "" });

let ctx = null;
let ui = null;
let stage = null;
let heads = null;
let hovered = null; // token under the pointer, while none is chosen
let looked = { inspection: null, photo: null, text: "" }; // what the pickers and the photo were made for
let map = { key: "", found: null }; // of a method other than attention
let shown = null; // what is drawn: for files
let timer = 0;
let preview = "";
let linkNoted = null; // the photo that a link was copied for

export function mount(root, context) {
  ctx = context;
  stage = new Stage({ hover, choose, key: stageKey }, "stage");
  ui = buildAttention(root, stage.root);
  heads = new Heads(ui.heads, (layer, head) => ctx.set({ layer, head, method: "attention" }));
  ui.bar.style.background = gradient();
  const pick = (control, key, read) => control.addEventListener("input", () => ctx.set({ [key]: read(control) }));
  pick(ui.method, "method", ({ value }) => value);
  pick(ui.layer, "layer", ({ value }) => Number(value));
  pick(ui.head, "head", ({ value }) => Number(value));
  pick(ui.target, "target", ({ value }) => Number(value));
  pick(ui.opacity, "opacity", ({ value }) => Number(value));
  for (const key of ["lines", "windows", "sinks"]) pick(ui[key], key, ({ checked }) => checked);
  ui.forward.addEventListener("click", () => ctx.set({ back: false }));
  ui.back.addEventListener("click", () => ctx.set({ back: true }));
  ui.all.addEventListener("click", () => ctx.set({ heads: "all" }));
  ui.one.addEventListener("click", () => ctx.set({ heads: "one" }));
  ui.play.addEventListener("click", () => (timer ? stop() : play()));
  ui.png.addEventListener("click", () => download(savePng));
  ui.svg.addEventListener("click", () => download(saveSvg));
  ui.link.addEventListener("click", copyLink);
  ui.withData.addEventListener("click", askData);
  document.addEventListener("keydown", pageKey);
}

export function update(state) {
  const { inspection, photo } = ctx;
  ui.empty.hidden = Boolean(photo);
  ui.left.hidden = !photo;
  ui.right.hidden = !inspection;
  ui.controls.hidden = !inspection;
  if (!inspection) {
    showPreview(photo);
    return;
  }
  fillPickers(state, inspection);
  showLinkNote();
  draw();
}

export function leave() {
  stop();
}

// What is chosen, brought within what this model has.
function chosen() {
  const { state, inspection: { layers } } = ctx;
  const layer = layers[layerNumber(layers, state.layer)];
  const pinned = state.query !== "";
  const token = !pinned && hovered !== null && hovered < layer.prefix + layer.cells ? hovered : tokenOf(layer, state.query);
  const { methods, auto } = ctx.inspection.header;
  const method = methods.includes(state.method) ? state.method : layer.heads ? "attention" : auto;
  return { layer, head: headNumber(layer, state.head), token, method, pinned };
}

function draw() {
  const { state, inspection } = ctx;
  const { layer, head, token, method } = chosen();
  const query = state.query === "" && hovered !== null ? queryOf(layer, token) : state.query;
  ui.title.dataset.text = method === "attention" ? "attention.title" : "attention.title.map";
  ui.title.textContent = ctx.text(ui.title.dataset.text);
  ui.none.hidden = Boolean(layer.heads);
  for (const part of [ui.headCard, ui.distanceCard, ui.play]) part.hidden = !layer.heads;
  if (layer.heads) drawHeads({
    inspection, photo: looked.photo, query, back: state.back, layer: layer.index, head: method === "attention" ? head : -2,
    all: state.heads ? state.heads === "all" : Heads.allByDefault(),
  });
  const found = method === "attention" ? attentionMap(layer, head, token) : methodMap(method);
  showTokens(layer, token);
  if (layer.heads) showDistances(inspection.layers, layer, method === "attention" ? head : -2);
  showSinks(layer);
  if (!found) return;
  shown = found;
  stage.show({
    photo: looked.photo, at: found.at, values: found.values, top: found.top, opacity: state.opacity, layer,
    token: method === "attention" ? token : null, show: { grid: state.lines, windows: state.windows, sinks: state.sinks },
  });
  ui.low.textContent = ctx.percent(0, 0);
  ui.high.textContent = found.relative ? ctx.text("attention.scale.most") : ctx.percent(found.top);
  ui.say.setAttribute("aria-live", hovered === null ? "polite" : "off");
  ui.where.textContent = `${found.where}.`;
  ui.words.textContent = found.words;
  stage.root.setAttribute("aria-label", ctx.text(`attention.stage${cellsOf(inspection.layers)}`, {
    rows: layer.grid[0], columns: layer.grid[1], token: tokenName(layer, token),
  }));
}

let small = null; // what the small maps are to show

// Small maps follow a frame later, so that the large one never waits for them.
function drawHeads(wanted) {
  if (!small) {
    requestAnimationFrame(() => {
      const drawn = small;
      small = null;
      if (drawn.inspection === ctx.inspection) heads.show(drawn);
    });
  }
  small = wanted;
}

function attentionMap(layer, head, token) {
  const shares = row(layer, head, token, ctx.state.back);
  const found = summarise(layer, shares, token);
  return {
    at: layer, values: shares.cells, top: Math.max(...shares.cells), relative: false, even: found.even,
    ...describeRow(layer, head, token, ctx.state.back, shares, found),
  };
}

function methodMap(method) {
  const { inspection, state } = ctx;
  const key = `${method} ${CLASSLESS.includes(method) ? -1 : state.target}`;
  if (map.key !== key || map.inspection !== inspection) askMap(method, key);
  if (!map.found) {
    ui.where.textContent = "";
    ui.words.textContent = ctx.text("attention.computing", { method: methodName(method) });
    return null;
  }
  const { grid, extent, values, label } = map.found;
  const size = inspection.header.image_size;
  return {
    at: { grid, size, extent, prefix: 0 }, values, top: Math.max(...values, 1e-12), relative: true,
    ...describeMap(method, label, grid, summariseCells(values), cellsOf(inspection.layers)),
  };
}

function askMap(method, key) {
  const { inspection, state } = ctx;
  map = { key, inspection, found: null };
  const mine = map;
  if (method === "rollout" && inspection.arrays.rollout) {
    const { data, shape } = inspection.arrays.rollout;
    map.found = { grid: shape, extent: inspection.layers[0].extent, values: data, label: "" };
    return;
  }
  ctx.explain(method, CLASSLESS.includes(method) ? -1 : state.target).then(({ grid, extent, map: values, target }) => {
    mine.found = {
      grid, extent: extent ?? inspection.header.image_size, values: Float32Array.from(values.flat(), (one) => Math.max(one, 0)),
      label: CLASSLESS.includes(method) ? "" : target?.label ?? "",
    };
    if (mine === map) ctx.refresh();
  }, (error) => {
    if (mine !== map) return;
    ctx.complain(error);
    if (inspection.layers[0].heads) ctx.set({ method: "attention" });
  });
}

function hover(token, event) {
  if (!ctx.inspection) return;
  const { layer, method, pinned } = chosen();
  if (method === "attention" && !pinned) {
    if (token !== hovered) {
      hovered = token;
      requestAnimationFrame(() => ctx.inspection && draw());
    }
  } else if (hovered !== null) {
    hovered = null;
  }
  if (token === null || !shown) {
    stage.tell("");
    return;
  }
  const at = shown.at;
  const cell = cellOf(at, token);
  const share = shown.values[token - at.prefix];
  const words = [patchName(cell)];
  if (shown.relative) words.push(ctx.text("attention.tip.relative", { share: ctx.percent(share / shown.top) }));
  else if (pinned) words.push(ctx.text("attention.tip.share", { share: ctx.percent(share), times: ctx.number(share / shown.even, 1) }));
  else words.push(ctx.text("attention.tip.keep"));
  stage.tell(words.join(" · "), event);
  if (method === "attention" && layer !== at) stage.tell("");
}

// A click keeps a patch; a second click on it lets it go.
function choose(token) {
  const { layer, method } = chosen();
  const at = method === "attention" ? layer : shown?.at ?? layer;
  const query = method === "attention" ? queryOf(layer, token) : queryOf({ ...at, prefix: 0 }, token);
  hovered = null;
  ctx.set({ query: ctx.state.query === query ? "" : query });
}

function stageKey(event) {
  if (!ctx.inspection || event.ctrlKey || event.metaKey || event.altKey) return;
  const { layer, token } = chosen();
  const next = step(layer, token, event.key);
  if (next !== null) {
    event.preventDefault();
    hovered = null;
    ctx.set({ query: queryOf(layer, next) });
  } else if (event.key === "Escape") {
    ctx.set({ query: "" });
  }
}

function pageKey(event) {
  const busy = event.target.closest?.("input:not([type=range]):not([type=checkbox]), select, textarea, dialog");
  if (ctx.state.view !== id || !ctx.inspection || busy || event.ctrlKey || event.metaKey || event.altKey) return;
  const { layer, head } = chosen();
  const last = ctx.inspection.layers.length - 1;
  const change = {
    "[": () => ({ layer: Math.max(layer.index - 1, 0) }),
    "]": () => ({ layer: Math.min(layer.index + 1, last) }),
    ",": () => ({ head: Math.max(head - 1, -1) }),
    ".": () => ({ head: Math.min(head + 1, layer.heads - 1) }),
    b: () => ({ back: !ctx.state.back }),
    c: () => (layer.prefix ? { query: "t0" } : {}),
  }[event.key];
  if (change) ctx.set(change());
}

function play() {
  const { layers } = ctx.inspection;
  let next = 0;
  const tick = () => {
    if (next === layers.length) {
      stop();
      return;
    }
    ctx.set({ layer: next++, method: "attention" });
  };
  timer = setInterval(tick, STEP);
  ui.play.setAttribute("aria-pressed", "true");
  tick();
}

function stop() {
  clearInterval(timer);
  timer = 0;
  ui?.play.setAttribute("aria-pressed", "false");
}

function fillPickers(state, inspection) {
  const { layer, head, method } = chosen();
  const made = JSON.stringify([ctx.language(), layer.index, state.target]);
  if (looked.inspection !== inspection) looked = { inspection, photo: photoCanvas(inspection.arrays.pixels), text: "" };
  if (looked.text !== made) {
    looked.text = made;
    const options = (select, pairs) => select.replaceChildren(...pairs.map(([value, words]) => new Option(words, value)));
    options(ui.method, inspection.header.methods.map((name) => [name, methodName(name)]));
    options(ui.layer, inspection.layers.map((one) => [one.index, layerName(one)]));
    options(ui.head, Array.from({ length: layer.heads + 1 }, (_, place) => [place - 1, headName(place - 1)]));
    fillClasses(inspection.header, ctx.model?.labels ?? null);
  }
  const onAttention = method === "attention";
  ui.method.value = method;
  ui.layer.value = String(layer.index);
  ui.head.value = String(head);
  ui.target.value = String(state.target);
  for (const field of [ui.layer, ui.head]) field.parentElement.hidden = !onAttention;
  ui.target.parentElement.hidden = CLASSLESS.includes(method) || !ctx.api; // an offline page has one class
  ui.direction.hidden = ui.tokens.hidden = !onAttention;
  ui.opacity.value = String(state.opacity);
  for (const key of ["lines", "windows", "sinks"]) ui[key].checked = state[key];
  ui.windows.parentElement.hidden = !(layer.window || layer.fold);
  ui.windowsWords.dataset.text = layer.fold ? "attention.show.folds" : "attention.show.windows";
  ui.windowsWords.textContent = ctx.text(ui.windowsWords.dataset.text);
  ui.linesWords.dataset.text = layer.heads ? "attention.show.lines" : "attention.show.lines.cells";
  ui.linesWords.textContent = ctx.text(ui.linesWords.dataset.text);
  ui.sinks.parentElement.hidden = !layer.sinks.length;
  ui.forward.setAttribute("aria-pressed", String(!state.back));
  ui.back.setAttribute("aria-pressed", String(state.back));
  const all = state.heads ? state.heads === "all" : Heads.allByDefault();
  ui.all.setAttribute("aria-pressed", String(all));
  ui.one.setAttribute("aria-pressed", String(!all));
}

// The most likely classes first, then all that the model has.
function fillClasses({ prediction }, labels) {
  const best = prediction ?? [];
  const named = best.map(({ index, label, score }) => new Option(`${label} (${ctx.percent(score)})`, String(index)));
  const predicted = new Option(ctx.text("attention.target.predicted"), "-1");
  const group = (label, options) => {
    const made = element("optgroup", { label });
    made.append(...options);
    return made;
  };
  ui.target.replaceChildren(predicted, group(ctx.text("attention.target.likely"), named));
  const known = new Set(best.map(({ index }) => index));
  const rest = (labels ?? []).map((label, index) => [label, index]).filter(([, index]) => !known.has(index));
  if (rest.length) {
    const options = rest.map(([label, index]) => new Option(label, String(index)));
    ui.target.append(group(ctx.text("attention.target.all"), options));
  }
}

function showTokens(layer, token) {
  const middle = tokenAt(layer, layer.grid.map((side) => Math.floor(side / 2)));
  const names = Array.from({ length: layer.prefix }, (_, place) => [place, prefixName(layer, place)]);
  const wanted = JSON.stringify(names);
  if (ui.tokens.dataset.made !== wanted) {
    ui.tokens.dataset.made = wanted;
    ui.tokens.replaceChildren(...names.map(([place, words]) => element("button", {
      type: "button", data: { token: place },
      on: { click: () => ctx.set({ query: ctx.state.query === `t${place}` ? queryOf(layer, middle) : `t${place}` }) },
    }, words)));
  }
  for (const button of ui.tokens.children) button.setAttribute("aria-pressed", String(Number(button.dataset.token) === token));
}

let charted = "";
let data = { model: "", images: 0, layers: new Map() }; // distances in the data, once somebody asked for them

async function askData() {
  const model = ctx.model.name;
  ui.withData.disabled = true;
  ui.dataNote.textContent = ctx.text("attention.distance.data.busy");
  try {
    const { images, layers } = await ctx.api.get("distances", { model });
    data = { model, images, layers: new Map(layers.map((one) => [one.name, one])) };
    charted = "";
    ui.dataNote.textContent = ctx.text(images ? "attention.distance.data.from" : "attention.distance.data.none", { images });
    update(ctx.state);
  } catch (error) {
    ui.dataNote.textContent = "";
    ctx.complain(error);
  }
  ui.withData.disabled = false;
}

function showDistances(layers, layer, head) {
  const width = chartWidth(ui.distance, 720);
  const wanted = JSON.stringify([ctx.language(), layer.index, head, width]);
  if (charted === wanted && ui.distance.inspection === ctx.inspection) return;
  charted = wanted;
  ui.distance.inspection = ctx.inspection;
  const choice = { layer: layer.index, head };
  const choosing = (one, number) => ctx.set({ layer: one, head: number, method: "attention" });
  const seen = data.model === ctx.model?.name ? data.layers : new Map();
  ui.withData.hidden = !ctx.api;
  ui.distance.replaceChildren(distanceChart(layers, choice, choosing, width, seen), distanceKey(seen.size > 0));
  ui.distanceTable.replaceChildren(distanceTable(layers));
}

function showSinks(layer) {
  ui.sinkCard.hidden = !layer.sinks.length;
  ui.sinkList.replaceChildren(...layer.sinks.map(({ token, times }) => element("li", {},
    element("button", { type: "button", on: { click: () => ctx.set({ query: queryOf(layer, token), back: true, method: "attention" }) } },
      ctx.text("attention.sink", { token: tokenName(layer, token), times: ctx.number(times, times < 10 ? 1 : 0) })))));
}

async function showPreview(photo) {
  if (!photo || preview === photo.url) return;
  preview = photo.url;
  shown = null;
  ui.where.textContent = ui.words.textContent = "";
  try {
    const bitmap = await createImageBitmap(photo.blob);
    if (!ctx.inspection && preview === photo.url) stage.preview(bitmap);
    bitmap.close();
  } catch {
    // the server says what is wrong with it
  }
}

function download(saveAs) {
  if (!shown) return;
  const { layer, head, token, method } = chosen();
  const way = ctx.text(ctx.state.back ? "attention.back" : "attention.forward");
  const place = method === "attention" ? `${layer.short} ${head < 0 ? "mean" : `head ${head + 1}`}` : method;
  const drawn = figure({
    photo: looked.photo, cells: stage.cells, extent: shown.at.extent, size: shown.at.size, marks: stage.lines(),
    title: method === "attention" ? `${shown.where} · ${way} · ${tokenName(layer, token)}` : shown.where,
    about: [ctx.model?.name, ctx.photo.name].filter(Boolean).join(" · "), low: ui.low.textContent, high: ui.high.textContent,
  });
  Promise.resolve(saveAs(drawn, `vitrail ${place}`.replaceAll(" ", "-"))).catch(ctx.complain);
}

// An own photo is not on the server, so that no link leads to it.
function showLinkNote() {
  ui.linkNote.textContent = linkNoted && linkNoted === ctx.photo && !linkNoted.id ? ctx.text("attention.link.photo") : "";
}

async function copyLink() {
  const address = link();
  try {
    await navigator.clipboard.writeText(address);
    ctx.announce(ctx.text("attention.link.copied"));
    linkNoted = ctx.photo;
    showLinkNote();
    ui.link.textContent = ctx.text("attention.link.copied");
    setTimeout(() => (ui.link.textContent = ctx.text("attention.link")), 1800);
  } catch {
    ctx.complain(ctx.text("attention.link.refused", { address }));
  }
}
