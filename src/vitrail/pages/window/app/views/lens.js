// The Lens view: the prediction after every block.
import { element } from "../elements.js";

export const id = "lens";

export function mount(root) {
  root.append(element("p", { id: "lens-say" }));
}

export function update() {}
