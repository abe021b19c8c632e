// Building elements without markup: data of files is only ever text.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with attributes and children; `on` has listeners, `data` data attributes, `style` properties (the page's
 * policy forbids style attributes), strings become text.
 * >>> element("button", { class: "quiet", data: { text: "frame.close" }, on: { click: close } })
 */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, { on = {}, data = {}, style = {}, ...attributes }, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  for (const [key, value] of Object.entries(data)) made.dataset[key] = String(value);
  for (const [key, value] of Object.entries(style)) made.style.setProperty(key, String(value));
  for (const [kind, listener] of Object.entries(on)) made.addEventListener(kind, listener);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
