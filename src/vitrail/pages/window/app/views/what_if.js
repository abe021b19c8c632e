// What if: the photo is erased, blurred, shuffled, shifted or corrupted, and the prediction moves along.
import { AnswerBars } from "../answer_bars.js";
import { brush, cellsToText, paintGrids, textToCells, toPairs } from "../cells.js";
import { photoCanvas, outlinePath } from "../draw.js";
import { element, svg } from "../elements.js";
import { ErasureTest } from "../erasure_test.js";
import { button, card, checkbox, choice, note, setOptions, slider } from "../fields.js";
import { latest } from "../latest.js";
import { PatchStage } from "../patch_stage.js";
import { define } from "../state.js";

export const id = "what_if";
export const CORRUPTIONS = [
  "gaussian noise", "shot noise", "impulse noise", "defocus blur", "glass blur", "motion blur", "zoom blur", "snow", "frost",
  "fog", "brightness", "contrast", "elastic transform", "pixelate", "jpeg compression",
];
const TOOLS = ["erase", "blur", "restore"];
const FARTHEST = 32; // pixels that the picture can be shifted
const PAUSE = 120; // ms without a change before the server is asked
const UNEDITED = { erase: "", blur: "", permute: -1, along: false, shift_x: 0, shift_y: 0, corrupt: "", severity: 3 };

define({ ...UNEDITED, edit_grid: "", tool: "erase", brush: 1 });

let ctx = null;
let ui = null;
let ask = null;
let original = { inspection: null, canvas: null, mean: "" };
let seen = null; // {image, erase, blur}: the picture that the model saw last
let asked = ""; // what the last request was for

export function mount(root, given) {
  ctx = given;
  const { set } = ctx;
  ui = {
    stage: new PatchStage({ label: "", pick: paintCell, paints: true, name: "what_if" }),
    tools: TOOLS.map((tool) => button(`what_if.${tool}`, () => set({ tool }), { data: { tool } })),
    brush: choice("what_if.brush", (value) => set({ brush: Number(value) })),
    grid: choice("what_if.grid", (value) => set({ edit_grid: value, erase: "", blur: "" })),
    undo: button("what_if.undo", () => set(UNEDITED)),
    along: checkbox("what_if.along", (along) => set({ along })),
    ordered: button("what_if.ordered", () => set({ permute: -1 })),
    shifted: element("output", {}),
    corrupt: choice("what_if.corruption", (corrupt) => set({ corrupt })),
    severity: slider("what_if.severity", { min: 1, max: 5, input: (severity) => set({ severity }) }),
    bars: new AnswerBars({ label: "what_if.bars" }),
    sentence: element("p", { class: "say", role: "status" }),
    test: new ErasureTest(ctx, eraseMarked),
  };
  ask = latest((signal, edits) => ctx.api.post("what_if", ctx.photo.blob, edits, { model: ctx.model.name, signal }), {
    wait: PAUSE, done: show, failed: fail, busy: (on) => root.classList.toggle("waiting", on),
  });
  root.append(element("div", { class: "split" }, paintCard(), element("div", { class: "stack" }, answerCard(), editCard(), ui.test.root)));
}

function paintCard() {
  return card("what_if.paint",
    element("div", { class: "row", role: "group", data: { label: "what_if.tools" } }, ui.tools, ui.brush.root, ui.grid.root),
    ui.stage.root, note("what_if.keys"), element("div", { class: "row" }, ui.undo));
}

function answerCard() {
  ui.key = element("p", { class: "bar-key soft small" },
    element("i", { class: "bar-before" }), element("span", { data: { text: "what_if.key_before" } }),
    element("i", { class: "bar-after" }), element("span", { data: { text: "what_if.key_after" } }));
  return card("what_if.answer", ui.sentence, ui.bars.root, ui.key);
}

function editCard() {
  const move = (x, y) => () => {
    const clip = (value) => Math.min(Math.max(value, -FARTHEST), FARTHEST);
    ctx.set({ shift_x: clip(ctx.state.shift_x + x), shift_y: clip(ctx.state.shift_y + y) });
  };
  const arrow = (way, sign, x, y) =>
    element("button", { type: "button", class: "icon", data: { label: `what_if.shift.${way}` }, on: { click: move(x, y) } }, sign);
  return card("what_if.edits",
    element("div", { class: "edits" },
      edit("what_if.shuffle", "what_if.shuffle_why",
        button("what_if.shuffle_now", () => ctx.set({ permute: ctx.state.permute + 1 })), ui.ordered, ui.along.root),
      edit("what_if.shift", "what_if.shift_why",
        arrow("left", "←", -1, 0), arrow("up", "↑", 0, -1), arrow("down", "↓", 0, 1), arrow("right", "→", 1, 0), ui.shifted),
      edit("what_if.corrupt", "what_if.corrupt_why", ui.corrupt.root, ui.severity.root)));
}

