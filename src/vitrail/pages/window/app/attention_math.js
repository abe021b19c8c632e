// Attention as shares of one, from the bytes of an inspection: rows, columns, cells and what they amount to in words.
//
// A weight is (level / levels)² · the largest of its row. Rows are brought back to a sum of one, which rounding to
// levels has moved a little. Layers within windows or folds have groups: only tokens of one group see each other.

/**
 * The attention layers of an inspection with their arrays.
 * @param {{header: any, arrays: any}} inspection
 */
export function layersOf({ header, arrays }) {
  return header.attention_layers.map((info, index) => {
    const { data: weights, shape } = arrays[`weights.${index}`];
    const { data: groups } = arrays[`groups.${index}`];
    const { data: rowmax } = arrays[`rowmax.${index}`];
    const [count, heads, queries, keys] = shape;
    const layer = {
      ...info, index, weights, rowmax, groups, heads, queries, keys, groupCount: count,
      cells: info.grid[0] * info.grid[1], size: header.image_size,
    };
    layer.squares = Float32Array.from({ length: info.levels + 1 }, (_, level) => (level / info.levels) ** 2);
    layer.place = placesOf(layer);
    layer.sums = sumsOf(layer);
    return layer;
  });
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
  for (const one of heads) (layer.pooled ? addPooled : back ? addColumn : addRow)(layer, one, token, all, back);
  if (heads.length > 1) for (let at = 0; at < all.length; at++) all[at] /= heads.length;
  return { prefix: all.subarray(0, layer.prefix), cells: all.subarray(layer.prefix) };
}

function addRow(layer, head, token, all) {
  const { keys, queries, heads, groups, weights, squares, sums } = layer;
  const at = layer.place[token];
  if (at < 0) return;
  const group = Math.floor(at / keys);
  const line = (group * heads + head) * queries + (queries === 1 ? 0 : at % keys);
  for (let key = 0; key < keys; key++) {
    const seen = groups[group * keys + key];
    if (seen >= 0) all[seen] += squares[weights[line * keys + key]] / sums[line];
  }
}

function addColumn(layer, head, token, all) {
  const { keys, queries, heads, groups, weights, squares, sums } = layer;
  const at = layer.place[token];
  if (at < 0) return;
  const [group, key] = [Math.floor(at / keys), at % keys];
  for (let query = 0; query < keys; query++) {
    const asking = groups[group * keys + query];
    const line = (group * heads + head) * queries + (queries === 1 ? 0 : query);
    if (asking >= 0) all[asking] += squares[weights[line * keys + key]] / sums[line];
  }
}

// A large grid travels with its queries and keys averaged over blocks of cells: `pooled` has both grids.
function addPooled(layer, head, token, all, back) {
  const [qr, qc, kr, kc] = layer.pooled;
  const { prefix, weights, squares, sums, queries, keys } = layer;
  const [own, other, otherGrid] = back ? [[kr, kc], [qr, qc], [qr, qc]] : [[qr, qc], [kr, kc], [kr, kc]];
  const from = pooledToken(layer, token, own);
  const counts = new Int32Array(other[0] * other[1]);
  const to = Int32Array.from({ length: layer.cells }, (_, cell) => pooledToken(layer, prefix + cell, otherGrid) - prefix);
  for (const cell of to) counts[cell]++;
  const share = (place) => {
    const line = head * queries + (back ? place : from);
    return squares[weights[line * keys + (back ? from : place)]] / sums[line];
  };
  const ownCells = back && token >= prefix ? blockSize(layer, token, own) : 1; // a block's share is its cells' sum
  for (let place = 0; place < prefix; place++) all[place] += share(place) / ownCells;
  for (let cell = 0; cell < layer.cells; cell++) {
    all[prefix + cell] += share(prefix + to[cell]) / (back ? ownCells : counts[to[cell]]);
  }
}

function pooledToken({ grid: [rows, columns], prefix }, token, [high, wide]) {
  if (token < prefix) return token;
  const [r, c] = [Math.floor((token - prefix) / columns), (token - prefix) % columns];
  return prefix + Math.floor((r * high) / rows) * wide + Math.floor((c * wide) / columns);
}

function blockSize(layer, token, grid) {
  const mine = pooledToken(layer, token, grid);
  let count = 0;
  for (let cell = 0; cell < layer.cells; cell++) count += pooledToken(layer, layer.prefix + cell, grid) === mine;
  return count;
}

/** Height and width in pixels of a layer's grid: beyond the image where the last cells reach over it. */
export function extent({ grid, stride, fold, size }) {
  if (fold) return size;
  return size.map((side, axis) => (side > (grid[axis] - 1) * stride ? Math.max(side, grid[axis] * stride) : side));
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
  const length = extent(layer);
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
  const length = extent(layer);
  return cell.map((place, axis) => Math.round(((place + 0.5) * length[axis]) / layer.grid[axis])).join(",");
}

/** The number of the layer that the store names: the last for -1 or beyond. */
export const layerNumber = (layers, wished) => (wished >= 0 && wished < layers.length ? wished : layers.length - 1);
export const headNumber = (layer, wished) => (wished >= 0 && wished < layer.heads ? wished : -1);

/** Tokens that a token can see: those of its group. */
export function neighbours(layer, token) {
  const at = layer.place[token];
  if (layer.pooled || at < 0) return layer.groupCount === 1 ? [...layer.place.keys()] : [];
  const group = Math.floor(at / layer.keys);
  return [...layer.groups.subarray(group * layer.keys, (group + 1) * layer.keys)].filter((one) => one >= 0);
}

/**
 * What a row amounts to: how many cells give half of what goes to cells, their mean distance in cells, the share of
 * the token itself and of the prefix tokens, the largest cell, and how many cells have more than an even share.
 */
export function summarise(layer, shares, token) {
  const { cells, prefix } = shares;
  const total = cells.reduce((sum, one) => sum + one, 0);
  const order = [...cells.keys()].sort((a, b) => cells[b] - cells[a]);
  let [half, reached] = [0, 0];
  while (half < order.length && reached < total / 2) reached += cells[order[half++]];
  const own = cellOf(layer, token);
  const seen = neighbours(layer, token).filter((one) => one >= layer.prefix).length || cells.length;
  const even = total / seen;
  const distance = own ? meanDistance(layer, cells, own) / (total || 1) : null;
  return {
    half, total, distance, seen, even, top: order[0], topShare: cells[order[0]],
    self: own ? cells[token - layer.prefix] : prefix[token],
    prefix: prefix.reduce((sum, one) => sum + one, 0),
    above: order.filter((cell) => cells[cell] > even * 1.0001).length,
  };
}

function meanDistance({ grid: [, columns] }, cells, [r, c]) {
  let sum = 0;
  for (let cell = 0; cell < cells.length; cell++) {
    sum += cells[cell] * Math.hypot(Math.floor(cell / columns) - r, (cell % columns) - c);
  }
  return sum;
}
