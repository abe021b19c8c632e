// Requests to the server, packed arrays, and errors as sentences.
import { keyHeaders } from "./key.js";
import { text } from "./language.js";

/** What went wrong, as a sentence that can be shown; `code` is the HTTP status, 0 where there was no answer. */
export class ApiError extends Error {
  constructor(message, code = 0) {
    super(message);
    this.code = code;
  }
}

const TYPES = {
  uint8: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, float32: Float32Array, float64: Float64Array,
};

/**
 * Arrays and their header from bytes: the length of a JSON header as little-endian uint32, the header, the arrays.
 * @param {ArrayBuffer} buffer
 * @returns {{header: any, arrays: Record<string, {data: any, shape: number[]}>}}
 */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const [name, { dtype, shape, offset }] of Object.entries(header.arrays)) {
    const Type = TYPES[dtype];
    const count = shape.reduce((product, side) => product * side, 1);
    const start = 4 + length + offset;
    arrays[name] = { shape, data: new Type(buffer.slice(start, start + count * Type.BYTES_PER_ELEMENT)) };
  }
  return { header, arrays };
}

/** GET of a path such as "models" or "data", with options in its address: JSON. */
export async function get(path, { model = "", signal, ...options } = {}) {
  return (await request(path, { model, options, signal })).json();
}

/**
 * POST of an operation on an image: JSON, or with `packed` header and arrays.
 * @param {string} operation such as "what_if"
 * @param {Blob | Blob[] | null} images
 * @param {object} options
 */
export async function post(operation, images, options = {}, { model = "", packed = false, signal } = {}) {
  const body = new FormData();
  for (const image of images ? [images].flat() : []) body.append("images", image, image.name ?? "photo.png");
  body.append("options", JSON.stringify(options));
  const response = await request(operation, { model, signal, method: "POST", body });
  return packed ? unpack(await response.arrayBuffer()) : response.json();
}

export const models = async () => (await get("models")).models;
export const samples = async (model) => (await get("samples", { model })).samples;

/** Everything that the page needs to show attention and lens of an image, as one binary. */
export const inspect = (image, model, signal) => post("inspect", image, {}, { model, packed: true, signal });

/** The most likely classes of an image, {label, score} each. */
export async function predict(image, model, signal) {
  const [found] = (await post("predict", image, { top: 5 }, { model, signal })).predictions;
  if (found.error) throw new ApiError(found.error, 422);
  return found.top;
}

/** The map of one method for one class: {method, target, grid, map, reason}. */
export async function explain(image, model, { method, target }, signal) {
  const options = { method, target: target < 0 ? null : target };
  const [found] = (await post("explain", image, options, { model, signal })).explanations;
  if (found.error) throw new ApiError(found.error, 422);
  return found;
}

/** An image of the server by its address. */
export async function image(address, signal) {
  const response = await send(address, { signal });
  return response.blob();
}

function request(path, { model, options = {}, ...init }) {
  const query = new URLSearchParams(model ? { model, ...options } : options);
  return send(query.size ? `v1/${path}?${query}` : `v1/${path}`, init);
}

// Every request of the page goes through here.
const send = (address, init) => checked(fetch(address, { ...init, headers: keyHeaders() }));

async function checked(promise) {
  let response;
  try {
    response = await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(text("frame.error.network"));
  }
  if (response.ok) return response;
  const wait = Number(response.headers.get("Retry-After"));
  if (response.status === 429) throw new ApiError(text("frame.error.busy", { seconds: wait || 1 }), 429);
  let reason = null;
  try {
    reason = (await response.json()).error;
  } catch {
    // not one of our answers: the status has to do
  }
  const words = typeof reason === "string" ? reason : text("frame.error.status", { status: response.status });
  throw new ApiError(words, response.status);
}
