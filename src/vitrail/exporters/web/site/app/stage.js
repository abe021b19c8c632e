// The photo as the model sees it, and over it where the model looks.
import { seenBox } from "./preprocess.js";

const LARGEST = 1024; // pixels of a side
// matplotlib's plasma, from what is looked at least to most
const PLASMA = "0d0887 46039f 7201a8 9c179e bd3786 d8576b ed7953 fb9f3a fdca26 f0f921";
const COLOURS = PLASMA.split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));

const photo = document.getElementById("photo");
const heat = document.getElementById("heat");
const hint = document.getElementById("hint");

// Draw what the model sees of an image or video of this size.
export function showImage(image, width, height, how) {
  const [left, top, wide, high] = seenBox(width, height, how);
  const share = Math.min(1, LARGEST / Math.max(wide, high));
  resizeCanvas(photo, Math.round(wide * share), Math.round(high * share));
  photo.getContext("2d").drawImage(image, left, top, wide, high, 0, 0, photo.width, photo.height);
  photo.hidden = false;
  hint.hidden = true;
}

export function describeStage(words) {
  photo.setAttribute("aria-label", words);
}

export function clearStage() {
  photo.hidden = heat.hidden = true;
  hint.hidden = false;
}

// Lay a map over the photo: {rows, columns, values, covers}, on its own scale; none hides it.
export function showHeat(map) {
  heat.hidden = !map || photo.hidden;
  if (heat.hidden) return;
  resizeCanvas(heat, photo.width, photo.height);
  const pen = heat.getContext("2d");
  pen.clearRect(0, 0, heat.width, heat.height);
  pen.imageSmoothingEnabled = true;
  pen.imageSmoothingQuality = "high";
  const [down, across] = map.covers;
  pen.drawImage(colourCells(map), 0, 0, heat.width * across, heat.height * down);
}

export function setOpacity(share) {
  heat.style.opacity = share;
}

function resizeCanvas(canvas, width, height) {
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = Math.max(width, 1);
    canvas.height = Math.max(height, 1);
  }
}

// A small canvas with a pixel for each cell: clear violet where least, opaque yellow where most.
function colourCells({ rows, columns, values }) {
  const low = Math.min(...values);
  const range = Math.max(Math.max(...values) - low, 1e-12);
  const cells = new ImageData(columns, rows);
  values.forEach((value, place) => {
    const level = (value - low) / range;
    const at = (0.15 + 0.85 * level) * (COLOURS.length - 1);
    const first = Math.min(Math.floor(at), COLOURS.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      const [from, to] = [COLOURS[first][channel], COLOURS[first + 1][channel]];
      cells.data[place * 4 + channel] = from + (at - first) * (to - from);
    }
    cells.data[place * 4 + 3] = 255 * level;
  });
  const canvas = document.createElement("canvas");
  resizeCanvas(canvas, columns, rows);
  canvas.getContext("2d").putImageData(cells, 0, 0);
  return canvas;
}

// A small square JPEG of an image, or of what is shown, for the photos of a few-shot class.
export function thumbnail(image = photo, side = 112) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const edge = Math.min(image.width, image.height);
  const from = [(image.width - edge) / 2, (image.height - edge) / 2, edge, edge];
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, side, side);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(image, ...from, 0, 0, side, side);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.85));
}
