// Pillow's resize in JavaScript, to equal bytes: the same filters, the same rounding to 22 bits after
// each of its two passes. What a canvas does when it scales is not equal to it.

const BITS = 22; // of a filter's weights, as in Pillow's Resample.c
const HALF = 1 << (BITS - 1);
const STRIP = 1 << 22; // pixels that are read at once

const FILTERS = {
  bilinear: {
    support: 1,
    at(x) {
      const distance = Math.abs(x);
      return distance < 1 ? 1 - distance : 0;
    },
  },
  bicubic: {
    support: 2,
    at(x) {
      const a = -0.5;
      const d = Math.abs(x);
      if (d < 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
      if (d < 2) return (((d - 5) * d + 8) * d - 4) * a;
      return 0;
    },
  },
  lanczos: {
    support: 3,
    at(x) {
      return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
    },
  },
};

function sinc(x) {
  if (x === 0) return 1;
  const angle = x * Math.PI;
  return Math.sin(angle) / angle;
}

// For each of `count` output pixels from `start` on: the first input pixel that it reads, how many,
// and their weights as integers.
function filterWeights(input, output, start, count, filter) {
  const scale = input / output;
  const stretch = Math.max(scale, 1);
  const support = filter.support * stretch;
  const most = Math.ceil(support) * 2 + 1;
  const first = new Int32Array(count);
  const length = new Int32Array(count);
  const weights = new Int32Array(count * most);
  const exact = new Float64Array(most);
  const inverse = 1 / stretch;
  for (let place = 0; place < count; place++) {
    const centre = (start + place + 0.5) * scale;
    const low = Math.max(Math.trunc(centre - support + 0.5), 0);
    const high = Math.min(Math.trunc(centre + support + 0.5), input) - low;
    let sum = 0;
    for (let x = 0; x < high; x++) {
      exact[x] = filter.at((x + low - centre + 0.5) * inverse);
      sum += exact[x];
    }
    for (let x = 0; x < high; x++) {
      const share = sum === 0 ? exact[x] : exact[x] / sum;
      weights[place * most + x] = Math.trunc((share < 0 ? -0.5 : 0.5) + share * (1 << BITS));
    }
    first[place] = low;
    length[place] = high;
  }
  return { first, length, weights, most };
}

// One weight of 1: the input pixel that Pillow takes, which adds up its steps.
function nearestWeights(input, output, start, count) {
  const step = input / output;
  const first = new Int32Array(count);
  let at = step * 0.5;
  for (let place = 0; place < start + count; place++) {
    if (place >= start) first[place - start] = Math.min(Math.trunc(at), input - 1);
    at += step;
  }
  const one = 1 << BITS;
  return { first, length: first.map(() => 1), weights: first.map(() => one), most: 1 };
}

function weightsFor(name, ...sizes) {
  if (name === "nearest") return nearestWeights(...sizes);
  return filterWeights(...sizes, FILTERS[name]);
}

function clip(sum) {
  const value = sum >> BITS;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

// source: {width, height, channels, read(top, rows) -> bytes of these rows, channels together}.
// size: [width, height] after resizing. box: [left, top, width, height] of it that is wanted.
// verticalFirst: from version 13 on Pillow begins with the pass that shrinks the height where the
// height loses more than twice as many pixels as the width.
// Returns bytes (height, width, channels) of the box.
export function resize(source, size, box, filter, verticalFirst = true) {
  const { channels } = source;
  const [left, top, width, height] = box;
  const across = weightsFor(filter, source.width, size[0], left, width);
  const down = weightsFor(filter, source.height, size[1], top, height);
  const begin = down.first[0];
  const end = down.first[height - 1] + down.length[height - 1];
  const lost = source.height - size[1];
  const tall = verticalFirst && lost > 0 && lost > 2 * (source.width - size[0]);
  const line = (tall ? source.width : width) * channels;
  const between = new Uint8Array((end - begin) * line);
  const rows = Math.max(1, Math.floor(STRIP / source.width));
  for (let at = begin; at < end; at += rows) {
    const strip = source.read(at, Math.min(rows, end - at));
    const place = (at - begin) * line;
    if (tall) between.set(strip, place);
    else passAcross(strip, source.width, channels, across, between, place);
  }
  const shrunk = passDown(between, begin, line, down, height);
  if (!tall) return shrunk;
  const out = new Uint8Array(height * width * channels);
  passAcross(shrunk, source.width, channels, across, out, 0);
  return out;
}

function passAcross(strip, width, channels, across, out, start) {
  const line = width * channels;
  for (let from = 0, to = start; from < strip.length; from += line) {
    to = channels === 3 ? rowOfThree(strip, from, across, out, to) : rowOfOne(strip, from, across, out, to);
  }
}

function rowOfThree(strip, line, { first, length, weights, most }, out, to) {
  for (let x = 0; x < first.length; x++) {
    let red = HALF;
    let green = HALF;
    let blue = HALF;
    let from = line + first[x] * 3;
    const end = x * most + length[x];
    for (let tap = x * most; tap < end; tap++, from += 3) {
      const weight = weights[tap];
      red += strip[from] * weight;
      green += strip[from + 1] * weight;
      blue += strip[from + 2] * weight;
    }
    out[to++] = clip(red);
    out[to++] = clip(green);
    out[to++] = clip(blue);
  }
  return to;
}

function rowOfOne(strip, line, { first, length, weights, most }, out, to) {
  for (let x = 0; x < first.length; x++) {
    let sum = HALF;
    for (let tap = 0; tap < length[x]; tap++) {
      sum += strip[line + first[x] + tap] * weights[x * most + tap];
    }
    out[to++] = clip(sum);
  }
  return to;
}

function passDown(narrow, begin, line, down, height) {
  const { first, length, weights, most } = down;
  const out = new Uint8Array(height * line);
  for (let y = 0; y < height; y++) {
    const from = (first[y] - begin) * line;
    for (let x = 0; x < line; x++) {
      let sum = HALF;
      for (let tap = 0; tap < length[y]; tap++) {
        sum += narrow[from + tap * line + x] * weights[y * most + tap];
      }
      out[y * line + x] = clip(sum);
    }
  }
  return out;
}
