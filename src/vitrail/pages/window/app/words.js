// What is shown, in words: names of layers, heads, tokens, methods and blocks, and the sentence under the photo.
import { cellOf } from "./attention_math.js";
import { has, number, percent, text } from "./language.js";

const NOTED = 0.3; // share of one token that the sentence mentions

/** "layer 3", "stage 2 block 1" or "last" of the server in the chosen language. */
export function placeName(short) {
  if (short === "last") return capital(text("attention.part.last"));
  return capital(short.replace(/(layer|stage|block) (\d+)/g, (_, part, count) => text(`attention.part.${part}`, { n: count })));
}

/** With a capital, as a sentence or a label begins. */
export const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

export const layerName = (layer) => placeName(layer.short);

/** "blocks.3" or "stages.1.blocks.0" as people count; `all` has the names beside it. */
export function blockName(name, all) {
  const { kind, stage, block } = placeOf(name, all);
  const part = text(`attention.part.${kind}`, { n: block });
  return stage ? `${text("attention.part.stage", { n: stage })} ${part}` : part;
}

/** The same for an axis: "3", or "2.1" for block 1 of stage 2. */
export function blockTick(name, all) {
  const { kind, stage, block } = placeOf(name, all);
  if (kind !== "block") return text(`attention.tick.${kind}`);
  return stage ? `${stage}.${block}` : String(block);
}

// What a block is: a stage begins with merging or with convolutions where its own blocks lie within another one.
function placeOf(name, all) {
  const numbers = (name.match(/\d+/g) ?? []).map((one) => Number(one) + 1);
  if (!numbers.length) return { kind: "last" };
  const stage = name.startsWith("stages.") ? numbers[0] : null;
  if (name.endsWith(".merge")) return { kind: "merge", stage };
  const nested = all.some((one) => (one.match(/\d+/g) ?? []).length > numbers.length);
  return { kind: nested ? "conv" : "block", stage, block: numbers.at(-1) };
}

export const headName = (head) => (head < 0 ? text("attention.head.mean") : text("attention.head.n", { n: head + 1 }));

/** A prefix token by the name that the server gives it. */
export function prefixName(layer, token) {
  const [, kind, count] = /^(.*?)(?: (\d+))?$/.exec(layer.prefix_names[token] ?? "token");
  const key = `attention.token.${kind.replaceAll(" ", "_")}`;
  const words = has(key) ? text(key) : kind;
  return count ? `${words} ${count}` : words;
}

export function tokenName(layer, token) {
  const cell = cellOf(layer, token);
  return cell ? patchName(cell) : prefixName(layer, token);
}

export const patchName = ([r, c]) => text("attention.patch", { row: r + 1, column: c + 1 });

export const methodName = (method) => (has(`attention.method.${method}`) ? text(`attention.method.${method}`) : method);

/** The sentence on a row or column of attention; `found` is of `summarise`. */
export function describeRow(layer, head, token, back, shares, found) {
  const where = `${layerName(layer)}, ${headName(head)}`;
  const cell = cellOf(layer, token);
  const top = [Math.floor(found.top / layer.grid[1]), found.top % layer.grid[1]];
  const values = {
    half: found.half, seen: found.seen, count: found.above, distance: number(found.distance ?? 0, 1),
    share: percent(found.topShare), patch: patchName(top), token: cell ? patchName(cell) : prefixName(layer, token),
  };
  const sentences = [];
  if (back) {
    sentences.push(text(cell ? "attention.say.back" : "attention.say.back.token", values));
  } else {
    const noted = [...shares.prefix.keys()].filter((one) => shares.prefix[one] > NOTED);
    for (const one of noted) {
      const key = one === token ? "attention.say.token.self" : "attention.say.prefix";
      sentences.push(text(key, { share: percent(shares.prefix[one]), token: prefixName(layer, one) }));
    }
    const own = noted.length ? ".rest" : layer.window ? ".window" : layer.fold ? ".fold" : "";
    sentences.push(text(cell || noted.length ? `attention.say.patch${own}` : "attention.say.token", values));
    if (cell && found.self > NOTED) sentences.push(text("attention.say.self", { share: percent(found.self) }));
  }
  if (layer.separable) sentences.push(text("attention.say.shared"));
  return { where, words: sentences.join(" ") };
}

/** The end of a key of words on patches: a convolutional network has cells of a map in their place. */
export const cellsOf = ([layer]) => (layer.heads ? "" : ".cells");

/** The sentence on the map of a method; `cells` is of `cellsOf`. */
export function describeMap(method, label, grid, found, cells) {
  const top = [Math.floor(found.top / grid[1]), found.top % grid[1]];
  const where = label ? text("attention.say.method.class", { method: methodName(method), label }) : methodName(method);
  if (!found.total) return { where, words: text("attention.say.zero") };
  return { where, words: text(`attention.say.method${cells}`, { half: found.half, count: grid[0] * grid[1], patch: patchName(top) }) };
}