const edit = (name, why, ...controls) => element("fieldset", {},
  element("legend", { data: { text: name } }), note(why), element("div", { class: "row" }, controls));

export function update(state) {
  const ready = Boolean(ctx.api && ctx.photo && ctx.inspection);
  ui.stage.root.setAttribute("aria-label", ctx.text("what_if.stage"));
  if (original.inspection !== ctx.inspection) reset();
  showControls(state);
  if (!ready) return;
  const grid = chosenGrid(state);
  drawStage(grid);
  const edits = editsOf(state, grid);
  const wanted = JSON.stringify(edits);
  if (asked === wanted) {
    if (seen?.answer) tell(seen.answer);
    return;
  }
  asked = wanted;
  ask(edits, grid);
}

export function leave() {
  ask.stop();
  asked = "";
  ui.test.stop();
}

function reset() {
  ask.stop();
  [asked, seen] = ["", null];
  original = { inspection: ctx.inspection, canvas: null, mean: "" };
  if (ctx.inspection) {
    const { pixels } = ctx.inspection.arrays;
    Object.assign(original, { canvas: photoCanvas(pixels), mean: meanColour(pixels) });
  }
  ui.test.reset();
}

function meanColour({ data }) {
  const sums = [0, 0, 0];
  data.forEach((value, at) => (sums[at % 3] += value));
  return `rgb(${sums.map((sum) => Math.round((3 * sum) / data.length)).join(" ")})`;
}

/** The grid that cells are counted on: of the address where it fits, else the usual one of this model. */
function chosenGrid({ edit_grid: wished }) {
  const found = wished.split("x").map(Number);
  const fits = found.length === 2 && found.every((side) => Number.isInteger(side) && side > 0 && side <= 256);
  return fits ? found : paintGrids(ctx.inspection.layers).usual;
}

function editsOf(state, grid) {
  const count = grid[0] * grid[1];
  return {
    grid, erase: toPairs(textToCells(state.erase, count), grid), blur: toPairs(textToCells(state.blur, count), grid),
    permute: state.permute < 0 ? null : state.permute, permute_positions: state.along && state.permute >= 0 && !ui.along.box.disabled,
    shift: [state.shift_x, state.shift_y],
    corruption: CORRUPTIONS.includes(state.corrupt) ? { name: state.corrupt, severity: state.severity } : null,
  };
}

function showControls(state) {
  for (const tool of ui.tools) tool.setAttribute("aria-pressed", String(tool.dataset.tool === state.tool));
  setOptions(ui.brush.select, [1, 2, 3, 5].map((size) => [size, ctx.text("what_if.brush_size", { size })]), state.brush);
  const corruptions = CORRUPTIONS.map((name) => [name, ctx.text(`what_if.corruption.${name.replaceAll(" ", "_")}`)]);
  setOptions(ui.corrupt.select, [["", ctx.text("what_if.corruption.none")], ...corruptions], state.corrupt);
  ui.severity.range.value = state.severity;
  ui.severity.range.disabled = !state.corrupt;
  ui.severity.shown.textContent = ctx.number(state.severity);
  ui.along.box.checked = state.along && !ui.along.box.disabled;
  ui.ordered.disabled = state.permute < 0;
  ui.shifted.textContent = ctx.text("what_if.shifted", { x: ctx.number(state.shift_x), y: ctx.number(state.shift_y) });
  ui.undo.disabled = Object.entries(UNEDITED).every(([key, value]) => state[key] === value);
  ui.test.update();
  if (!ctx.inspection) return;
  const grid = chosenGrid(state);
  // places that are built into windows, folds or several grids cannot move
  const movable = ctx.inspection.layers.every((layer) => layer.heads && !layer.window && !layer.fold && layer.grid.join() === grid.join());
  ui.along.box.disabled = !movable;
  ui.along.root.title = movable ? "" : ctx.text("what_if.along_not");
  const grids = new Map(paintGrids(ctx.inspection.layers).all.map((one) => [one.join("x"), one]));
  grids.set(grid.join("x"), grid);
  const names = [...grids].map(([value, [rows, columns]]) => [value, ctx.text("what_if.cells", { rows, columns })]);
  setOptions(ui.grid.select, names, grid.join("x"));
  ui.grid.root.hidden = names.length < 2;
}

