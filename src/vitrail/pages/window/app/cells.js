// Sets of grid cells: as text for the address, as a brush paints them, and from one grid to another.

/**
 * Cells by their numbers in reading order, with runs: short enough for an address.
 * >>> cellsToText([3, 4, 5, 9])
 * "3-5.9"
 */
export function cellsToText(cells) {
  const sorted = [...new Set(cells)].sort((a, b) => a - b);
  const runs = [];
  for (const cell of sorted) {
    const last = runs.at(-1);
    if (last && last[1] === cell - 1) last[1] = cell;
    else runs.push([cell, cell]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(".");
}

/** The other way; what is not a cell below `count` is left out. */
export function textToCells(words, count) {
  const found = new Set();
  for (const run of words.split(".")) {
    const [from, to = from] = run.split("-").map(Number);
    if (!run || !Number.isInteger(from) || !Number.isInteger(to)) continue;
    for (let cell = Math.max(from, 0); cell <= Math.min(to, count - 1); cell++) found.add(cell);
  }
  return found;
}

/** Cells of a square brush of `size` cells a side around one cell. */
export function brush([row, column], size, [rows, columns]) {
  const before = Math.floor((size - 1) / 2);
  const found = [];
  for (let r = row - before; r < row - before + size; r++) {
    for (let c = column - before; c < column - before + size; c++) {
      if (r >= 0 && r < rows && c >= 0 && c < columns) found.push(r * columns + c);
    }
  }
  return found;
}

/** Rows and columns of cells, as the server takes them. */
export const toPairs = (cells, [, columns]) =>
  [...cells].sort((a, b) => a - b).map((cell) => [Math.floor(cell / columns), cell % columns]);

/**
 * The grids of a model's layers that a hand can paint on, coarsest last, each once; `usual` is the one to begin with.
 */
export function paintGrids(layers) {
  const grids = new Map();
  for (const { grid } of layers) grids.set(grid.join("x"), grid);
  const all = [...grids.values()].sort((a, b) => b[0] * b[1] - a[0] * a[1]);
  const fitting = all.filter(([rows, columns]) => Math.max(rows, columns) <= 16);
  return { all, usual: fitting[0] ?? all.at(-1) };
}

/** The most relevant cells of a map, as many as `share` of all: numbers in reading order. */
export function strongest(map, share) {
  const flat = map.flat();
  const order = [...flat.keys()].sort((a, b) => flat[b] - flat[a] || a - b);
  return order.slice(0, Math.round(share * flat.length));
}

/** As many cells, drawn from a seed: what an explanation has to be better than. */
export function drawCells(count, share, seed) {
  const order = Array.from({ length: count }, (_, cell) => cell);
  let value = seed >>> 0;
  for (let at = count - 1; at > 0; at--) {
    value = (Math.imul(value, 1664525) + 1013904223) >>> 0;
    const other = Math.floor((value / 2 ** 32) * (at + 1));
    [order[at], order[other]] = [order[other], order[at]];
  }
  return order.slice(0, Math.round(share * count));
}
