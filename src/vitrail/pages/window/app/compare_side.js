// One side of a comparison: a photo with a model's attention over it, what it amounts to in words, and the prediction.
import { AnswerBars } from "./answer_bars.js";
import { row, summarise, summariseCells } from "./attention_math.js";
import { photoCanvas } from "./draw.js";
import { element } from "./elements.js";
import { percent, text } from "./language.js";
import { Stage, step } from "./stage.js";
import { cellsOf, describeMap, describeRow, patchName, tokenName } from "./words.js";

const TOP = 4; // classes

export class CompareSide {
  /** `pick(token, side)` is called when a token of this side is chosen. */
  constructor(name, pick) {
    this.name = name;
    this.stage = new Stage({
      hover: (token, event) => this.tell(token, event),
      choose: (token) => this.chosen && pick(token, this),
      key: (event) => this.key(event, pick),
    }, `compare-${name}`);
    this.title = element("h2", {});
    [this.where, this.words] = [element("strong"), element("span")];
    this.bars = new AnswerBars({ label: "compare.bars" });
    this.root = element("section", { class: "card stack tight", data: { side: name } },
      this.title, this.stage.root, element("p", { class: "say small" }, this.where, this.words), this.bars.root);
    this.inspection = null;
    this.chosen = null;
  }

  /** Takes another inspection; its photo is drawn once. Without one nothing is left of the one before. */
  take(inspection) {
    if (this.inspection === inspection) return;
    [this.inspection, this.chosen, this.shown] = [inspection, null, null];
    this.root.classList.add("unfilled");
    for (const key of ["layer", "head", "token", "brightest"]) delete this.root.dataset[key];
    this.photo = inspection ? photoCanvas(inspection.arrays.pixels) : null;
  }

  /** Shows the attention that the linked pickers chose, or the map {method, map, grid, target} of a method. */
  show(chosen, { back, opacity, map }) {
    this.chosen = chosen;
    const { layer, head, token } = chosen;
    const found = map ? this.mapOf(map) : attentionOf(chosen, back);
    this.shown = found;
    this.stage.root.setAttribute("aria-label", text("compare.stage", {
      side: text(`compare.side.${this.name}`), token: tokenName(layer, token),
    }));
    this.stage.show({
      photo: this.photo, at: found.at, values: found.values, top: found.top, opacity, layer, token: map ? null : token,
      show: { grid: false, windows: true, sinks: false },
    });
    this.where.textContent = `${found.where}.`;
    this.words.textContent = found.words;
    const { prediction } = this.inspection.header;
    this.bars.show((prediction ?? []).slice(0, TOP).map(({ index, label, score }) => ({ index, label, before: score, after: null })));
    this.root.classList.remove("unfilled");
    Object.assign(this.root.dataset, { layer: layer.index, head, token, brightest: found.values.indexOf(found.top) });
  }

  mapOf({ method, map, grid, target }) {
    const size = this.inspection.header.image_size;
    const values = Float32Array.from(map.flat(), (one) => Math.max(one, 0));
    const like = this.inspection.layers.find((layer) => layer.grid.join() === grid.join());
    return {
      at: { grid, size, extent: like?.extent ?? size, prefix: 0 }, values, top: Math.max(...values, 1e-12),
      ...describeMap(method, target?.label ?? "", grid, summariseCells(values), cellsOf(this.inspection.layers)),
    };
  }

  tell(token, event) {
    if (token === null || !this.shown) {
      this.stage.tell("");
      return;
    }
    const { at, values } = this.shown;
    const cell = token - at.prefix;
    const share = at === this.chosen.layer ? percent(values[cell]) : percent(values[cell] / (this.shown.top || 1));
    this.stage.tell(`${patchName([Math.floor(cell / at.grid[1]), cell % at.grid[1]])} · ${share}`, event);
  }

  key(event, pick) {
    if (!this.chosen || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = step(this.chosen.layer, this.chosen.token, event.key);
    if (next === null) return;
    event.preventDefault();
    pick(next, this);
  }
}

function attentionOf({ layer, head, token }, back) {
  const shares = row(layer, head, token, back);
  return {
    at: layer, values: shares.cells, top: Math.max(...shares.cells),
    ...describeRow(layer, head, token, back, shares, summarise(layer, shares, token)),
  };
}
