// Attention as shares of one, from the bytes of an inspection: rows, columns, cells and what they amount to in words.
//
// A weight is (level / levels)² · the largest of its row. Rows are brought back to a sum of one, which rounding to
// levels has moved a little. Layers within windows or folds have groups: only tokens of one group see each other.

/**
 * The attention layers of an inspection with their arrays.
 * @param {{header: any, arrays: any}} inspection
 */
export function layersOf({ header, arrays }) {
  if (!header.attention_layers.length) return mapLayersOf(header);
  return header.attention_layers.map((info, index) => {
    const { data: weights, shape } = arrays[`weights.${index}`];
    const { data: groups, shape: [count, length] } = arrays[`groups.${index}`];
    const [, heads, queries, keys] = shape;
    const layer = {
      ...info, index, weights, groups, heads, queries, keys, length, groupCount: count, size: header.image_size,
      cells: info.grid[0] * info.grid[1], pools: arrays[`places.${index}`]?.data ?? null, members: null,
    };
    if (layer.pools) {
      layer.members = new Float32Array(keys);
      for (const pool of layer.pools) layer.members[pool]++;
    }
    layer.squares = Float32Array.from({ length: info.levels + 1 }, (_, level) => (level / info.levels) ** 2);
    layer.place = placesOf(layer);
    layer.sums = sumsOf(layer);
    return layer;
  });
}

// The blocks of a convolutional network: a grid each, and no heads.
function mapLayersOf({ map_layers: layers = [], image_size: size }) {
  return layers.map((info, index) => ({ ...info, index, size, cells: info.grid[0] * info.grid[1] }));
}

// For each token, where it stands in `groups`, or -1.
function placesOf({ groups, prefix, cells }) {
  const place = new Int32Array(prefix + cells).fill(-1);
  groups.forEach((token, at) => {
    if (token >= 0) place[token] = at;
  });
  return place;
}

// The sum of each row's squares: what its shares are divided by.
function sumsOf({ weights, squares, keys }) {
  const sums = new Float32Array(weights.length / keys);
  for (let row = 0, at = 0; row < sums.length; row++) {
    let sum = 0;
    for (let key = 0; key < keys; key++) sum += squares[weights[at++]];
    sums[row] = sum || 1;
  }
  return sums;
}

/**
 * Where a token looks, or with `back` how much every token looks at it: a share for each cell of the grid, and for
 * each prefix token. `head` -1 is the mean of all heads.
 * @returns {{cells: Float32Array, prefix: Float32Array}}
 */
export function row(layer, head, token, back = false) {
  const all = new Float32Array(layer.prefix + layer.cells);
  const heads = head < 0 ? Array.from({ length: layer.heads }, (_, number) => number) : [head];
  for (const one of heads) (back ? addColumn : addRow)(layer, one, token, all);
  if (heads.length > 1) for (let at = 0; at < all.length; at++) all[at] /= heads.length;
  return split(layer, all);
}

/** The same for every head of a layer, and their mean: computed once for all small maps. */
export function rows(layer, token, back = false) {
  const mean = new Float32Array(layer.prefix + layer.cells);
  const heads = Array.from({ length: layer.heads }, (_, head) => {
    const all = new Float32Array(mean.length);
    (back ? addColumn : addRow)(layer, head, token, all);
    for (let at = 0; at < all.length; at++) mean[at] += all[at] / layer.heads;
    return split(layer, all);
  });
  return { mean: split(layer, mean), heads };
}

const split = ({ prefix }, all) => ({ prefix: all.subarray(0, prefix), cells: all.subarray(prefix) });

function addRow(layer, head, token, all) {
  const { length, groups, weights, squares, pools, members, keys } = layer;
  const at = layer.place[token];
  if (at < 0) return;
  const start = at - (at % length);
  const line = lineOf(layer, head, start / length, at % length);
  const sum = layer.sums[line];
  for (let key = 0; key < length; key++) {
    const seen = groups[start + key];
    if (seen < 0) continue;
    const to = pools ? pools[key] : key;
    all[seen] += squares[weights[line * keys + to]] / (pools ? sum * members[to] : sum);
  }
}

