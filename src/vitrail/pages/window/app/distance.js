// How far each head looks in this photo: a dot for each head, beside attention that is spread evenly, and beside the
// range that four of five images of the data lie in.
import { frame, table, ticks } from "./charts.js";
import { element, svg } from "./elements.js";
import { number, text } from "./language.js";
import { headName, layerName } from "./words.js";

const HEIGHT = 220;

/**
 * The chart, so many pixels wide; `choose(layer, head)` is called for the dot that is clicked. `data` has for names of
 * layers {distance, low, high} of each head over the images of the data; it may be empty.
 */
export function distanceChart(layers, chosen, choose, width, data = new Map()) {
  const most = Math.max(...layers.flatMap(({ name, distance, uniform_distance: even }) => (
    [...distance, even, ...(data.get(name)?.high ?? [])])));
  const { root, x, y } = frame({
    width, height: HEIGHT, rows: ticks(most), rowText: (value) => number(value),
    columns: layers.map(({ index }) => String(index + 1)), label: text("attention.distance.title"),
  });
  const gap = layers.length > 1 ? x(1) - x(0) : 60;
  for (const layer of layers) {
    const [place, half] = [x(layer.index), Math.min(gap * 0.36, 22)];
    root.append(svg("line", {
      x1: place - half, x2: place + half, y1: y(layer.uniform_distance), y2: y(layer.uniform_distance), class: "chart-even",
    }));
    layer.distance.forEach((pixels, head) => {
      const shift = layer.heads > 1 ? (head / (layer.heads - 1) - 0.5) * half * 1.2 : 0;
      const picked = layer.index === chosen.layer && head === chosen.head;
      const range = data.get(layer.name);
      if (range) {
        root.append(svg("line", {
          x1: place + shift, x2: place + shift, y1: y(range.low[head]), y2: y(range.high[head]), class: "chart-range",
        }));
      }
      const dot = svg("circle", {
        cx: place + shift, cy: y(pixels), r: picked ? 6.5 : 4, class: picked ? "chart-dot picked" : "chart-dot",
        on: { click: () => choose(layer.index, head) },
      });
      const words = `${layerName(layer)}, ${headName(head)}: ${text("attention.pixels", { pixels: number(pixels) })}`;
      dot.append(svg("title", {}, words));
      root.append(dot);
    });
  }
  return root;
}

export function distanceTable(layers) {
  const heads = Math.max(...layers.map((layer) => layer.heads));
  const headings = [
    text("attention.layer"), text("attention.distance.even"), text("attention.head.mean.short"),
    ...Array.from({ length: heads }, (_, head) => String(head + 1)),
  ];
  const lines = layers.map((layer) => {
    const mean = layer.distance.reduce((sum, one) => sum + one, 0) / layer.heads;
    const cells = layer.distance.map((one) => number(one));
    const empty = Array.from({ length: heads - cells.length }, () => "");
    return [layerName(layer), number(layer.uniform_distance), number(mean), ...cells, ...empty];
  });
  return table(text("attention.distance.title"), headings, lines);
}

/** The chart's key: a dot is a head, a dashed line is even attention, a bar the data. */
export function distanceKey(withData = false) {
  return element("p", { class: "key small soft" },
    element("span", {}, element("i", { class: "key-dot" }), text("attention.distance.head")),
    element("span", {}, element("i", { class: "key-even" }), text("attention.distance.even.long")),
    withData && element("span", {}, element("i", { class: "key-range" }), text("attention.distance.range")));
}
