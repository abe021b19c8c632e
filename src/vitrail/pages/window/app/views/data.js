// Data: the images of a run or of an embedded folder: mistakes, a map of the embedding, and what is nearest to what.
import { element } from "../elements.js";
import { button, card, choice, setOptions, waiting } from "../fields.js";
import { latest } from "../latest.js";
import { DataGallery } from "../data_gallery.js";
import { DataImage } from "../data_image.js";
import { classColour, Scatter } from "../scatter.js";
import { patiently } from "../server.js";
import { define } from "../state.js";

export const id = "data";
const MOST = 5000; // images that the server computes

const NO_DATA = [404, 422]; // answers of a server that has none for this model
const LATER = 2500; // ms until the server is asked again for a map that it computes
const OTHER_MODEL = /embeddings in (.+) are of another model \(digest (\w+)\) than this one \((\w+)\)/;

// gallery: "mistakes" or "all"; tint: what colours stand for; places: how the map is made, "pca" or "umap"
define({ gallery: "mistakes", tint: "label", places: "pca" });

let ctx = null;
let ui = null;
let ask = null;
let found = null; // the answer of the server, with `by` (images by id) and `classes` (their names in order)
let askedFor = null; // the model and the map
let answers = 0; // how many the server has given
let later = 0;
let refused = null; // the error that says why there are none
let noMap = null; // why the map that was asked for cannot be made
let listed = ""; // what the table of points has: of which answer, and in which language
let open = null; // opens an image by its id

export function mount(root, given) {
  ctx = given;
  ui = {
    root,
    empty: element("section", { class: "card stack", hidden: true }, element("p", {}), element("pre", { tabindex: 0 })),
    body: element("div", { class: "stack", hidden: true }),
    waiting: waiting("data.computing"),
    foreign: element("p", { class: "say small", data: { name: "foreign" } }),
    map: new Scatter({ pick: (number) => pick(found.images[number].id), describe: (number) => describe(found.images[number]) }),
    tint: choice("data.tint", (tint) => ctx.set({ tint })),
    places: choice("data.places", (places) => ctx.set({ places })),
    key: element("ul", { class: "chart-key" }),
    method: element("p", { class: "soft small", role: "status" }),
    count: element("p", { class: "soft small", role: "status" }),
    more: button("data.compute", () => ask(ctx.model.name, placesOf(ctx.state))),
    points: element("tbody", {}),
    mistakes: button("data.mistakes", () => ctx.set({ gallery: "mistakes" })),
    all: button("data.all", () => ctx.set({ gallery: "all" })),
    kinds: element("div", { class: "segments", role: "group", data: { label: "data.gallery" } }),
    gallery: new DataGallery(ctx, pick),
    image: new DataImage(ctx, pick),
  };
  ask = latest((signal, model, map) => patiently(() => ctx.api.get("data", { model, signal, map }), signal), {
    done: take, failed: refuse, busy: (on) => root.classList.toggle("waiting", on),
  });
  open = latest((signal, image) => ctx.api.image(address(image), signal), {
    done: (blob, image) => ctx.open(blob, describe(found.by.get(String(image))), `data:${image}`), failed: ctx.complain,
  });
  ui.kinds.append(ui.mistakes, ui.all);
  ui.table = pointsTable();
  ui.mapCard = card("data.map", element("div", { class: "row" }, ui.tint.root, ui.places.root), ui.map.root, ui.key, ui.method, ui.table);
  ui.mapCard.classList.add("stack", "tight");
  ui.body.append(
    element("div", { class: "data-top" }, ui.mapCard, ui.image.root),
    element("section", { class: "card stack tight" },
      element("h2", { data: { text: "data.gallery" } }),
      element("div", { class: "row" },
        ui.kinds, ui.count, ui.more),
      ui.foreign, ui.gallery.root));
  root.append(ui.empty, ui.waiting, ui.body);
}

