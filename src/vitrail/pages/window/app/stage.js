// The photo with its patches: overlay, outlines, windows and sinks; pointer and arrow keys choose a token.
import { cellOf, neighbours, tokenAt } from "./attention_math.js";
import { cellBox, cellCanvas, gridPath, outlinePath, paint } from "./draw.js";
import { element, svg } from "./elements.js";

const LINE_FROM = 7; // pixels of the screen that a cell must have for lines between cells
const SIDE = 640; // pixels of the canvas' longer side

/** One photo on which a token is chosen. `on` has hover(token or null, event), choose(token) and key(event). */
export class Stage {
  constructor(on, id) {
    this.on = on;
    this.at = null; // the layer, or the grid of another map: {grid, extent, size, prefix}
    this.photo = element("canvas", { "aria-hidden": "true" });
    this.over = element("canvas", { "aria-hidden": "true", class: "over" });
    this.marks = svg("svg", { class: "marks", "aria-hidden": "true", preserveAspectRatio: "none" });
    this.tip = element("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.root = element("div", { class: "stage", id, tabindex: 0, role: "application" },
      this.photo, this.over, this.marks, this.tip);
    this.paths = Object.fromEntries(["grid", "windows", "members", "sinks", "group", "halo", "query"].map((name) => {
      const path = svg("path", { class: `mark-${name}`, "vector-effect": "non-scaling-stroke" });
      this.marks.append(path);
      return [name, path];
    }));
    this.#wire();
  }

  /** Shows the photo alone, as it was given, until the model has seen it. */
  preview(image) {
    this.at = null;
    const scale = SIDE / Math.max(image.width, image.height, 1);
    this.#resize([image.height * scale, image.width * scale]);
    paint(this.photo, image, null, null);
    this.over.width = this.over.width; // clears it
    for (const path of Object.values(this.paths)) path.removeAttribute("d");
    this.tip.hidden = true;
  }

  /**
   * @param {{photo: HTMLCanvasElement, at: any, values: ArrayLike<number>, top: number, opacity: number, layer: any,
   *   token: number | null, show: {grid: boolean, windows: boolean, sinks: boolean}}} shown
   */
  show({ photo, at, values, top, opacity, layer, token, show }) {
    const scale = SIDE / Math.max(...at.size);
    this.at = at;
    this.#resize(at.size.map((side) => side * scale));
    paint(this.photo, photo, null, at);
    this.cells = cellCanvas(values, at.grid, { top, opacity });
    paint(this.over, null, this.cells, at);
    this.marks.setAttribute("viewBox", `0 0 ${at.size[1]} ${at.size[0]}`);
    this.#mark(at, layer, token, show);
  }

  /** Writes beside the pointer; "" hides it. */
  tell(words, event) {
    this.tip.hidden = !words;
    if (!words) return;
    this.tip.textContent = words;
    const box = this.root.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const left = Math.min(Math.max(x - this.tip.offsetWidth / 2, 4), box.width - this.tip.offsetWidth - 4);
    const above = y - this.tip.offsetHeight - 18;
    this.tip.style.transform = `translate(${left}px, ${above > 0 ? above : y + 22}px)`;
  }

  /** The lines that are drawn over the photo, for a file. */
  lines() {
    const styles = { grid: ["#ffffff55", 1], windows: ["#ffffff", 1.6], group: ["#f2c14e", 3], sinks: ["#ffffff", 2],
      members: ["#f2c14e", 2], halo: ["#ffffff", 6], query: ["#d1495b", 3] };
    return Object.entries(styles).map(([name, [colour, width]]) => (
      { path: this.paths[name].getAttribute("d"), colour, width })).filter(({ path }) => path);
  }

  #resize([height, width]) {
    for (const canvas of [this.photo, this.over]) [canvas.width, canvas.height] = [Math.round(width), Math.round(height)];
    this.root.style.aspectRatio = `${width} / ${height}`;
  }

  #mark(at, layer, token, show) {
    const onLayer = at === layer;
    const { grid, extent } = at;
    const wide = (this.root.clientWidth || 400) / grid[1];
    const draw = (name, path) => (path ? this.paths[name].setAttribute("d", path) : this.paths[name].removeAttribute("d"));
    draw("grid", show.grid && wide >= LINE_FROM && gridPath(grid, extent));
    draw("windows", show.windows && onLayer && layer.window && gridPath(grid, extent, layer.window, layer.shift));
    const cell = onLayer && token !== null ? cellOf(layer, token) : null;
    const seen = cell && show.windows && (layer.window || layer.fold) ? neighbours(layer, token) : [];
    draw("group", layer.window && outlinePath(seen, grid, extent));
    draw("members", layer.fold && seen.map((one) => dot(cellBox(cellOf(layer, one), grid, extent))).join(""));
    draw("sinks", show.sinks && onLayer && sinkCells(layer).map((one) => ring(cellBox(one, grid, extent), at.size)).join(""));
    const outline = cell && outlinePath([cell[0] * grid[1] + cell[1]], grid, extent);
    draw("halo", outline);
    draw("query", outline);
  }

  #wire() {
    const tokenUnder = (event) => {
      if (!this.at) return null;
      const { size, extent, grid } = this.at;
      const box = this.root.getBoundingClientRect();
      const share = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
      const cell = share.map((part, axis) => Math.floor((part * size[axis] * grid[axis]) / extent[axis]));
      return cell.every((place, axis) => place >= 0 && place < grid[axis]) ? tokenAt(this.at, cell) : null;
    };
    this.root.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") this.on.hover(tokenUnder(event), event);
    });
    this.root.addEventListener("pointerleave", (event) => {
      this.tell("");
      this.on.hover(null, event);
    });
    this.root.addEventListener("click", (event) => {
      const token = tokenUnder(event);
      if (token !== null) this.on.choose(token);
    });
    this.root.addEventListener("keydown", (event) => this.on.key(event));
  }
}

/** The token that an arrow key leads to, or null; above the first row are the prefix tokens. */
export function step(layer, token, key) {
  const cell = cellOf(layer, token);
  const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  if (!by) return null;
  if (!cell) {
    const [down, across] = by;
    if (down > 0) return layer.prefix;
    return Math.min(Math.max(token + across, 0), layer.prefix - 1);
  }
  const next = [cell[0] + by[0], cell[1] + by[1]];
  if (next[0] < 0) return layer.prefix ? 0 : token;
  return next.every((place, axis) => place >= 0 && place < layer.grid[axis]) ? tokenAt(layer, next) : token;
}

export const sinkCells = (layer) => layer.sinks.map(({ token }) => cellOf(layer, token)).filter(Boolean);

// No smaller than can be seen, however small a cell is.
function ring([x, y, width, height], size) {
  const radius = Math.max(Math.min(width, height) * 0.36, Math.max(...size) * 0.018);
  return circle(x + width / 2, y + height / 2, radius);
}

function dot([x, y, width, height]) {
  return circle(x + width / 2, y + height / 2, Math.min(width, height) * 0.12);
}

const circle = (x, y, radius) => `M${x - radius} ${y}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0`;
