// Drawing: viridis overlays that leave the photo visible, outlines of cells and windows, and files of what is shown.
import { element, svg } from "./elements.js";

const STOPS = [
  [68, 1, 84], [72, 40, 120], [62, 73, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121],
  [110, 206, 88], [181, 222, 43], [253, 231, 37],
];
const LEVELS = 256;
const COLOURS = Uint8Array.from({ length: LEVELS * 3 }, (_, at) => {
  const [level, channel] = [Math.floor(at / 3) / (LEVELS - 1), at % 3];
  const place = Math.min(level * (STOPS.length - 1), STOPS.length - 1 - 1e-6);
  const before = Math.floor(place);
  return STOPS[before][channel] + (STOPS[before + 1][channel] - STOPS[before][channel]) * (place - before);
});
const PIXELATED_BELOW = 50; // pixels of an image, such as a digit, whose pixels stay sharp when it is enlarged

/** Viridis at 0 to 1, as [red, green, blue]. */
export function colour(share) {
  const at = Math.round(Math.min(Math.max(share, 0), 1) * (LEVELS - 1)) * 3;
  return [COLOURS[at], COLOURS[at + 1], COLOURS[at + 2]];
}

/** A CSS gradient of the scale, its opacity rising as in overlays. */
export function gradient() {
  const stops = Array.from({ length: 11 }, (_, step) => `rgb(${colour(step / 10).join(" ")} / ${opacityAt(step / 10)})`);
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

// Colour and opacity rise together: what is not looked at stays as the photo is.
const opacityAt = (share) => 0.05 + 0.95 * share;

// Colour and opacity of every level as one number each: small maps are painted by the hundred.
const little = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
const tables = new Map();

function table(opacity) {
  if (!tables.has(opacity)) {
    const bytes = new DataView(new ArrayBuffer(LEVELS * 4));
    for (let level = 0; level < LEVELS; level++) {
      COLOURS.subarray(level * 3, level * 3 + 3).forEach((one, channel) => bytes.setUint8(level * 4 + channel, one));
      bytes.setUint8(level * 4 + 3, 255 * opacity * opacityAt(level / (LEVELS - 1)));
    }
    tables.set(opacity, Uint32Array.from({ length: LEVELS }, (_, level) => bytes.getUint32(level * 4, little)));
  }
  return tables.get(opacity);
}

/**
 * One pixel for each cell: viridis of value / top, as opaque as it is high.
 * @param {ArrayLike<number>} values
 * @param {number[]} grid rows and columns
 */
export function cellCanvas(values, grid, { top = largest(values), opacity = 1, canvas = null } = {}) {
  const made = canvas ?? element("canvas");
  if (made.height !== grid[0] || made.width !== grid[1]) [made.height, made.width] = grid;
  const context = made.getContext("2d");
  const image = context.createImageData(grid[1], grid[0]);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = table(opacity);
  const scale = top > 0 ? (LEVELS - 1) / top : 0;
  for (let cell = 0; cell < values.length; cell++) {
    pixels[cell] = colours[Math.min(Math.max(Math.round(values[cell] * scale), 0), LEVELS - 1)];
  }
  context.putImageData(image, 0, 0);
  return made;
}

function largest(values) {
  let found = 0;
  for (let cell = 0; cell < values.length; cell++) if (values[cell] > found) found = values[cell];
  return found;
}

/** The pixels that the model sees, as a canvas. */
export function photoCanvas({ data, shape: [height, width, channels] }) {
  const canvas = element("canvas", { width, height });
  const image = canvas.getContext("2d").createImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      image.data[pixel * 4 + channel] = data[pixel * channels + Math.min(channel, channels - 1)];
    }
    image.data[pixel * 4 + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Draws a photo, or nothing, and a map over it, filling a canvas; `at` has the map's `extent` and the image's `size`. */
export function paint(canvas, photo, cells, at) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  if (photo) {
    context.imageSmoothingEnabled = Math.max(photo.width, photo.height) >= PIXELATED_BELOW;
    context.drawImage(photo, 0, 0, width, height);
  }
  if (!cells) return;
  const [high, wide] = [(at.extent[0] * height) / at.size[0], (at.extent[1] * width) / at.size[1]];
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, 0, 0, wide, high);
}

/** Left, top, width and height of a cell in pixels of the image. */
export function cellBox([r, c], grid, extent) {
  const [high, wide] = [extent[0] / grid[0], extent[1] / grid[1]];
  return [c * wide, r * high, wide, high];
}

