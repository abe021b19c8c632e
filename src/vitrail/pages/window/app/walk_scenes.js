// Scenes of the walk: what happens to the picture in a step, drawn on a canvas at a time from 0 to 1.
import { neighbours, row } from "./attention_math.js";
import { cellCanvas, colour, outlinePath } from "./draw.js";

const MARK = "#d1495b";
const GROUP = "#f2c14e";
const FEW = 16; // cells a side that can have numbers in them

/**
 * @typedef {{context: CanvasRenderingContext2D, width: number, height: number, photo: HTMLCanvasElement, size: number[],
 *   grid: number[], extent: number[], cell: number[] | null, layer: any, head: number, token: number,
 *   row: {tokens: number[], numbers: number[]} | null, fine: number[] | null}} Scene
 * `size` is the image in pixels, `extent` what the grid covers, `cell` the chosen patch (null for a prefix token); `row`
 * has numbers over keys, `fine` is the grid before this one
 */

/** A function of time for each kind of scene. */
export const SCENES = { photo: plain, lift, tokens, one, heat, attention, gather, windows, merge, fold, kernel, pool };

const ease = (t) => 1 - (1 - t) ** 3;
// Time of the part `at` (0 to 1) of a wave that takes `spread` of the whole.
const wave = (t, at, spread = 0.6) => ease(Math.min(Math.max((t - at * spread) / (1 - spread), 0), 1));

function place(scene, [r, c], grid = scene.grid) {
  const [wide, high] = [(scene.extent[1] / scene.size[1]) * scene.width, (scene.extent[0] / scene.size[0]) * scene.height];
  return [(c * wide) / grid[1], (r * high) / grid[0], wide / grid[1], high / grid[0]];
}

function source({ size, extent, photo: image }, [r, c], grid) {
  const [high, wide] = [(extent[0] / grid[0]) * (image.height / size[0]), (extent[1] / grid[1]) * (image.width / size[1])];
  return [c * wide, r * high, wide, high];
}

function photo(scene, t, alpha = 1) {
  const { context, width, height } = scene;
  context.globalAlpha = alpha;
  context.imageSmoothingEnabled = Math.max(...scene.size) >= 100;
  context.drawImage(scene.photo, 0, 0, width, height);
  context.globalAlpha = 1;
}

function plain(scene, t) {
  photo(scene, t);
  outline(scene, scene.cell);
}

function outline(scene, cell, colour = MARK, grid = scene.grid) {
  if (!cell) return;
  const { context } = scene;
  const [x, y, wide, high] = place(scene, cell, grid);
  context.lineWidth = 8;
  context.strokeStyle = "#fff";
  context.strokeRect(x, y, wide, high);
  context.lineWidth = 4;
  context.strokeStyle = colour;
  context.strokeRect(x, y, wide, high);
}

function lines(scene, grid, alpha = 0.5, thick = 1.5) {
  const { context } = scene;
  context.globalAlpha = alpha;
  context.strokeStyle = "#fff";
  context.lineWidth = thick;
  context.beginPath();
  for (let r = 0; r <= grid[0]; r++) {
    const [x, y] = place(scene, [r, 0], grid);
    context.moveTo(x, y);
    context.lineTo(place(scene, [r, grid[1]], grid)[0], y);
  }
  for (let c = 0; c <= grid[1]; c++) {
    const [x, y] = place(scene, [0, c], grid);
    context.moveTo(x, y);
    context.lineTo(x, place(scene, [grid[0], c], grid)[1]);
  }
  context.stroke();
  context.globalAlpha = 1;
}

// The patches part from each other, from the first to the last.
function lift(scene, t) {
  const { context, grid, cell } = scene;
  context.imageSmoothingEnabled = Math.max(...scene.size) >= 100;
  const count = grid[0] * grid[1];
  const chosen = cell ? cell[0] * grid[1] + cell[1] : -1;
  const draw = (number) => {
    const at = [Math.floor(number / grid[1]), number % grid[1]];
    const lifted = wave(t, number / count);
    const [x, y, wide, high] = place(scene, at);
    const gap = 0.09 * lifted * wide;
    const up = number === chosen ? 0.16 * lifted * high : 0;
    context.drawImage(scene.photo, ...source(scene, at, grid), x + gap, y + gap - up, wide - 2 * gap, high - 2 * gap);
    if (number !== chosen) return;
    context.lineWidth = 4;
    context.strokeStyle = MARK;
    context.strokeRect(x + gap, y + gap - up, wide - 2 * gap, high - 2 * gap);
  };
  for (let number = 0; number < count; number++) if (number !== chosen) draw(number);
  if (chosen >= 0) draw(chosen);
}

