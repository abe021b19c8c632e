// The model in a thread of its own: opens it on the fastest backend that computes what it should, and
// turns photos into outputs, one after the other.
import { frame, normalise, testPattern } from "./preprocess.js";

const ROOT = new URL("../", import.meta.url).href;
const WHITE = "#fff";
const FAST = 100; // milliseconds for an image: no other backend is tried

let facts;
let opened; // {backend, threads, runtime, session, ms}
let queue = Promise.resolve();

self.onmessage = ({ data }) => {
  queue = queue.then(() => answer(data));
};

async function answer({ id, call, value }) {
  try {
    const result = call === "open" ? await open(value) : await infer(value);
    self.postMessage({ id, result });
  } catch (error) {
    self.postMessage({ id, problem: String(error?.message ?? error) });
  }
}

async function open(given) {
  facts = given;
  const model = await download(`${ROOT}model.onnx`, facts.bytes);
  self.postMessage({ opening: true });
  let problem;
  for (const backend of await backends()) {
    try {
      const next = await start(backend, model);
      const slower = opened && opened.ms <= next.ms ? next : opened;
      if (slower !== next) opened = next;
      await slower?.session.release();
    } catch (error) {
      problem = error;
    }
    if (opened?.ms < FAST) break;
  }
  if (!opened) throw problem;
  return { backend: opened.backend, threads: opened.threads };
}

async function download(address, size) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  const bytes = new Uint8Array(size);
  let place = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes.set(value, place);
    place += value.length;
    self.postMessage({ share: place / size });
  }
  return bytes;
}

async function backends() {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  const software = adapter?.isFallbackAdapter || adapter?.info?.isFallbackAdapter;
  return adapter && !software ? ["webgpu", "wasm"] : ["wasm"];
}

async function start(backend, model) {
  const runtime = await import(`${ROOT}runtime/${facts.runtime_files[backend][0]}`);
  const threads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency || 1, 4) : 1;
  runtime.env.wasm.numThreads = threads;
  runtime.env.wasm.wasmPaths = `${ROOT}runtime/`;
  runtime.env.logLevel = "error";
  const options = { executionProviders: [backend], logSeverityLevel: 3 };
  const session = await runtime.InferenceSession.create(model, options);
  const started = { backend, threads, runtime, session };
  if (!(await computesRightly(started))) {
    await session.release();
    throw new Error("differs");
  }
  const began = performance.now(); // the first run, which compiles, is over
  await run(started, testPattern(facts.preprocessing));
  return { ...started, ms: performance.now() - began };
}

// The outputs for a known image must be near those that ONNX Runtime gave when the page was made.
async function computesRightly(started) {
  const { output, values, tolerance } = facts.test;
  const found = (await run(started, testPattern(facts.preprocessing)))[output].data;
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1);
  return values.every((value, place) => Math.abs(found[place] - value) <= tolerance * largest);
}

function run({ runtime, session }, pixels) {
  const how = facts.preprocessing;
  const shape = [1, how.mean.length, ...how.size];
  return session.run({ images: new runtime.Tensor("float32", normalise(pixels, how), shape) });
}

// image: a Blob, which is decoded upright and without colour conversion, or an ImageBitmap.
async function infer({ image, source }) {
  const began = performance.now();
  const bitmap = image instanceof Blob ? await decode(image) : image;
  const pixels = frame(readable(bitmap), facts.preprocessing);
  const size = [bitmap.width, bitmap.height];
  bitmap.close();
  const prepared = performance.now();
  const outputs = await run(opened, pixels);
  const done = performance.now();
  return {
    source,
    size,
    logits: outputs.logits ? Float32Array.from(outputs.logits.data) : null,
    features: Float32Array.from(outputs.pooled.data),
    maps: facts.maps.map(({ name, covers }) => {
      const [, rows, columns] = outputs[name].dims;
      return { name, covers, rows, columns, values: Float32Array.from(outputs[name].data) };
    }),
    prepare: prepared - began,
    run: done - prepared,
  };
}

async function decode(blob) {
  try {
    return await createImageBitmap(blob, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new Error("unreadable");
  }
}

// Rows of a bitmap as RGBA bytes on white, a few at a time: a canvas has a largest size.
function readable(bitmap) {
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(1, 1);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const read = (top, rows) => {
    if (canvas.width !== width || canvas.height !== rows) {
      canvas.width = width;
      canvas.height = rows;
    }
    pen.fillStyle = WHITE;
    pen.fillRect(0, 0, width, rows);
    pen.drawImage(bitmap, 0, -top);
    return pen.getImageData(0, 0, width, rows).data;
  };
  return { width, height, read };
}