function addColumn(layer, head, token, all) {
  const { length, groups, weights, squares, pools, members, keys, sums } = layer;
  const at = layer.place[token];
  if (at < 0) return;
  const start = at - (at % length);
  const to = pools ? pools[at % length] : at % length;
  const many = pools ? members[to] : 1;
  for (let query = 0; query < length; query++) {
    const asking = groups[start + query];
    if (asking < 0) continue;
    const line = lineOf(layer, head, start / length, query);
    all[asking] += squares[weights[line * keys + to]] / (sums[line] * many);
  }
}

// The row of weights of one place of a group. Where a layer is too large its places travel pooled: those of a pool
// have its row, and share its weight.
function lineOf({ heads, queries, pools }, head, group, query) {
  return (group * heads + head) * queries + (queries === 1 ? 0 : pools ? pools[query] : query);
}

/** Row and column of a token, or null for a prefix token. */
export function cellOf(layer, token) {
  const cell = token - layer.prefix;
  return cell < 0 ? null : [Math.floor(cell / layer.grid[1]), cell % layer.grid[1]];
}

export const tokenAt = (layer, [r, c]) => layer.prefix + r * layer.grid[1] + c;

/** The token of the store's `query` in a layer: "t0" or "y,x" in pixels, the middle by default. */
export function tokenOf(layer, query) {
  const { grid, prefix } = layer;
  if (query.startsWith("t")) {
    const token = Number(query.slice(1));
    if (Number.isInteger(token) && token >= 0 && token < prefix) return token;
    query = "";
  }
  const pixels = query.split(",").map(Number);
  const middle = grid.map((side) => Math.floor(side / 2));
  if (pixels.length !== 2 || !pixels.every(Number.isFinite)) return tokenAt(layer, middle);
  const length = layer.extent;
  const cell = pixels.map((at, axis) => {
    const place = Math.floor((at * grid[axis]) / length[axis]);
    return Math.min(Math.max(place, 0), grid[axis] - 1);
  });
  return tokenAt(layer, cell);
}

/** The store's `query` for a token of a layer: the middle of its cell. */
export function queryOf(layer, token) {
  const cell = cellOf(layer, token);
  if (!cell) return `t${token}`;
  const length = layer.extent;
  return cell.map((place, axis) => Math.round(((place + 0.5) * length[axis]) / layer.grid[axis])).join(",");
}

/** The number of the layer that the store names: the last for -1 or beyond. */
export const layerNumber = (layers, wished) => (wished >= 0 && wished < layers.length ? wished : layers.length - 1);
export const headNumber = (layer, wished) => (wished >= 0 && wished < layer.heads ? wished : -1);

/** Tokens that a token can see: those of its group. */
export function neighbours(layer, token) {
  const at = layer.place[token];
  if (at < 0) return [];
  const start = at - (at % layer.length);
  return [...layer.groups.subarray(start, start + layer.length)].filter((one) => one >= 0);
}

/**
 * What a map amounts to: how many cells have half of what all cells have, their mean distance in cells from the token,
 * its own share, the largest cell, and of how many cells the token sees how many have more than an even share.
 */
export function summarise(layer, { cells, prefix }, token) {
  const seen = neighbours(layer, token);
  const even = 1 / Math.max(seen.length, 1);
  const own = cellOf(layer, token);
  const found = summariseCells(cells);
  return {
    ...found, even, seen: seen.filter((one) => one >= layer.prefix).length,
    distance: own ? meanDistance(layer, cells, own) / (found.total || 1) : null,
    self: own ? cells[token - layer.prefix] : prefix[token],
    above: cells.reduce((count, one) => count + (one > even * 1.0001), 0),
  };
}

/** How many cells have half of the total, and which is the largest. */
export function summariseCells(cells) {
  const total = cells.reduce((sum, one) => sum + one, 0);
  const order = [...cells.keys()].sort((a, b) => cells[b] - cells[a]);
  let [half, reached] = [0, 0];
  while (half < order.length && reached < total / 2) reached += cells[order[half++]];
  return { half, total, top: order[0], topShare: cells[order[0]] };
}

function meanDistance({ grid: [, columns] }, cells, [r, c]) {
  let sum = 0;
  for (let cell = 0; cell < cells.length; cell++) {
    sum += cells[cell] * Math.hypot(Math.floor(cell / columns) - r, (cell % columns) - c);
  }
  return sum;
}
