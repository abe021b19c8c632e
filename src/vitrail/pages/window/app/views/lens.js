// The Lens view: the prediction after every block, read by the model's own norm and head; where it settles.
import { chartWidth, frame, saving, table, TONES } from "../charts.js";
import { element, svg } from "../elements.js";
import { blockName, blockTick, capital, layerName, tokenName } from "../words.js";

export const id = "lens";
const LINES = TONES.length;
const [MOST_WIDTH, HEIGHT] = [860, 320];

let ctx = null;
let ui = null;
let drawn = { inspection: null, key: "" };

export function mount(root, context) {
  ctx = context;
  const words = (key, name, attributes = {}) => element(name, { ...attributes, data: { text: key } });
  ui = {
    empty: element("p", { class: "soft" }), say: element("p", { class: "say", id: "lens-say", "aria-live": "polite" }),
    chart: element("div", { id: "lens-chart" }), key: element("ul", { class: "key lens-key" }),
    note: element("p", { class: "small soft" }), bars: element("ol", { class: "bars", id: "lens-bars" }),
    title: element("h2"), table: element("div", { id: "lens-table" }), sinks: element("ul", { class: "small lens-sinks" }),
    photo: element("img", { alt: "", class: "lens-photo" }),
    slider: element("input", { type: "range", id: "lens-block", min: 0, step: 1, data: { label: "lens.block" } }),
  };
  ui.slider.addEventListener("input", () => ctx.set({ block: Number(ui.slider.value) }));
  ui.sinkCard = element("section", { class: "card stack tight" }, words("lens.sinks", "h2"),
    words("attention.sinks.text", "p", { class: "small" }), ui.sinks);
  ui.body = element("div", { class: "lens" },
    element("section", { class: "card stack tight" },
      words("lens.title", "h2"), words("lens.text", "p", { class: "small soft" }), ui.say, ui.chart, ui.slider, ui.key,
      ui.note, element("details", {}, words("attention.table", "summary"), ui.table, saving(() => ui.chart.firstChild, "vitrail-lens"))),
    element("div", { class: "stack" },
      element("section", { class: "card stack tight" }, ui.photo, ui.title, ui.bars), ui.sinkCard));
  root.append(ui.empty, ui.body);
}

export function update(state) {
  const lens = ctx.inspection?.header.lens;
  ui.empty.hidden = Boolean(lens);
  ui.body.hidden = !lens;
  if (!lens) {
    const key = !ctx.photo ? "attention.empty" : ctx.inspection ? "lens.none" : "frame.busy";
    ui.empty.textContent = ctx.text(key);
    return;
  }
  const block = state.block >= 0 && state.block < lens.blocks.length ? state.block : lens.blocks.length - 1;
  const width = chartWidth(ui.chart, MOST_WIDTH);
  const key = JSON.stringify([ctx.language(), block, width]);
  if (drawn.inspection === ctx.inspection && drawn.key === key) return;
  drawn = { inspection: ctx.inspection, key };
  ui.say.textContent = describe(lens);
  ui.chart.replaceChildren(chart(lens, block, width));
  ui.key.replaceChildren(...lens.classes.slice(0, LINES).map(({ label }, place) => element("li", {},
    element("i", { style: { background: `var(${TONES[place]})` } }), label)));
  ui.slider.max = String(lens.blocks.length - 1);
  ui.slider.value = String(block);
  ui.slider.setAttribute("aria-valuetext", blockName(lens.blocks[block], lens.blocks));
  ui.note.textContent = notes(lens);
  ui.note.hidden = !ui.note.textContent;
  ui.photo.src = ctx.photo.url;
  showBlock(lens, block);
  ui.table.replaceChildren(table(ctx.text("lens.title"), [ctx.text("lens.block"), ...lens.classes.map(({ label }) => label)],
    lens.blocks.map((name, place) => [capital(blockName(name, lens.blocks)), ...lens.scores[place].map((score) => ctx.percent(score, 1))])));
  showSinks(ctx.inspection.layers);
}

