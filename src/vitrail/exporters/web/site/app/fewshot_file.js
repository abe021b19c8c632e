// Few-shot classes as a JSON file: features and the solved head, for the model that they were computed
// with. Photos are not in it.

const FORMAT = "vitrail-few-shot";
const LARGEST = 256 * 2 ** 20;

export function writeClasses(facts, classes, head) {
  return JSON.stringify({
    format: FORMAT,
    version: 1,
    model: facts.digest,
    classes: classes.map(({ name, photos }) => ({
      name,
      features: photos.map(({ feature }) => encode(feature)),
    })),
    head: head && {
      mean: Array.from(head.mean),
      deviation: Array.from(head.deviation),
      weights: Array.from(head.weights),
    },
  });
}

// The classes of a file, or an error whose message is "bad" or "other": made with another model.
export async function readClasses(file, facts) {
  const found = await parse(file);
  if (found?.format !== FORMAT || found.version !== 1 || !Array.isArray(found.classes)) throw new Error("bad");
  if (found.model !== facts.digest) throw new Error("other");
  try {
    const classes = found.classes.map(({ name, features }) => ({
      name: checkName(name),
      photos: features.map((feature) => ({ feature: decode(feature, facts.features), picture: null })),
    }));
    if (new Set(classes.map(({ name }) => name)).size !== classes.length) throw new Error("bad");
    return classes;
  } catch {
    throw new Error("bad");
  }
}

async function parse(file) {
  if (file.size > LARGEST) throw new Error("bad");
  try {
    return JSON.parse(await file.text());
  } catch {
    throw new Error("bad");
  }
}

function checkName(name) {
  if (typeof name !== "string" || !name.trim() || name.length > 60) throw new Error("bad");
  return name;
}

// Little-endian float32 in base64.
function encode(feature) {
  const view = new DataView(new ArrayBuffer(feature.length * 4));
  feature.forEach((value, place) => view.setFloat32(place * 4, value, true));
  let letters = "";
  for (let place = 0; place < view.byteLength; place++) letters += String.fromCharCode(view.getUint8(place));
  return btoa(letters);
}

function decode(letters, width) {
  const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  if (bytes.length !== width * 4) throw new Error("bad");
  const feature = Float32Array.from({ length: width }, (_, place) => view.getFloat32(place * 4, true));
  if (!feature.every(Number.isFinite)) throw new Error("bad");
  return feature;
}
