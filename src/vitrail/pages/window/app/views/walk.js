// Walk: one photo through the model in the steps of its paper, with the numbers of a chosen patch and head.
import { cellOf, layerNumber, tokenOf } from "../attention_math.js";
import { photoCanvas } from "../draw.js";
import { element } from "../elements.js";
import { button, choice, setOptions } from "../fields.js";
import { latest } from "../latest.js";
import { define } from "../state.js";
import { stepCard, titleOf } from "../walk_cards.js";
import { patchPicture, WalkStage } from "../walk_stage.js";
import { cellsOf, headName, layerName, patchName, prefixName, tokenName } from "../words.js";

export const id = "walk";
const PAUSE = 60; // ms without a change before the server is asked
const SETTLE = 700; // ms after a jump in which scrolling does not choose a step

define({ step: "" }); // id of the step in the middle of the screen, "" for the first

let ctx = null;
let ui = null;
let ask = null;
let looked = { inspection: null, photo: null };
let asked = "";
let found = null; // {answer, chosen}: the last walk and what it was asked for
let listed = ""; // what the cards were made for
let jumped = 0; // when a step was last chosen by a click or a key
let watcher = null;
let arrived = false; // whether the step of the address was gone to

export function mount(root, given) {
  ctx = given;
  ui = {
    root,
    stage: new WalkStage({ label: "", pick: pickCell, name: "walk" }),
    layer: choice("attention.layer", (value) => ctx.set({ layer: Number(value) })),
    head: choice("attention.head", (value) => ctx.set({ head: Number(value) })),
    tokens: element("div", { class: "row tokens", role: "group", data: { label: "attention.tokens" } }),
    title: element("p", { class: "walk-title", role: "status" }),
    follows: element("span"),
    marked: element("span"),
    hint: element("p", { class: "soft small walk-hint" }),
    back: element("button", { type: "button", class: "icon", data: { label: "walk.back" }, on: { click: () => go(-1) } }, "←"),
    next: element("button", { type: "button", class: "icon", data: { label: "walk.next" }, on: { click: () => go(1) } }, "→"),
    again: button("walk.again", () => replay()),
    steps: element("ol", { class: "steps", data: { label: "walk.steps" } }),
    rail: element("ol", { class: "rail", "aria-hidden": "true" }),
    empty: element("p", { class: "soft", data: { text: "attention.empty" } }),
  };
  ask = latest((signal, options) => ctx.api.post("walk", ctx.photo.blob, options, { model: ctx.model.name, signal }), {
    wait: PAUSE, failed: fail, busy: (on) => root.classList.toggle("waiting", on),
    done: (answer, options, chosen) => {
      found = { answer, chosen };
      ctx.refresh();
    },
  });
  watcher = new IntersectionObserver(scrolled, { rootMargin: "-35% 0px -60% 0px" });
  root.append(ui.empty, element("div", { class: "walk" },
    element("div", { class: "card walk-stage" },
      ui.stage.root, ui.rail,
      element("div", { class: "walk-now" },
        element("div", { class: "row" }, ui.back, ui.next, ui.title), element("p", { class: "soft small" }, ui.follows, " ", ui.marked),
        element("div", { class: "row walk-pickers" }, ui.layer.root, ui.head.root, ui.tokens, ui.again),
        ui.hint)),
    ui.steps));
  document.addEventListener("keydown", key);
}

export function update(state) {
  ui.empty.hidden = Boolean(ctx.photo);
  ui.root.querySelector(".walk").hidden = !ctx.inspection;
  if (!ctx.api || !ctx.inspection) return;
  if (looked.inspection !== ctx.inspection) {
    looked = { inspection: ctx.inspection, photo: photoCanvas(ctx.inspection.arrays.pixels) };
    [asked, found, listed] = ["", null, ""];
    ui.steps.replaceChildren();
    ui.stage.stop();
  }
  const chosen = choose(state);
  showPickers(chosen);
  const wanted = JSON.stringify(chosen.options);
  if (wanted !== asked) {
    asked = wanted;
    ask(chosen.options, chosen);
  }
  if (found) show();
}

