// How an image is prepared for a model, in words.
import { text } from "./language.js";

const sizeOf = ([height, width]) => `${height}x${width}`;

/**
 * The sentence of a passport's preprocessing, as Python's `Preprocessing.in_words` has it in English.
 * >>> preprocessingWords({ size: [32, 32], resize: null, squeeze: false, interpolation: "bilinear" })
 * "stretched to 32x32 (aspect ratio not kept), bilinear"
 */
export function preprocessingWords({ size, resize, squeeze, interpolation }) {
  const [cut, scaled] = [sizeOf(size), sizeOf(resize ?? size)];
  const covers = resize && !squeeze;
  const parts = [text(covers ? "model.prepared.cover" : "model.prepared.stretch", { size: scaled })];
  if (covers || scaled !== cut) parts.push(text("model.prepared.crop", { size: cut }));
  parts.push(text(`model.interpolation.${interpolation}`));
  return parts.join(", ");
}
