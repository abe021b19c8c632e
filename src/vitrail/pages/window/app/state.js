// What the page shows: one store, mirrored in the address after the #, so that every state has a link.
//
// Keys of all views (others are added by `define`):
//   model    name of the model, "" for the first
//   image    "sample:ID" or "data:ID" of an image that the server has, "" for a photo of one's own
//   view     id of the view (see views.js)
//   layer    number of an attention layer, from 0; -1 for the last
//   head     number of a head, from 0; -1 for the mean of all heads
//   query    the chosen token: "t0" for prefix token 0 (such as the class token), or "y,x" for the patch at these
//            pixels of the model's image, which means the same on the grid of every layer; "" for the middle
//   back     false: where the token looks; true: who looks at it
//   method   "attention", "rollout" or another method of `explain`
//   target   index of the class to explain, -1 for the predicted one
//   opacity  of the overlay, 0 to 1
//   block    number of a block (lens, walk), -1 for the last
//   lang     "en" or "ko", "" for the browser's
//   theme    "light" or "dark", "" for the system's

const defaults = {
  model: "", image: "", view: "attention", layer: -1, head: -1, query: "", back: false, method: "attention", target: -1,
  opacity: 0.8, block: -1, lang: "", theme: "",
};
const listeners = new Set();
const WRITE_AFTER = 250; // ms: browsers refuse pages that write their address too often
let fromAddress = readAddress();
let scheduled = false;
let timer = 0;

/** @type {Record<string, any>} The store: read it, change it by `set`. */
export const state = {};
define(defaults);

/** Adds keys with their defaults; a key keeps the type of its default (number, boolean or string). */
export function define(more) {
  for (const [key, value] of Object.entries(more)) {
    defaults[key] = value;
    if (!(key in state)) state[key] = parse(fromAddress.get(key), value);
  }
}

/** Changes some keys; listeners are called once, after the current task. */
export function set(changes) {
  const changed = Object.entries(changes).filter(([key, value]) => state[key] !== value);
  if (!changed.length) return;
  Object.assign(state, Object.fromEntries(changed));
  clearTimeout(timer);
  timer = setTimeout(writeAddress, WRITE_AFTER);
  notify();
}

/** Calls `listener(state)` after every change; returns a function that ends it. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Calls all listeners once, after the current task: also for what is not in the store, such as a new image. */
export function notify() {
  if (scheduled) return;
  scheduled = true;
  queueMicrotask(() => {
    scheduled = false;
    for (const listener of listeners) listener(state);
  });
}

/** The address of the page as it is shown now. */
export function link() {
  writeAddress();
  return location.href;
}

function parse(text, example) {
  if (text === null) return example;
  if (typeof example === "boolean") return text === "1";
  if (typeof example !== "number") return text;
  const value = Number(text);
  return Number.isFinite(value) ? value : example;
}

function readAddress() {
  return new URLSearchParams(location.hash.slice(1));
}

function writeAddress() {
  clearTimeout(timer);
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value !== defaults[key]) words.set(key, typeof value === "boolean" ? String(Number(value)) : String(value));
  }
  for (const [key, value] of fromAddress) if (!(key in state)) words.set(key, value); // of views not loaded yet
  try {
    history.replaceState(null, "", `#${words}`);
  } catch {
    // some browsers refuse it for files: the page works without
  }
}

addEventListener("hashchange", () => {
  fromAddress = readAddress();
  set(Object.fromEntries(Object.entries(defaults).map(([key, value]) => [key, parse(fromAddress.get(key), value)])));
});