export function leave() {
  ask.stop();
  ui.stage.stop();
  if (!found || JSON.stringify(found.chosen.options) !== asked) asked = "";
}

/** The layer, head and token that the walk follows: the first layer and head where none is chosen. */
function choose(state) {
  const { layers } = ctx.inspection;
  const layer = layers[state.layer < 0 ? 0 : layerNumber(layers, state.layer)];
  const head = state.head >= 0 && state.head < layer.heads ? state.head : 0;
  const token = tokenOf(layer, state.query);
  const cell = cellOf(layer, token);
  return { layer, head, token, cell, options: { block: layer.index, head, ...(cell ? { patch: cell } : { token }) } };
}

function showPickers({ layer, head, token }) {
  const { layers } = ctx.inspection;
  setOptions(ui.layer.select, layers.map((one) => [one.index, layerName(one)]), layer.index);
  ui.head.root.hidden = !layer.heads;
  setOptions(ui.head.select, Array.from({ length: layer.heads }, (_, number) => [number, headName(number)]), head);
  const names = Array.from({ length: layer.prefix }, (_, number) => prefixName(layer, number));
  if (ui.tokens.dataset.names !== names.join()) {
    ui.tokens.dataset.names = names.join();
    ui.tokens.replaceChildren(...names.map((name, number) =>
      element("button", { type: "button", on: { click: () => ctx.set({ query: `t${number}` }) } }, name)));
  }
  [...ui.tokens.children].forEach((one, number) => one.setAttribute("aria-pressed", String(number === token)));
  const values = { token: tokenName(layer, token), layer: layerName(layer), head: headName(head) };
  ui.follows.textContent = ctx.text(layer.heads ? "walk.follows" : "walk.follows.cell", values);
  ui.stage.root.setAttribute("aria-label", ctx.text(`walk.stage${cellsOf(layers)}`, values));
  ui.hint.textContent = ctx.text(`walk.hint${cellsOf(layers)}`);
}

function show() {
  const { answer, chosen } = found;
  const key = `${asked} ${ctx.language()} ${answer.steps.length}`;
  if (listed !== key && JSON.stringify(chosen.options) === asked) list(key);
  const current = currentStep();
  const step = answer.steps[current];
  [...ui.steps.children].forEach((card, number) => {
    if (number === current) card.setAttribute("aria-current", "step");
    else card.removeAttribute("aria-current");
  });
  [...ui.rail.children].forEach((dot, number) => dot.classList.toggle("now", number === current));
  ui.title.textContent = `${current + 1}. ${titleOf(step)}`;
  ui.back.disabled = current === 0;
  ui.next.disabled = current === answer.steps.length - 1;
  const scene = sceneOf(step, chosen);
  ui.marked.textContent = describeMark(scene, chosen);
  ui.stage.play(step, scene);
}

// A step before the block may have a grid of its own: which of its cells is marked.
function describeMark({ grid: [rows, columns], cell }, { layer, token, cell: chosenCell }) {
  const [layerRows, layerColumns] = layer.grid;
  const same = chosenCell && rows === layerRows && columns === layerColumns;
  if (!cell || same) return "";
  return ctx.text(chosenCell ? "walk.marked" : "walk.marked.middle", {
    cell: patchName(cell), rows, columns, token: tokenName(layer, token), layer_rows: layerRows, layer_columns: layerColumns,
  });
}

function currentStep() {
  const place = found.answer.steps.findIndex((step) => step.id === ctx.state.step);
  return place < 0 ? 0 : place;
}

