// The steps of the walk as cards: title, explanation, equation, shape, line of code, and the numbers.
import { element } from "./elements.js";
import { has, percent, text } from "./language.js";
import { equation } from "./equation.js";
import { digits, numberStrip, shareBars } from "./number_strip.js";
import { prefixName } from "./words.js";

const BEST = 6; // keys or classes with a bar of their own
// the order in which values are computed
const ORDER = ["pixels", "input", "patch", "kernel", "before", "mean", "variance", "q", "k", "v", "hidden", "values", "sum", "heads", "projected", "output", "residual", "result"];
const COUNTED = ["row", "column", "head", "place", "patch"]; // facts that count from 0

/** Which text a step has: families do the same step in different ways. */
function variant({ id, text_args: facts, values }) {
  if (facts.shared) return "shared";
  const found = {
    window: facts.shift?.some(Boolean) && "shifted",
    bias: facts.apart > 0 && "shifted",
    qkv: facts.temperature !== undefined && "cosine",
    patches: !values.pixels && "map",
    positions: facts.has_position === false && "none",
    pool: facts.distilled ? "distilled" : { cls: "cls", "cls+mean": "both", all: "all" }[facts.pool],
    head: facts.multi_label && "several",
    conv: facts.adds && "adds",
    earlier: facts.convolves && "convolves",
    later: facts.convolves && "convolves",
    "block.norm1": facts.over === "tokens" && "tokens",
    "block.norm2": facts.over === "tokens" && "tokens",
  }[id];
  return found || "";
}

/** Facts as words: pairs as "7 × 7", places counted from 1. */
function wordsOf(facts, layer) {
  const found = Object.entries(facts).map(([key, value]) => {
    if (Array.isArray(value)) return [key, value.join(" × ")];
    if (typeof value !== "number") return [key, value];
    return [key, COUNTED.includes(key) ? value + 1 : Number.isInteger(value) ? value : digits(value)];
  });
  const made = Object.fromEntries(found);
  if (facts.largest !== undefined) {
    made.largest = percent(facts.largest, 1);
    made.top = tokenText(layer, facts.largest_token);
  }
  return made;
}

function tokenText(layer, token) {
  const cell = token - layer.prefix;
  if (cell < 0) return prefixName(layer, token);
  return text("attention.patch", { row: Math.floor(cell / layer.grid[1]) + 1, column: (cell % layer.grid[1]) + 1 });
}

export function titleOf(step) {
  const own = `walk.step.${step.id}.${variant(step)}`;
  return text(has(own) ? own : step.title_key);
}

/**
 * The card of a step.
 * @param {any} step of the server
 * @param {{number: number, count: number, layer: any, label: (index: number) => string, patch: (token: number) => Element,
 *   piece: () => Element, choose: () => void}} how `patch` gives a small picture of a token, `piece` a large one of the
 *   chosen patch, `label` names a class
 */
export function stepCard(step, how) {
  const { number, count, layer, choose } = how;
  const facts = wordsOf(step.text_args, layer);
  const own = `walk.text.${step.id}.${variant(step)}`;
  return element("li", { class: "step card", data: { step: step.id, number }, on: { click: choose } },
    element("p", { class: "step-count" }, text("walk.count", { number: number + 1, count })),
    element("h2", {}, titleOf(step)),
    element("p", { class: "step-text" }, text(variant(step) && has(own) ? own : `walk.text.${step.id}`, facts)),
    element("dl", { class: "step-facts" },
      fact("walk.equation", element("span", { class: "equation", translate: "no" }, equation(step.equation))),
      fact("walk.shape", element("code", {}, step.shape))),
    codeLine(step.code),
    ...valuesOf(step, how));
}

const fact = (key, value) => element("div", {}, element("dt", {}, text(key)), element("dd", {}, value));

function codeLine(code) {
  if (!code) return null;
  return element("figure", { class: "code-line" },
    element("figcaption", {}, text("walk.code", { file: code.file, line: code.line })),
    element("pre", { tabindex: 0, "aria-label": text("walk.code", { file: code.file, line: code.line }) }, element("code", {}, code.text.trim())));
}

function valuesOf(step, how) {
  const rank = ([name]) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.indexOf("q"));
  const shown = Object.entries(step.values).filter(([name]) => name !== "products" || step.text_args.has_bias);
  return shown.sort((a, b) => rank(a) - rank(b)).map(([name, value]) => {
    const own = `walk.value.${step.id}.${name}`;
    const words = text(has(own) ? own : value.note_key);
    if (!value.shape.length) return scalar(name, words, value.numbers[0]);
    const strip = numberStrip({
      name, title: words, shape: value.shape, numbers: value.numbers, tone: name === "pixels" ? "--dim" : name === "weights" && value.tokens ? "--leaf" : "",
    });
    if (name === "pixels") return element("div", { class: "pixels" }, how.piece(), strip);
    return value.tokens && ["weights", "scores"].includes(name) && (step.id !== "scores")
      ? element("div", { class: "stack tight" }, bars(step, value, how), strip) : strip;
  });
}

function scalar(name, words, value) {
  return element("p", { class: "scalar", data: { name, numbers: JSON.stringify([value]) } },
    element("b", {}, words), element("span", { class: "digits" }, digits(value)));
}

// The largest of a row: keys with their patches, or classes with their names.
function bars(step, { numbers, tokens }, { layer, label, patch }) {
  const best = numbers.map((share, at) => ({ share, token: tokens[at] })).sort((a, b) => b.share - a.share).slice(0, BEST);
  const named = best.map(({ share, token }) => step.id === "head"
    ? { share, name: label(token) } : { share, name: tokenText(layer, token), picture: patch(token) });
  return shareBars(named, (share) => percent(share, share < 0.01 ? 2 : 1));
}
