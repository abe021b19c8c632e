// The page's side of the worker: each call is a promise.

export class Engine {
  constructor(onProgress) {
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.waiting = new Map();
    this.count = 0;
    this.worker.onmessage = ({ data }) => {
      if (data.id === undefined) onProgress(data);
      else this.finish(data);
    };
    this.worker.onerror = (event) => {
      for (const { reject } of this.waiting.values()) reject(new Error(event.message || "worker"));
      this.waiting.clear();
    };
  }

  finish({ id, result, problem }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (problem === undefined) resolve(result);
    else reject(new Error(problem));
  }

  call(call, value, transfer = []) {
    return new Promise((resolve, reject) => {
      const id = this.count++;
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, call, value }, transfer);
    });
  }

  open(facts) {
    return this.call("open", facts);
  }

  // image: a Blob, or an ImageBitmap, which is handed over. source: whatever the result is of.
  infer(image, source) {
    return this.call("infer", { image, source }, image instanceof Blob ? [] : [image]);
  }
}