/** A path of the lines between cells, or between windows of `every` cells from `start`. */
export function gridPath(grid, extent, every = [1, 1], start = [0, 0]) {
  const [high, wide] = [extent[0] / grid[0], extent[1] / grid[1]];
  let path = "";
  for (let r = start[0] || every[0]; r < grid[0]; r += every[0]) path += `M0 ${r * high}H${extent[1]}`;
  for (let c = start[1] || every[1]; c < grid[1]; c += every[1]) path += `M${c * wide} 0V${extent[0]}`;
  return path;
}

/** A path around a set of cells: the sides that only one of two neighbours has. */
export function outlinePath(cells, grid, extent) {
  const [high, wide] = [extent[0] / grid[0], extent[1] / grid[1]];
  const inside = new Set(cells);
  const has = (r, c) => r >= 0 && c >= 0 && r < grid[0] && c < grid[1] && inside.has(r * grid[1] + c);
  let path = "";
  for (const cell of inside) {
    const [r, c] = [Math.floor(cell / grid[1]), cell % grid[1]];
    if (!has(r - 1, c)) path += `M${c * wide} ${r * high}h${wide}`;
    if (!has(r + 1, c)) path += `M${c * wide} ${(r + 1) * high}h${wide}`;
    if (!has(r, c - 1)) path += `M${c * wide} ${r * high}v${high}`;
    if (!has(r, c + 1)) path += `M${(c + 1) * wide} ${r * high}v${high}`;
  }
  return path;
}

const SIDE = 512; // pixels of the image's longer side in a file
const MARGIN = 16;
const FOOT = 94;
const LONGEST = 64; // letters of a line below the picture

/**
 * What is shown as an SVG of its own: photo, map, marks, title and colour bar. Colours are written out, because a
 * file has no stylesheet.
 * @param {{photo: HTMLCanvasElement, cells: HTMLCanvasElement, extent: number[], size: number[], marks: {path: string, colour: string,
 *   width: number}[], title: string, about: string, low: string, high: string}} shown `about` names the model and the photo
 */
export function figure({ photo, cells, extent, size, marks, title, about, low, high }) {
  const [tall, wide] = size;
  const scale = SIDE / Math.max(tall, wide);
  const [width, height] = [wide * scale, tall * scale];
  const smooth = Math.max(tall, wide) >= PIXELATED_BELOW;
  const image = (canvas, box, sharp) => svg("image", {
    href: canvas.toDataURL("image/png"), width: box[1], height: box[0], preserveAspectRatio: "none",
    style: sharp ? { "image-rendering": "pixelated" } : {},
  });
  const stops = Array.from({ length: 11 }, (_, at) => svg("stop", {
    offset: at / 10, "stop-color": `rgb(${colour(at / 10)})`, "stop-opacity": opacityAt(at / 10),
  }));
  const label = (words, x, y, anchor, size = 13) =>
    svg("text", { x, y, "text-anchor": anchor, "font-size": size, "font-family": "sans-serif", fill: "#1b2430" },
      words.length > LONGEST ? `${words.slice(0, LONGEST - 1)}…` : words);
  const root = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg", width: width + 2 * MARGIN, height: height + MARGIN + FOOT,
    viewBox: `0 0 ${width + 2 * MARGIN} ${height + MARGIN + FOOT}`,
  });
  root.append(
    svg("defs", {},
      svg("linearGradient", { id: "scale" }, stops),
      svg("clipPath", { id: "image" }, svg("rect", { width: wide, height: tall }))),
    svg("rect", { width: "100%", height: "100%", fill: "#ffffff" }),
    svg("g", { transform: `translate(${MARGIN} ${MARGIN}) scale(${scale})`, "clip-path": "url(#image)" },
      image(photo, [tall, wide], !smooth), cells ? image(cells, extent, true) : null,
      marks.map(({ path, colour: stroke, width: line }) =>
        svg("path", { d: path, fill: "none", stroke, "stroke-width": line / scale }))),
    label(title, MARGIN, height + MARGIN + 24, "start", 15),
    label(about, MARGIN, height + MARGIN + 44, "start"),
    svg("rect", { x: MARGIN, y: height + MARGIN + 56, width, height: 10, rx: 3, fill: "url(#scale)", stroke: "#dfe3e9" }),
    label(low, MARGIN, height + MARGIN + 82, "start"),
    label(high, MARGIN + width, height + MARGIN + 82, "end"),
  );
  return root;
}

/** Saves an SVG element as a file. */
export function saveSvg(root, name) {
  save(new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" }), `${name}.svg`);
}

/** Saves an SVG element as a PNG, twice as large. */
export async function savePng(root, name) {
  const [width, height] = ["width", "height"].map((side) => Math.round(Number(root.getAttribute(side))));
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = element("canvas", { width: width * 2, height: height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, width * 2, height * 2);
    save(await new Promise((resolve) => canvas.toBlob(resolve, "image/png")), `${name}.png`);
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Hands a file to the browser. */
export function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
