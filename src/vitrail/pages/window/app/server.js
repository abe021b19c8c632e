// Images and inspections from the server that gave the page.
import * as api from "./api.js";

export const server = {
  offline: false,
  strings: null,
  models: api.models,
  samples: api.samples,
  image: api.image,
  inspect: (photo, model, signal) => api.inspect(photo.blob, model, signal),
  explain: (photo, model, options, signal) => api.explain(photo.blob, model, options, signal),
};