export function update(state) {
  if (!ctx.api || !ctx.model || ctx.model.state === "loading") return;
  const wanted = `${ctx.model.name} ${placesOf(state)}`;
  if (askedFor !== wanted) {
    if (!askedFor?.startsWith(`${ctx.model.name} `)) [found, refused] = [null, null];
    askedFor = wanted;
    ask(ctx.model.name, placesOf(state));
  }
  ui.body.hidden = !found;
  ui.empty.hidden = Boolean(found) || !refused;
  ui.waiting.hidden = Boolean(found || refused);
  if (found) show(state);
  else if (refused) showEmpty();
}

const placesOf = ({ places }) => (places === "umap" ? "umap" : "pca");

export function leave() {
  clearTimeout(later);
  ask.stop();
  open.stop();
  ui.image.stop();
  if (found?.wanted !== askedFor || found?.map?.pending) askedFor = null; // it is asked for again when the view is
}

function take(answer, model, map) {
  const classes = [...new Set(answer.images.flatMap(({ label, predicted }) => [label, predicted]).filter(Boolean))].sort();
  answers++;
  found = { ...answer, wanted: `${model} ${map}`, classes, mistaken: new Set(answer.mistakes ?? []), by: new Map(answer.images.map((one) => [String(one.id), one])) };
  refused = null;
  clearTimeout(later);
  if (answer.map?.pending) later = setTimeout(() => ask(ctx.model.name, placesOf(ctx.state)), LATER);
  if (noMap) ctx.complain(noMap);
  noMap = null;
  ctx.refresh();
}

// No data were given, or those of another model: say so, and how to give some, in the view itself.
function refuse(error) {
  if (placesOf(ctx.state) !== "pca" && error.code !== 401) { // this map cannot be made: the other one is shown
    noMap = error;
    ctx.set({ places: "pca" });
    return;
  }
  [found, refused, noMap] = [null, error, null];
  ctx.refresh();
  if (!NO_DATA.includes(error.code)) ctx.complain(error);
}

function showEmpty() {
  const [, folder, theirs, ours] = OTHER_MODEL.exec(refused.message) ?? [];
  ui.empty.dataset.why = refused.message;
  ui.empty.lastChild.hidden = !NO_DATA.includes(refused.code);
  if (ui.empty.lastChild.hidden) {
    ui.empty.firstChild.textContent = refused.message;
    return;
  }
  ui.empty.firstChild.textContent = folder ? ctx.text("data.other_model", { folder, theirs, ours }) : ctx.text("data.empty");
  ui.empty.lastChild.textContent = folder ? "vitrail embed MODEL PHOTOS --out VECTORS" : "vitrail serve MODEL --data RUN";
}

const address = (image) => `v1/data/${encodeURIComponent(image)}/image?model=${encodeURIComponent(ctx.model.name)}`;

// Opens an image: it becomes the photo of all views.
function pick(image) {
  open(image);
}

const pickedId = () => (ctx.photo?.id.startsWith("data:") ? ctx.photo.id.slice(5) : "");

function describe({ id: image, label, predicted, score }) {
  const values = { label: label ?? "–", predicted: predicted ?? "–", score: score == null ? "" : ctx.percent(score) };
  if (!predicted) return values.label;
  const key = found.mistaken.has(image) ? "wrong" : label && label !== predicted ? "other" : "right";
  return ctx.text(`data.${key}`, values);
}

function show(state) {
  const mistakes = found.images.filter((image) => found.mistaken.has(image.id)).sort((a, b) => (b.score ?? 0) - (a.score ?? 0));
  const shown = state.gallery === "mistakes" && mistakes.length ? "mistakes" : "all";
  ui.mistakes.textContent = ctx.text("data.mistakes_count", { count: ctx.number(mistakes.length) });
  ui.all.textContent = ctx.text("data.all_count", { count: ctx.number(found.images.length) });
  ui.mistakes.disabled = !mistakes.length;
  ui.kinds.hidden = Boolean(found.foreign) && found.foreign === found.images.length; // none can be a mistake
  ui.foreign.hidden = !found.foreign;
  ui.foreign.textContent = ctx.text(ui.kinds.hidden ? "data.foreign.all" : "data.foreign", { count: ctx.number(found.foreign ?? 0) });
  ui.mistakes.setAttribute("aria-pressed", String(shown === "mistakes"));
  ui.all.setAttribute("aria-pressed", String(shown === "all"));
  // the server computes for a few seconds at a time
  const rest = Math.min(found.total ?? 0, MOST) - (found.computed ?? 0) - (found.unreadable ?? 0);
  ui.count.textContent = rest > 0 ? ctx.text("data.computed", { computed: ctx.number(found.computed), total: ctx.number(found.total) }) : "";
  ui.more.hidden = rest <= 0;
  ui.gallery.show({ images: shown === "mistakes" ? mistakes : found.images, picked: pickedId(), classes: found.classes, mistaken: found.mistaken, describe });
  ui.image.show({ by: found.by, describe });
  showMap(state, found.by.get(pickedId()));
}

