// From pixels to what the model reads, as its passport says: resized, cropped and normalised exactly
// as Vitrail does in Python (data/framing.py). Nothing here needs a browser.
import { resize } from "./resize.js";

// [width, height] of an image after resizing and before the crop.
export function resizedSize(width, height, how) {
  const target = how.resize ?? how.size;
  if (how.resize === null || how.squeeze) return [target[1], target[0]];
  if (width * target[0] <= height * target[1]) {
    return [target[1], Math.max(Math.trunc((target[1] * height) / width), target[0])];
  }
  return [Math.max(Math.trunc((target[0] * width) / height), target[1]), target[0]];
}

// [left, top, width, height] of the centre crop of a resized image.
export function cropBox(size, how) {
  const [height, width] = how.size;
  const half = how.crop === "floored" ? (margin) => Math.floor(margin / 2) : halfToEven;
  return [half(size[0] - width), half(size[1] - height), width, height];
}

function halfToEven(margin) {
  const half = Math.floor(margin / 2);
  return margin % 2 === 0 || half % 2 === 0 ? half : half + 1;
}

// The part of the image itself that the model sees: [left, top, width, height], in its own pixels.
export function seenBox(width, height, how) {
  const size = resizedSize(width, height, how);
  const [left, top, wide, high] = cropBox(size, how);
  const across = width / size[0];
  const down = height / size[1];
  return [left * across, top * down, wide * across, high * down];
}

// RGBA bytes, already on white, as RGB or as grey (ITU-R 601, Pillow's integers).
export function toChannels(rgba, channels) {
  const count = rgba.length / 4;
  const out = new Uint8Array(count * channels);
  for (let pixel = 0; pixel < count; pixel++) {
    const from = pixel * 4;
    if (channels === 3) {
      out[pixel * 3] = rgba[from];
      out[pixel * 3 + 1] = rgba[from + 1];
      out[pixel * 3 + 2] = rgba[from + 2];
    } else {
      const [red, green, blue] = [rgba[from], rgba[from + 1], rgba[from + 2]];
      out[pixel] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
    }
  }
  return out;
}

// Bytes (height, width, channels) of what the model sees. source: {width, height, read(top, rows)}
// gives RGBA bytes on white.
export function frame(source, how) {
  const channels = how.mean.length;
  const size = resizedSize(source.width, source.height, how);
  const read = (top, rows) => toChannels(source.read(top, rows), channels);
  const given = { width: source.width, height: source.height, channels, read };
  return resize(given, size, cropBox(size, how), how.interpolation, how.vertical_first);
}

// Float32Array (channels, height, width): (value / 255 - mean) / std, in the order of the model's
// channels, rounded as in Python.
export function normalise(pixels, how) {
  const channels = how.mean.length;
  const area = how.size[0] * how.size[1];
  const out = new Float32Array(channels * area);
  for (let channel = 0; channel < channels; channel++) {
    const factor = Math.fround(1 / (255 * how.std[channel]));
    const offset = Math.fround(-how.mean[channel] / how.std[channel]);
    const table = Float32Array.from({ length: 256 }, (_, value) => Math.fround(value * factor) + offset);
    const from = how.channel_order === "bgr" ? channels - 1 - channel : channel;
    for (let pixel = 0; pixel < area; pixel++) {
      out[channel * area + pixel] = table[pixels[pixel * channels + from]];
    }
  }
  return out;
}

// The image by which a device tests itself when it opens the model.
export function testPattern(how) {
  const channels = how.mean.length;
  const [height, width] = how.size;
  const pixels = new Uint8Array(height * width * channels);
  let place = 0;
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      for (let c = 0; c < channels; c++) pixels[place++] = (7 * x + 13 * y + 29 * c + ((x * y) >> 3)) & 255;
    }
  }
  return pixels;
}