// Every patch becomes one token: its mean colour, with its number where there is room.
function tokens(scene, t) {
  const { context, grid, layer } = scene;
  scene.means ??= meanColours(scene);
  const count = grid[0] * grid[1];
  for (let number = 0; number < count; number++) {
    const at = [Math.floor(number / grid[1]), number % grid[1]];
    const turned = wave(t, number / count);
    const [x, y, wide, high] = place(scene, at);
    const gap = 0.1 * wide;
    context.imageSmoothingEnabled = true;
    context.drawImage(scene.photo, ...source(scene, at, grid), x + gap, y + gap, wide - 2 * gap, high - 2 * gap);
    context.globalAlpha = turned;
    context.fillStyle = scene.means[number];
    context.beginPath();
    context.roundRect(x + gap, y + gap, wide - 2 * gap, high - 2 * gap, 0.18 * wide);
    context.fill();
    if (Math.max(...grid) <= FEW) label(context, String(number + (layer?.prefix ?? 0)), x + wide / 2, y + high / 2, 0.34 * high);
    context.globalAlpha = 1;
  }
  outline(scene, scene.cell);
}

function label(context, words, x, y, size) {
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = size / 5;
  context.strokeStyle = "rgb(0 0 0 / .55)";
  context.strokeText(words, x, y);
  context.fillStyle = "#fff";
  context.fillText(words, x, y);
}

function meanColours({ photo: image, grid }) {
  const small = document.createElement("canvas");
  [small.height, small.width] = grid;
  const context = small.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, grid[1], grid[0]);
  const { data } = context.getImageData(0, 0, grid[1], grid[0]);
  return Array.from({ length: grid[0] * grid[1] }, (_, cell) => `rgb(${data.slice(cell * 4, cell * 4 + 3).join(" ")})`);
}

// One patch alone: what happens to every token by itself.
function one(scene, t) {
  photo(scene, t, 1 - 0.6 * ease(t));
  if (!scene.cell) return;
  const at = place(scene, scene.cell);
  scene.context.drawImage(scene.photo, ...source(scene, scene.cell, scene.grid), ...at);
  outline(scene, scene.cell);
}

function shares({ layer, head, token }) {
  return row(layer, head, token).cells;
}

// Where the chosen token looks: viridis over the photo.
function attention(scene, t) {
  const { context, layer } = scene;
  photo(scene, t);
  if (!layer) return;
  scene.over ??= cellCanvas(shares(scene), layer.grid);
  context.globalAlpha = 0.85 * ease(t);
  context.imageSmoothingEnabled = false;
  const [x, y] = place(scene, layer.grid, layer.grid);
  context.drawImage(scene.over, 0, 0, x, y);
  context.globalAlpha = 1;
  outline(scene, scene.cell);
}

// Numbers over keys before the softmax: the lowest dark, the highest bright.
function heat(scene, t) {
  const { context, layer, row: given } = scene;
  photo(scene, t);
  if (!layer || !given) return outline(scene, scene.cell);
  const known = given.numbers.filter((value) => value > -50); // what is kept apart has -100
  const [low, high] = [Math.min(...known), Math.max(...known)];
  given.tokens.forEach((token, at) => {
    const cell = token - layer.prefix;
    if (cell < 0) return;
    const share = Math.max((given.numbers[at] - low) / (high - low || 1), 0);
    context.globalAlpha = 0.85 * ease(t);
    context.fillStyle = `rgb(${colour(share).join(" ")})`;
    context.fillRect(...place(scene, [Math.floor(cell / layer.grid[1]), cell % layer.grid[1]], layer.grid));
  });
  context.globalAlpha = 1;
  outline(scene, scene.cell);
}

// What the best keys give flows to the query, as thick as its share.
function gather(scene, t) {
  attention(scene, 1);
  const { context, layer, cell } = scene;
  if (!layer) return;
  scene.shares ??= shares(scene);
  const best = [...scene.shares.keys()].sort((a, b) => scene.shares[b] - scene.shares[a]).slice(0, 8);
  const middle = (at) => {
    const [x, y, wide, high] = place(scene, at, layer.grid);
    return [x + wide / 2, y + high / 2];
  };
  const end = cell ? middle(cell) : [scene.width / 2, 0];
  const top = scene.shares[best[0]] || 1;
  for (const key of best) {
    const start = middle([Math.floor(key / layer.grid[1]), key % layer.grid[1]]);
    const reached = start.map((from, axis) => from + (end[axis] - from) * ease(t));
    context.lineWidth = 1.5 + (10 * scene.shares[key]) / top;
    context.lineCap = "round";
    context.strokeStyle = "rgb(255 255 255 / .9)";
    context.beginPath();
    context.moveTo(...start);
    context.lineTo(...reached);
    context.stroke();
  }
  outline(scene, cell);
}

