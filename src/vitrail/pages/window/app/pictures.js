// Small pictures of the server: with an API key they are asked for by the page, because an <img> sends no header.
import { image } from "./api.js";
import { element } from "./elements.js";
import { hasKey } from "./key.js";

const NEAR = "200px"; // from the screen: then a picture is asked for
const waiting = new Map(); // addresses, by their elements
const watcher = new IntersectionObserver(arrive, { rootMargin: NEAR });

/** An <img> of an address of the server. */
export function picture(address, attributes = {}) {
  if (!hasKey() || !address.startsWith("v1/")) return element("img", { src: address, loading: "lazy", decoding: "async", ...attributes });
  const made = element("img", { decoding: "async", ...attributes });
  waiting.set(made, address);
  watcher.observe(made);
  return made;
}

function arrive(entries) {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting || !waiting.has(target)) continue;
    watcher.unobserve(target);
    load(target, waiting.get(target));
    waiting.delete(target);
  }
}

async function load(made, address) {
  try {
    const url = URL.createObjectURL(await image(address));
    made.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    made.src = url;
  } catch {
    // it stays empty: what is wrong is said where the list was asked for
  }
}