// Cards stay where they are while numbers change: the open details and the scroll of the page are kept.
function list(key) {
  const { answer, chosen } = found;
  const open = [...ui.steps.querySelectorAll("details[open]")].map((one) => place(one));
  listed = key;
  watcher.disconnect();
  const cards = answer.steps.map((step, number) => stepCard(step, {
    number, count: answer.steps.length, layer: chosen.layer, label, patch: picture, piece: () => piece(step), choose: () => jump(step.id, false),
  }));
  ui.steps.replaceChildren(...cards);
  for (const details of ui.steps.querySelectorAll("details")) details.open = open.includes(place(details));
  ui.rail.replaceChildren(...answer.steps.map((step) => element("li", { title: titleOf(step), on: { click: () => jump(step.id) } })));
  for (const card of cards) watcher.observe(card);
  if (!arrived && ctx.state.step) jump(ctx.state.step); // a link to a step
  arrived = true;
}

const place = (details) => `${details.closest("[data-step]").dataset.step} ${details.closest("[data-name]")?.dataset.name}`;

function label(index) {
  const known = found.answer.prediction?.find((one) => one.index === index)?.label;
  return known ?? ctx.model.labels?.[index] ?? ctx.text("walk.class", { index });
}

function picture(token) {
  const { layer } = found.chosen;
  const cell = cellOf(layer, token);
  if (!cell) return element("span", { class: "patch-picture token", "aria-hidden": "true" }, "∗");
  return patchPicture(looked.photo, cell, layer.grid, layer.extent, layer.size, 36);
}

// The chosen patch, large.
function piece(step) {
  const { grid, extent, cell, size } = sceneOf(step, found.chosen);
  return patchPicture(looked.photo, cell ?? grid.map((side) => Math.floor(side / 2)), grid, extent, size, 96);
}

// What a scene draws: the grid of the step where it has one of its own, else that of the layer.
function sceneOf(step, { layer, head, token, cell }) {
  const facts = step.text_args;
  const size = ctx.inspection.header.image_size;
  const base = { photo: looked.photo, size, layer, head, token, key: `${asked}`, row: rowOf(step), fine: facts.from ?? null };
  if (facts.rows && facts.columns) {
    return { ...base, grid: [facts.rows, facts.columns], extent: size, cell: [facts.row, facts.column] };
  }
  if (facts.row !== undefined && facts.size && !facts.window) return { ...base, grid: layer.grid, extent: size, cell: [facts.row, facts.column] };
  return { ...base, grid: facts.to ?? layer.grid, extent: layer.extent, cell };
}

function rowOf({ values }) {
  const value = values.scores ?? values.bias;
  return value?.tokens ? value : null;
}

function pickCell(cell, how) {
  const { grid, extent } = ui.stage;
  if (how === "hover") return;
  ctx.set({ query: cell.map((at, axis) => Math.round(((at + 0.5) * extent[axis]) / grid[axis])).join(",") });
}

function go(by) {
  if (!found) return;
  const { steps } = found.answer;
  const next = steps[Math.min(Math.max(currentStep() + by, 0), steps.length - 1)];
  jump(next.id);
}

// Chooses a step, and with `scrolls` brings it to the middle of the screen.
function jump(step, scrolls = true) {
  jumped = performance.now();
  ctx.set({ step });
  if (!scrolls) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const card = ui.steps.querySelector(`[data-step="${CSS.escape(step)}"]`);
  const tall = card?.offsetHeight > innerHeight * 0.8 || matchMedia("(max-width: 62rem)").matches;
  card?.scrollIntoView({ block: tall ? "start" : "center", behavior: calm ? "auto" : "smooth" });
}

function scrolled(entries) {
  const seen = entries.filter((entry) => entry.isIntersecting).at(-1);
  if (!seen || performance.now() - jumped < SETTLE) return;
  ctx.set({ step: seen.target.dataset.step });
}

function replay() {
  ui.stage.again();
  ctx.refresh();
}

// Left and right go from step to step, wherever the keys are not needed for something else.
function key(event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || ctx.state.view !== id || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest?.("input, select, textarea, [role=tab], [role=application], dialog")) return;
  event.preventDefault();
  go(by);
}

function fail(error) {
  asked = "";
  ctx.complain(error);
}
