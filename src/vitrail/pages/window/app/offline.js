// Where an offline page begins: its images and their inspections are in the file itself, and nothing is asked for.
import { unpack } from "./api.js";
import { start } from "./main.js";
import * as attention from "./views/attention.js";
import * as lens from "./views/lens.js";

const { strings, model, images } = JSON.parse(document.getElementById("offline").textContent);
const byId = (id) => images.find((image) => `sample:${image.id}` === id);

const source = {
  offline: true,
  strings,
  models: async () => [model],
  samples: async () => images.map(({ id, name, picture }) => ({ id, name, url: picture })),
  image: async (address) => {
    const [, type, content] = /^data:([^;]+);base64,(.*)$/s.exec(address);
    return new Blob([bytes(content)], { type });
  },
  async inspect(photo) {
    const { packed, explanations } = byId(photo.id);
    const stream = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const found = unpack(await new Response(stream).arrayBuffer());
    const known = new Set(["attention", "rollout", ...explanations.map(({ method }) => method)]);
    found.header.methods = found.header.methods.filter((method) => known.has(method));
    return found;
  },
  explain: async (photo, _, { method }) => byId(photo.id).explanations.find((one) => one.method === method),
};

function bytes(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

start({ attention: async () => attention, lens: async () => lens }, source);
