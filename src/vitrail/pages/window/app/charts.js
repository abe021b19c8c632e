// Small charts as SVG in the colours of the page, each with its numbers in a table behind it.
import { savePng, saveSvg } from "./draw.js";
import { element, svg } from "./elements.js";

export const TONES = ["--glass", "--lead", "--sun", "--leaf", "--plum"];

/** Pixels for a chart in an element, so that its letters keep their size on a phone. */
export const chartWidth = (root, most) => Math.min(Math.max(root.clientWidth || most, 260), most);

/** About so many round steps from 0 to at least `most`. */
export function ticks(most, count = 4) {
  const raw = (most || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw - 1e-12);
  return Array.from({ length: Math.ceil((most || 1) / step - 1e-9) + 1 }, (_, at) => at * step);
}

/**
 * The frame of a chart: lines and labels of the y axis, labels of the x axis. `x` and `y` place values.
 * @param {{width: number, height: number, left: number, bottom: number, rows: number[], rowText: (value: number) =>
 *   string, columns: string[], label: string}} options
 */
export function frame({ width, height, left = 44, right = 12, top = 10, bottom = 26, rows, rowText, columns, label }) {
  const most = rows.at(-1);
  const inner = width - left - right;
  const x = (place) => left + (columns.length > 1 ? 14 + (place * (inner - 28)) / (columns.length - 1) : inner / 2);
  const y = (value) => height - bottom - ((height - bottom - top) * value) / most;
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const row of rows) {
    root.append(
      svg("line", { x1: left, x2: width - right, y1: y(row), y2: y(row), class: "chart-line" }),
      svg("text", { x: left - 8, y: y(row) + 4, "text-anchor": "end" }, rowText(row)),
    );
  }
  const every = Math.ceil((columns.length * 26) / inner);
  columns.forEach((words, place) => {
    if (place % every === 0) root.append(svg("text", { x: x(place), y: height - 6, "text-anchor": "middle" }, words));
  });
  return { root, x, y };
}

/** A table behind a chart: headings, then rows whose first cell is their name. */
export function table(caption, headings, lines) {
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    element("table", {},
      element("caption", { class: "unseen" }, caption),
      element("thead", {}, element("tr", {}, headings.map((words, place) =>
        element("th", { scope: "col", class: place ? "number" : "" }, words)))),
      element("tbody", {}, lines.map(([name, ...cells]) =>
        element("tr", {}, element("th", { scope: "row" }, name), cells.map((cell) => element("td", { class: "number" }, cell)))))));
}

const WRITTEN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "font-size", "opacity"];

/** A row of buttons that save the chart that `find` gives; `name` is the file's. */
export function saving(find, name) {
  const button = (key, save) => element("button", {
    type: "button", data: { text: key }, on: { click: () => save(standAlone(find()), name) },
  });
  return element("div", { class: "row" }, element("span", { class: "soft small", data: { text: "attention.save" } }),
    button("attention.png", savePng), button("attention.svg", saveSvg));
}

// A copy with its styles written out, on a background: a file has no stylesheet.
function standAlone(chart) {
  const copy = chart.cloneNode(true);
  const [from, to] = [chart, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((one, place) => {
    const style = getComputedStyle(one);
    for (const name of WRITTEN) to[place].setAttribute(name, style.getPropertyValue(name));
    to[place].removeAttribute("class");
    to[place].removeAttribute("style");
  });
  const [, , width, height] = chart.getAttribute("viewBox").split(" ").map(Number);
  const ground = getComputedStyle(document.documentElement).getPropertyValue("color-scheme").includes("dark") ? "#181f28" : "#ffffff";
  copy.prepend(svg("rect", { width, height, fill: ground }));
  for (const [key, value] of Object.entries({ width, height, "font-family": "sans-serif" })) copy.setAttribute(key, value);
  return copy;
}
