// Labelled controls whose names follow the language.
import { element } from "./elements.js";

/** A labelled choice; fill it with `setOptions`. */
export function choice(key, change, attributes = {}) {
  const select = element("select", { ...attributes, on: { change: () => change(select.value) } });
  return { select, root: element("label", { class: "field" }, element("span", { data: { text: key } }), select) };
}

/** Gives a choice its options, [value, name] each, where they are others than before, and chooses one. */
export function setOptions(select, options, value) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    select.replaceChildren(...options.map(([one, name]) => new Option(name, one)));
  }
  select.value = String(value);
}

/** A labelled slider with its value in words beside it. */
export function slider(key, { min, max, step = 1, input }) {
  const range = element("input", { type: "range", min, max, step, on: { input: () => input(Number(range.value)) } });
  const shown = element("output", {});
  return { range, shown, root: element("label", { class: "range" }, element("span", { data: { text: key } }), range, shown) };
}

export function button(key, click, attributes = {}) {
  return element("button", { type: "button", ...attributes, data: { text: key, ...attributes.data }, on: { click } });
}

export function checkbox(key, change) {
  const box = element("input", { type: "checkbox", on: { change: () => change(box.checked) } });
  return { box, root: element("label", { class: "check" }, box, element("span", { data: { text: key } })) };
}

/** A card with a heading. */
export function card(key, ...children) {
  return element("section", { class: "card" }, element("h2", { data: { text: key } }), ...children);
}

/** Words on what is being computed, with a spinner. */
export function waiting(key) {
  return element("p", { class: "computing soft", role: "status" },
    element("span", { class: "spinner", "aria-hidden": "true" }), element("span", { data: { text: key } }));
}

/** A sentence of explanation. */
export const note = (key) => element("p", { class: "soft small", data: { text: key } });
