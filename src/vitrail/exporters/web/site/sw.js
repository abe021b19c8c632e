// The service worker: every file from a cache of this version of the folder, so that the page works
// offline, and headers that let WebAssembly use threads. BUILD and FILES are written above by export.

const SCOPE = self.registration.scope;
const PREFIX = `vitrail ${SCOPE} `;
const CACHE = PREFIX + BUILD;
const LARGE = /^(model\.onnx|runtime\/)/; // are cached when they are first read

const TYPES = {
  css: "text/css; charset=utf-8",
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  json: "application/json",
  mjs: "text/javascript; charset=utf-8",
  png: "image/png",
  wasm: "application/wasm",
  webmanifest: "application/manifest+json",
};
const POLICY =
  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob:; " +
  "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'";

self.addEventListener("install", (event) => {
  event.waitUntil(install());
});

self.addEventListener("activate", (event) => {
  event.waitUntil(activate());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || !url.href.startsWith(SCOPE)) return;
  const name = url.pathname.slice(new URL(SCOPE).pathname.length) || "index.html";
  if (FILES.includes(name)) event.respondWith(answer(event, name));
});

async function install() {
  const cache = await caches.open(CACHE);
  const names = FILES.filter((name) => !LARGE.test(name));
  await cache.addAll(names.map((name) => new Request(SCOPE + name, { cache: "no-cache" })));
  await self.skipWaiting();
}

async function activate() {
  const names = await caches.keys();
  const old = names.filter((name) => name.startsWith(PREFIX) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

async function answer(event, name) {
  const cache = await caches.open(CACHE);
  const address = SCOPE + name;
  const cached = await cache.match(address);
  if (cached) return isolated(name, cached);
  const response = await fetch(address, { cache: "no-cache" });
  // Not awaited: the page counts the bytes of the model while they arrive.
  if (response.ok) event.waitUntil(store(cache, address, response.clone()));
  return isolated(name, response);
}

async function store(cache, address, response) {
  try {
    await cache.put(address, response);
  } catch {
    return; // no room: the page works, but not offline
  }
  for (const client of await self.clients.matchAll()) client.postMessage("stored");
}

function isolated(name, response) {
  const headers = new Headers(response.headers);
  const type = TYPES[name.split(".").pop()];
  if (type) headers.set("Content-Type", type);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  headers.set("Cross-Origin-Resource-Policy", "same-origin");
  headers.set("Content-Security-Policy", POLICY);
  const { status, statusText } = response;
  return new Response(response.body, { status, statusText, headers });
}
