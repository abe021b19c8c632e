// The Attention view: where each head of each layer looks, on the photo.
import { element } from "../elements.js";

export const id = "attention";

export function mount(root) {
  root.append(element("p", { id: "attention-say" }));
}

export function update() {}
