// Images and inspections from the server that gave the page.
import * as api from "./api.js";

const TRIES = 4;
const PAUSE = 1000; // ms
const LATER = [503, 504]; // a process of the server is starting, or had no time

// The first look into a model starts a process for it, which may take longer than a request may.
export async function patiently(ask, signal) {
  for (let tries = 1; ; tries++) {
    try {
      return await ask();
    } catch (error) {
      if (tries === TRIES || !LATER.includes(error.code) || signal?.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  }
}

export const server = {
  offline: false,
  strings: null,
  models: api.models,
  samples: (model) => patiently(() => api.samples(model)),
  image: (address) => patiently(() => api.image(address)),
  predict: (photo, model, signal) => api.predict(photo.blob, model, signal),
  inspect: (photo, model, signal) => patiently(() => api.inspect(photo.blob, model, signal), signal),
  explain: (photo, model, options, signal) => api.explain(photo.blob, model, options, signal),
};