// Windows on the grid; a shifted one moves to its place.
function windows(scene, t) {
  const { context, layer } = scene;
  photo(scene, t, 0.75);
  if (!layer?.window) return outline(scene, scene.cell);
  const [high, wide] = layer.window;
  const moved = ease(t);
  const seen = new Set(neighbours(layer, scene.token).map((token) => token - layer.prefix));
  context.fillStyle = GROUP;
  context.globalAlpha = 0.45 * moved;
  for (const cell of seen) context.fillRect(...place(scene, [Math.floor(cell / layer.grid[1]), cell % layer.grid[1]], layer.grid));
  context.globalAlpha = 0.95;
  context.strokeStyle = "#fff";
  context.lineWidth = 3;
  context.beginPath();
  for (let r = layer.shift[0] * moved; r <= layer.grid[0] + 0.01; r += high) {
    const [x, y] = place(scene, [r, 0], layer.grid);
    context.moveTo(x, y);
    context.lineTo(place(scene, [r, layer.grid[1]], layer.grid)[0], y);
  }
  for (let c = layer.shift[1] * moved; c <= layer.grid[1] + 0.01; c += wide) {
    const [x, y] = place(scene, [0, c], layer.grid);
    context.moveTo(x, y);
    context.lineTo(x, place(scene, [layer.grid[0], c], layer.grid)[1]);
  }
  context.stroke();
  const [right, bottom] = place(scene, layer.grid, layer.grid);
  context.globalAlpha = moved;
  context.lineWidth = 6;
  context.strokeStyle = GROUP;
  context.stroke(new Path2D(outlinePath([...seen], layer.grid, [bottom, right])));
  context.globalAlpha = 1;
  outline(scene, scene.cell);
}

// Two by two cells become one: the grid of the layer, and the finer one before it.
function merge(scene, t) {
  photo(scene, t, 0.85);
  const fine = scene.fine ?? scene.grid.map((side) => side * 2);
  lines(scene, fine, 0.6 * (1 - ease(t)), 1.2);
  lines(scene, scene.grid, 0.4 + 0.5 * ease(t), 2.5);
  if (!scene.cell) return;
  const [r, c] = scene.cell;
  if (t < 0.5) for (const at of [[0, 0], [0, 1], [1, 0], [1, 1]]) outline(scene, [2 * r + at[0], 2 * c + at[1]], GROUP, fine);
  else outline(scene, scene.cell);
}

// The cells that meet in attention across folds: those at the same place of every patch.
function fold(scene, t) {
  const { context, layer } = scene;
  photo(scene, t, 0.8);
  if (!layer?.fold) return outline(scene, scene.cell);
  lines(scene, layer.grid.map((side, axis) => side / layer.fold[axis]), 0.9, 2);
  const met = neighbours(layer, scene.token);
  context.fillStyle = GROUP;
  met.forEach((token, number) => {
    context.globalAlpha = 0.75 * wave(t, number / met.length);
    const cell = token - layer.prefix;
    context.fillRect(...place(scene, [Math.floor(cell / layer.grid[1]), cell % layer.grid[1]], layer.grid));
  });
  context.globalAlpha = 1;
  outline(scene, scene.cell);
}

// A kernel of three by three cells goes over the map, and stops at the chosen cell.
function kernel(scene, t) {
  const { context, grid } = scene;
  photo(scene, t, 0.85);
  lines(scene, grid, 0.35, 1);
  const end = scene.cell ?? grid.map((side) => Math.floor(side / 2));
  const at = t >= 1 ? end : [Math.max(0, end[0] - 2) + Math.floor(t * 3) * (end[0] > 1 ? 1 : 0), Math.floor((t * 3 * grid[1]) % grid[1])];
  const clipped = at.map((from, axis) => Math.min(from, grid[axis] - 1));
  const [x, y, wide, high] = place(scene, [clipped[0] - 1, clipped[1] - 1]);
  context.fillStyle = GROUP;
  context.globalAlpha = 0.3;
  context.fillRect(x, y, 3 * wide, 3 * high);
  context.globalAlpha = 1;
  context.lineWidth = 4;
  context.strokeStyle = GROUP;
  context.strokeRect(x, y, 3 * wide, 3 * high);
  outline(scene, clipped);
}

// All cells go into one vector.
function pool(scene, t) {
  const { context, grid, width, height } = scene;
  scene.means ??= meanColours(scene);
  const size = Math.min(width, height) / 7;
  const [x1, y1] = [width / 2 - size / 2, height / 2 - size / 2];
  const moved = ease(t);
  scene.means.forEach((colour, number) => {
    const [x, y, wide, high] = place(scene, [Math.floor(number / grid[1]), number % grid[1]]);
    const between = (from, to) => from + (to - from) * moved;
    context.globalAlpha = 1 - 0.75 * moved;
    context.fillStyle = colour;
    context.fillRect(between(x, x1), between(y, y1), between(wide, size), between(high, size));
  });
  context.globalAlpha = 1;
  context.lineWidth = 4;
  context.strokeStyle = MARK;
  if (moved > 0.9) context.strokeRect(x1, y1, size, size);
}