function showMap({ tint }, picked) {
  const { map, images, classes, mistaken } = found;
  ui.mapCard.hidden = !map;
  if (!map) return;
  const tints = ["label", "predicted"].filter((field) => images.some((image) => image[field]));
  const chosen = tints.includes(tint) ? tint : tints[0] ?? "label";
  setOptions(ui.tint.select, tints.map((field) => [field, ctx.text(`data.tint.${field}`)]), chosen);
  ui.tint.root.hidden = tints.length < 2;
  const methods = map.methods ?? ["pca"];
  setOptions(ui.places.select, methods.map((name) => [name, ctx.text(`data.places.${name}`)]), methods.includes(placesOf(ctx.state)) ? placesOf(ctx.state) : "pca");
  ui.places.root.hidden = methods.length < 2;
  const numbers = new Map(classes.map((name, number) => [name, number]));
  ui.map.show({
    points: map.points, selected: picked ? images.indexOf(picked) : -1, label: ctx.text("data.map_label", { count: images.length }),
    look: (number) => ({
      colour: classColour(numbers.get(images[number][chosen]) ?? 0), ring: Number(mistaken.has(images[number].id)),
    }),
  });
  const dot = (number) => element("i", { class: "dot", style: { background: classColour(number) } });
  const ringed = mistaken.size ? [element("li", {}, element("i", { class: "dot ringed" }), ctx.text("data.ring"))] : [];
  const tinted = new Set(images.map((image) => image[chosen]));
  const named = classes.filter((name) => tinted.has(name));
  ui.key.replaceChildren(...named.map((name) => element("li", {}, dot(numbers.get(name)), name)), ...ringed);
  const held = (map.variance ?? []).reduce((sum, share) => sum + share, 0);
  const words = ctx.text(`data.method.${map.method}`, { held: ctx.percent(held, 0) });
  ui.method.textContent = map.pending ? `${ctx.text("data.pending")} ${words}` : words;
  ui.mapCard.dataset.method = map.method;
  if (ui.table.open) fillPoints();
}

// The points of the map as a table, written when it is opened.
function pointsTable() {
  const columns = ["data.image", "data.label", "data.predicted", "data.score", "x", "y"];
  const table = element("table", {},
    element("thead", {}, element("tr", {}, columns.map((key) => element("th", { scope: "col", data: key.length > 1 ? { text: key } : {} }, key)))), ui.points);
  const details = element("details", { on: { toggle: () => details.open && fillPoints() } },
    element("summary", { data: { text: "attention.table" } }),
    element("div", { class: "scroll tall", tabindex: 0, role: "region", data: { label: "attention.table" } }, table));
  return details;
}

function fillPoints() {
  if (listed === `${answers} ${ctx.language()}`) return;
  listed = `${answers} ${ctx.language()}`;
  ui.points.replaceChildren(...found.images.map((image, number) => {
    const [x, y] = found.map.points[number];
    const open = element("button", { type: "button", on: { click: () => pick(image.id) } }, ctx.text("data.number", { id: image.id }));
    const cells = [image.label ?? "–", image.predicted ?? "–", image.score == null ? "–" : ctx.percent(image.score), ctx.number(x, 2), ctx.number(y, 2)];
    return element("tr", {}, element("td", {}, open), cells.map((words) => element("td", {}, words)));
  }));
}