/** The first block from which on the final answer is the best of the classes that are followed. */
export function settledAt({ scores }) {
  const best = (row) => row.indexOf(Math.max(...row));
  const answer = best(scores.at(-1));
  let block = scores.length - 1;
  while (block > 0 && best(scores[block - 1]) === answer) block--;
  return { block, answer, before: block > 0 ? best(scores[block - 1]) : null };
}

function describe(lens) {
  const { block, answer, before } = settledAt(lens);
  const label = lens.classes[answer].label;
  if (before === null) return ctx.text("lens.say.always", { label });
  const values = { label, other: lens.classes[before].label, block: blockName(lens.blocks[block], lens.blocks) };
  return ctx.text(block === lens.blocks.length - 1 ? "lens.say.last" : "lens.say.from", values);
}

function notes({ note, exact_last: exact }) {
  const found = [];
  const left = /^(\d+) of (\d+) steps/.exec(note ?? "");
  if (left) found.push(ctx.text("lens.note.left", { left: left[1], all: left[2] }));
  else if (note) found.push(note);
  if (!exact) found.push(ctx.text("lens.note.inexact"));
  return found.join(" ");
}

function chart(lens, block, width) {
  const { root, x, y } = frame({
    width, height: HEIGHT, rows: [0, 0.25, 0.5, 0.75, 1], rowText: (share) => ctx.percent(share, 0), left: 52,
    columns: lens.blocks.map((name) => blockTick(name, lens.blocks)), label: describe(lens),
  });
  const { block: settled } = settledAt(lens);
  root.prepend(svg("line", { x1: x(block), x2: x(block), y1: y(0), y2: y(1), class: "chart-now" }));
  lens.classes.slice(0, LINES).forEach((_, place) => {
    const points = lens.scores.map((row, at) => `${x(at)},${y(row[place])}`).join(" ");
    const style = { "--tone": `var(${TONES[place]})` };
    root.append(svg("polyline", { points, class: "chart-curve", style }));
    lens.scores.forEach((row, at) => root.append(svg("circle", {
      cx: x(at), cy: y(row[place]), r: at === block ? 6 : 4, class: "chart-point", style,
    }, svg("title", {}, `${capital(blockName(lens.blocks[at], lens.blocks))}: ${lens.classes[place].label} ${ctx.percent(row[place], 1)}`))));
  });
  if (settled > 0) {
    const side = settled > lens.blocks.length / 2 ? "end" : "start";
    root.append(svg("text", { x: x(settled) + (side === "end" ? -8 : 8), y: y(1) + 4, "text-anchor": side, class: "chart-settled" },
      ctx.text("lens.settled")), svg("line", { x1: x(settled), x2: x(settled), y1: y(0), y2: y(1), class: "chart-settled-line" }));
  }
  const gap = lens.blocks.length > 1 ? x(1) - x(0) : width / 2;
  lens.blocks.forEach((name, place) => root.append(svg("rect", {
    x: x(place) - gap / 2, y: 0, width: gap, height: HEIGHT, class: "chart-hit", on: { click: () => ctx.set({ block: place }) },
  }, svg("title", {}, capital(blockName(name, lens.blocks))))));
  return root;
}

function showBlock(lens, block) {
  ui.title.textContent = ctx.text("lens.after", { block: blockName(lens.blocks[block], lens.blocks) });
  const row = lens.scores[block].map((score, place) => ({ score, place, label: lens.classes[place].label }));
  ui.bars.replaceChildren(...row.sort((a, b) => b.score - a.score).slice(0, 6).map(({ score, place, label }) =>
    element("li", {}, element("span", {}, label), element("span", { class: "number" }, ctx.percent(score, 1)),
      element("i", { style: { width: `${Math.max(score * 100, 0.5)}%`, background: `var(${TONES[place] ?? "--dim"})` } }))));
}

function showSinks(layers) {
  const found = layers.filter(({ sinks }) => sinks.length);
  ui.sinkCard.hidden = !found.length;
  ui.sinks.replaceChildren(...found.map((layer) => element("li", {}, element("strong", {}, `${layerName(layer)}: `),
    layer.sinks.map(({ token, times }) => ctx.text("attention.sink", { token: tokenName(layer, token), times: ctx.number(times, 1) })).join("; "))));
}
