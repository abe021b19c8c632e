// Every head of every layer as small maps for the chosen token; a click makes one large.
import { rows, tokenOf } from "./attention_math.js";
import { cellCanvas, paint } from "./draw.js";
import { element } from "./elements.js";
import { language, number, text } from "./language.js";
import { headName, layerName } from "./words.js";

const SIDE = 160; // pixels of a small photo's longer side
const MOST_COLUMNS = 13; // of small maps: a layer with more heads has several lines
const FEW_LAYERS = 6; // each then has a line of its own, with larger maps
const NARROW = 832; // pixels of a page that shows one layer at a time

/** Small maps below `root`; `choose(layer, head)` is called for the one that is clicked. */
export class Heads {
  constructor(root, choose) {
    this.root = root;
    this.choose = choose;
    this.inspection = null;
    this.tiles = new Map(); // "layer,head" -> button
    this.named = "";
    root.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Whether all layers are shown, if the person has not chosen. */
  static allByDefault() {
    return innerWidth > NARROW;
  }

  /** @param {{inspection: any, photo: HTMLCanvasElement, query: string, back: boolean, layer: number,
   *   head: number, all: boolean}} shown */
  show({ inspection, photo, query, back, layer, head, all }) {
    const wanted = all ? "all" : String(layer);
    if (this.inspection !== inspection || this.shown !== wanted) this.#build(inspection, photo, all ? null : layer);
    this.shown = wanted;
    this.#name(layer, head);
    for (const one of inspection.layers) {
      if (!all && one.index !== layer) continue;
      const found = rows(one, tokenOf(one, query), back);
      this.#paint(one, -1, found.mean);
      found.heads.forEach((shares, number_) => this.#paint(one, number_, shares));
    }
  }

  #build(inspection, photo, only) {
    this.inspection = inspection;
    this.named = "";
    this.tiles.clear();
    const { layers, header: { image_size: [tall, wide] } } = inspection;
    const scale = SIDE / Math.max(tall, wide);
    const small = element("canvas", { width: Math.max(Math.round(wide * scale), 8), height: Math.max(Math.round(tall * scale), 8) });
    paint(small, photo, null, null);
    this.root.style.setProperty("--photo", `url(${small.toDataURL("image/png")})`);
    this.root.style.setProperty("--shape", `${wide} / ${tall}`);
    this.root.classList.toggle("one", only !== null);
    this.root.classList.toggle("few", layers.length <= FEW_LAYERS);
    this.root.style.setProperty("--columns", Math.min(Math.max(...layers.map(({ heads }) => heads)) + 1, MOST_COLUMNS));
    this.root.replaceChildren(...layers.filter(({ index }) => only === null || index === only).map((layer) => {
      const tiles = Array.from({ length: layer.heads + 1 }, (_, place) => this.#tile(layer, place - 1, only !== null));
      return element("div", { class: "heads-row" },
        only === null && element("span", { class: "heads-label", data: { layer: layer.index } }),
        element("div", { class: "tiles" }, tiles));
    }));
  }

  // The photo lies below: only the cells, a pixel each, are painted anew.
  #tile(layer, head, labelled) {
    const [tall, wide] = layer.extent.map((side, axis) => `${(100 * side) / layer.size[axis]}%`);
    const canvas = element("canvas", { style: { width: wide, height: tall } });
    const button = element("button", {
      type: "button", class: "tile", tabindex: -1, "aria-pressed": "false", data: { layer: layer.index, head },
      on: { click: () => this.choose(layer.index, head) },
    }, element("span", { class: "tile-photo" }, canvas), labelled && element("span", { class: "tile-label" }));
    this.tiles.set(`${layer.index},${head}`, button);
    return button;
  }

  #name(chosenLayer, chosenHead) {
    const wanted = `${language()} ${chosenLayer} ${chosenHead}`;
    if (this.named === wanted) return;
    this.named = wanted;
    for (const label of this.root.querySelectorAll(".heads-label")) {
      label.textContent = layerName(this.inspection.layers[label.dataset.layer]);
    }
    for (const button of this.tiles.values()) {
      const [layer, head] = [Number(button.dataset.layer), Number(button.dataset.head)];
      const at = this.inspection.layers[layer];
      const words = [layerName(at), headName(head)];
      if (head >= 0) words.push(text("attention.tile.distance", { pixels: number(at.distance[head]) }));
      const name = words.join(", ");
      if (button.title !== name) {
        button.title = name;
        button.setAttribute("aria-label", name);
      }
      const label = button.querySelector(".tile-label");
      if (label) label.textContent = head < 0 ? text("attention.head.mean.short") : String(head + 1);
      const pressed = layer === chosenLayer && head === chosenHead;
      button.setAttribute("aria-pressed", String(pressed));
      button.tabIndex = pressed ? 0 : -1;
    }
  }

  #paint(layer, head, { cells }) {
    const canvas = this.tiles.get(`${layer.index},${head}`).firstChild.firstChild;
    cellCanvas(cells, layer.grid, { opacity: 0.9, canvas });
  }

  // Arrow keys go from map to map, so that they are one stop for the tabulator.
  #move(event) {
    const at = event.target.closest?.(".tile");
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!at || !by) return;
    event.preventDefault();
    const layer = Number(at.dataset.layer) + by[0];
    const target = this.inspection.layers[layer];
    if (!target) return;
    const head = Math.min(Math.max(Number(at.dataset.head) + by[1], -1), target.heads - 1);
    this.choose(layer, head);
    requestAnimationFrame(() => this.tiles.get(`${layer},${head}`)?.focus());
  }
}