function paintCell(cell, how) {
  const { state, set } = ctx;
  const grid = chosenGrid(state);
  const count = grid[0] * grid[1];
  const [erase, blur] = [textToCells(state.erase, count), textToCells(state.blur, count)];
  if (how !== "move") {
    const target = { erase, blur }[state.tool];
    const cells = brush(cell, state.brush, grid);
    // a key takes back what it painted; the mouse only adds, and restores with its own tool
    const takesBack = how === "key" && target?.has(cell[0] * grid[1] + cell[1]);
    for (const one of cells) {
      erase.delete(one);
      blur.delete(one);
      if (target && !takesBack) target.add(one);
    }
    set({ erase: cellsToText(erase), blur: cellsToText(blur) });
  }
  ui.stage.moveCursor(cell);
  if (how !== "move" && how !== "key") return;
  const number = cell[0] * grid[1] + cell[1];
  const mark = erase.has(number) ? "erased" : blur.has(number) ? "blurred" : "untouched";
  ctx.announce(ctx.text(`what_if.cell.${mark}`, { row: cell[0] + 1, column: cell[1] + 1 }));
}

function drawStage(grid) {
  const count = grid[0] * grid[1];
  const [erase, blur] = [textToCells(ctx.state.erase, count), textToCells(ctx.state.blur, count)];
  const { image_size: size } = ctx.inspection.header;
  const mark = (cells, name) => svg("path", { d: outlinePath(cells, grid, size), class: name, fill: "none" });
  const cursor = ui.stage.root.matches(":focus-visible") ? ui.stage.place : null;
  ui.stage.show({
    photo: currentPicture(erase, grid, size), size, grid, cursor,
    marks: [mark(blur, "stage-blurred"), mark(erase, "stage-erased")],
  });
}

// What the model saw last, with the cells that were erased or restored since.
function currentPicture(erase, grid, [height, width]) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.drawImage(seen?.image ?? original.canvas, 0, 0, width, height);
  const before = seen?.grid.join() === grid.join() ? seen.erase : new Set();
  const [high, wide] = [height / grid[0], width / grid[1]];
  const box = (cell) => [(cell % grid[1]) * wide, Math.floor(cell / grid[1]) * high, wide, high];
  context.fillStyle = original.mean; // until the server's picture is there
  for (const cell of erase) if (!before.has(cell)) context.fillRect(...box(cell));
  for (const cell of before) if (!erase.has(cell)) context.drawImage(original.canvas, ...box(cell), ...box(cell));
  return canvas;
}

async function show(answer, edits, grid) {
  const image = new Image();
  image.src = answer.image;
  try {
    await image.decode();
  } catch (error) {
    fail(error);
    return;
  }
  if (asked !== JSON.stringify(edits)) return; // a newer request was sent while the picture was decoded
  seen = { image, answer, grid, erase: new Set(edits.erase.map(([r, c]) => r * grid[1] + c)) };
  drawStage(grid);
  tell(answer);
}

function tell(answer) {
  ui.stage.root.dataset.answered = asked;
  ui.key.hidden = !answer.before;
  if (!answer.before) {
    ui.bars.show([]);
    ui.sentence.textContent = ctx.text("what_if.no_classes", { similarity: ctx.number(answer.similarity, 3) });
    return;
  }
  const edited = asked !== JSON.stringify(editsOf({ ...ctx.state, ...UNEDITED }, chosenGrid(ctx.state)));
  const rows = [...answer.changed].sort((a, b) => Math.max(b.before, b.after) - Math.max(a.before, a.after)).slice(0, 8);
  ui.bars.show(edited ? rows : rows.map((row) => ({ ...row, after: null })));
  const [was, is] = [answer.before[0], answer.after[0]];
  const after = answer.changed.find(({ index }) => index === was.index)?.after ?? 0;
  const values = {
    was: was.label, before: ctx.percent(was.score, 1), after: ctx.percent(after, 1), is: is.label, now: ctx.percent(is.score, 1),
  };
  const key = !edited ? "untouched" : was.index === is.index ? "stays" : "changes";
  ui.sentence.textContent = ctx.text(`what_if.say.${key}`, values);
}

function fail(error) {
  asked = "";
  ctx.complain(error);
}

// Takes the cells that an explanation marks to the picture.
function eraseMarked(cells, grid) {
  ctx.set({ edit_grid: grid.join("x"), erase: cellsToText(cells), blur: "" });
}
