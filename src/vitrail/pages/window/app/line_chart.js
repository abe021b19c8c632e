// A small line chart with a table of its numbers behind it.
import { TONES, table, ticks } from "./charts.js";
import { element, svg } from "./elements.js";
import { text } from "./language.js";

const HEIGHT = 220;
const MARGIN = { left: 46, right: 14, top: 10, bottom: 38 };
const DASHES = ["", "7 5", "2 4", "10 4 2 4"]; // lines differ without colour too

/**
 * A figure with lines from x 0 to 1 and y 0 to at least `most`, the key below it and a table of the numbers.
 * @param {{name: string, points: number[][]}[]} series
 * @param {{label: string, x: string, y: string, most?: number, width?: number, format: (y: number) => string, formatX: (x: number) => string}} how
 */
export function lineChart(series, { label, x, y, most = 1, width = 560, format, formatX }) {
  const rows = ticks(most);
  const top = rows.at(-1);
  const across = (share) => MARGIN.left + share * (width - MARGIN.left - MARGIN.right);
  const up = (value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const value of rows) {
    chart.append(
      svg("line", { x1: across(0), x2: across(1), y1: up(value), y2: up(value), class: "chart-line" }),
      svg("text", { x: across(0) - 7, y: up(value) + 4, "text-anchor": "end" }, format(value)));
  }
  for (const share of [0, 0.5, 1]) {
    chart.append(svg("text", { x: across(share), y: HEIGHT - MARGIN.bottom + 17, "text-anchor": "middle" }, formatX(share)));
  }
  chart.append(svg("text", { x: across(0.5), y: HEIGHT - 3, "text-anchor": "middle" }, x));
  series.forEach(({ points }, number) => {
    const colour = `var(${TONES[number % TONES.length]})`;
    const place = ([px, py]) => `${across(px).toFixed(1)},${up(Math.min(py, top)).toFixed(1)}`;
    chart.append(
      svg("polyline", {
        points: points.map(place).join(" "), fill: "none", "stroke-width": 2.5, "stroke-linejoin": "round",
        "stroke-dasharray": DASHES[number % DASHES.length], style: { stroke: colour },
      }),
      ...points.map(([px, py]) => svg("circle", { cx: across(px), cy: up(Math.min(py, top)), r: 3.5, style: { fill: colour } })));
  });
  return element("figure", { class: "line-chart", style: { "max-width": `${width}px` } }, chart, key(series), numbers(series, { x, y, format, formatX }));
}

function key(series) {
  return element("ul", { class: "chart-key" }, series.map(({ name }, number) =>
    element("li", {},
      svg("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" },
        svg("line", {
          x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 3, "stroke-dasharray": DASHES[number % DASHES.length],
          style: { stroke: `var(${TONES[number % TONES.length]})` },
        })),
      name)));
}

function numbers(series, { x, y, format, formatX }) {
  const lines = series.flatMap(({ name, points }) => points.map(([px, py]) => [name, formatX(px), format(py)]));
  return element("details", {},
    element("summary", {}, text("attention.table")), table(text("attention.table"), [text("views.line"), x, y], lines));
}
