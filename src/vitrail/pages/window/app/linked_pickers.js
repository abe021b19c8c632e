// What two models have in common: layers by their relative depth, heads by number, patches by their place in the image.
import { queryOf, tokenOf } from "./attention_math.js";

/** Relative depth of layer `number` of `count`: 0 is the first, 1 the last. */
export const depthOf = (number, count) => (count > 1 ? number / (count - 1) : 1);

/** The layer at a relative depth. */
export const layerAt = (depth, count) => Math.round(Math.min(Math.max(depth, 0), 1) * (count - 1));

/**
 * What one side shows: its layer, head and token for a depth, a head and a query of the first side's image.
 * @param {any} inspection of this side
 * @param {{depth: number, head: number, query: string, size: number[]}} chosen `size` is that of the first side's image
 */
export function resolve(inspection, { depth, head, query, size }) {
  const { layers, header } = inspection;
  const layer = layers[layerAt(depth, layers.length)];
  return { layer, head: head < 0 || !layer.heads ? -1 : head % layer.heads, token: tokenOf(layer, scaleQuery(query, size, header.image_size)) };
}

/** A query of one image as a query of another: the same place. */
export function scaleQuery(query, from, to) {
  const pixels = query.split(",").map(Number);
  if (query.startsWith("t") || pixels.length !== 2 || !pixels.every(Number.isFinite)) return query;
  return pixels.map((at, axis) => Math.floor((at * to[axis]) / from[axis])).join(",");
}

/** The query, in pixels of the first side's image, for a token that was chosen on another side. */
export const queryFrom = (layer, token, size, first) => scaleQuery(queryOf(layer, token), size, first);
