// The service worker: registered once, so that the page works offline and WebAssembly gets threads.

const RELOADED = "vitrail reloaded";

// Resolves when the model may be loaded. On the first visit the page is loaded again, by the service
// worker, because only its headers allow threads.
export async function prepareOffline(onUpdate) {
  const { serviceWorker } = navigator;
  if (!serviceWorker) return;
  try {
    const before = serviceWorker.controller;
    await serviceWorker.register("sw.js", { updateViaCache: "none" });
    if (before) serviceWorker.addEventListener("controllerchange", onUpdate, { once: true });
    if (self.crossOriginIsolated || sessionStorage.getItem(RELOADED)) {
      sessionStorage.removeItem(RELOADED);
      return;
    }
    await controlled(serviceWorker);
    sessionStorage.setItem(RELOADED, "yes");
    location.reload();
    await new Promise(() => {});
  } catch {
    // private windows may refuse it: the page works, but not offline
  }
}

function controlled(serviceWorker) {
  return new Promise((resolve, reject) => {
    if (serviceWorker.controller) resolve();
    serviceWorker.addEventListener("controllerchange", resolve, { once: true });
    setTimeout(() => reject(new Error("no service worker")), 10_000);
  });
}

// Whether every file that this page needs on this backend is in the cache.
export async function isOffline(facts, backend) {
  if (!navigator.serviceWorker?.controller) return false;
  const names = ["index.html", "model.onnx", ...facts.runtime_files[backend].map((name) => `runtime/${name}`)];
  const found = await Promise.all(names.map((name) => caches.match(new URL(name, location.href))));
  return found.every(Boolean);
}

// Calls back whenever the service worker has put a file into the cache.
export function onStored(listener) {
  navigator.serviceWorker?.addEventListener("message", listener);
}
