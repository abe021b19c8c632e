// The photo of the page among the data: what it is, what the model says, and what is nearest to it or to a patch of it.
import { cellBox, photoCanvas } from "./draw.js";
import { element, svg } from "./elements.js";
import { button, note, waiting } from "./fields.js";
import { latest } from "./latest.js";
import { PatchStage } from "./patch_stage.js";
import { picture } from "./pictures.js";
import { cellsOf } from "./words.js";

const COUNT = 12; // neighbours
const MOST_DIGITS = 5; // of a similarity

export class DataImage {
  /** `pick(id)` opens another image of the data. */
  constructor(ctx, pick) {
    Object.assign(this, { ctx, pick, inspection: null, picture: null, patch: null, matches: null, asked: "" });
    this.stage = new PatchStage({ label: "", pick: (cell, how) => this.choosePatch(cell, how), name: "data" });
    this.says = element("p", { class: "say" });
    this.whole = button("data.whole", () => this.choosePatch(null, "press"));
    this.title = element("h3", {});
    this.hint = note("data.patch_hint");
    this.waiting = waiting("data.comparing");
    this.list = element("ul", { class: "gallery small" });
    const go = (view) => () => ctx.set({ view });
    this.root = element("section", { class: "card stack tight", data: { name: "data-image" } },
      element("h2", { data: { text: "data.picked" } }), this.stage.root, this.says,
      element("div", { class: "row" },
        button("data.explain", () => ctx.set({ view: "attention", method: ctx.inspection?.header.auto ?? "attention" }), { class: "primary" }),
        button("data.what_if", go("what_if")), button("data.walk", go("walk"))),
      element("div", { class: "row" }, this.title, this.whole), this.hint, this.waiting, this.list);
    this.ask = latest(
      (signal, blob, patch) => ctx.api.post("neighbours", blob, { patch, k: COUNT }, { model: ctx.model.name, signal }),
      {
        wait: 80, failed: (error) => this.fail(error), busy: (on) => this.root.classList.toggle("waiting", on),
        done: (found) => {
          this.matches = found;
          ctx.refresh();
        },
      });
  }

  fail(error) {
    this.waiting.hidden = true;
    this.ctx.complain(error);
  }

  stop() {
    this.ask.stop();
    if (!this.matches) this.asked = "";
  }

  /** `by` has the data's images by id; `describe(image)` says what one is. */
  show({ by, describe }) {
    const { inspection, photo } = this.ctx;
    this.root.hidden = !inspection;
    if (!inspection) return;
    Object.assign(this, { by, describe });
    if (inspection !== this.inspection) {
      Object.assign(this, { inspection, patch: null, picture: photoCanvas(inspection.arrays.pixels) });
    }
    const wanted = `${photo.url} ${this.ctx.model.name} ${this.patch}`;
    if (wanted !== this.asked) {
      [this.asked, this.matches] = [wanted, null];
      this.ask(photo.blob, this.patch);
    }
    const own = by.get(String(photo.id).replace("data:", ""));
    this.says.textContent = own ? describe(own) : this.prediction();
    this.whole.hidden = this.patch === null;
    this.waiting.hidden = Boolean(this.matches) || !this.asked;
    const cells = cellsOf(inspection.layers);
    this.hint.textContent = this.ctx.text(`data.patch_hint${cells}`);
    this.title.textContent = this.patch
      ? this.ctx.text(`data.nearest_patch${cells}`, { row: this.patch[0] + 1, column: this.patch[1] + 1 })
      : this.ctx.text("data.nearest");
    this.draw();
    this.listMatches();
  }

  prediction() {
    const best = this.inspection.header.prediction?.[0];
    return best ? this.ctx.text("frame.answer", { label: best.label, score: this.ctx.percent(best.score) }) : "";
  }

  /** The grid on which patches are counted: the one of the last attention. */
  get grid() {
    return this.inspection.layers.at(-1).grid;
  }

  choosePatch(cell, how) {
    if (how === "move" || !this.inspection) return;
    this.patch = cell;
    this.ctx.refresh();
  }

  draw() {
    const { image_size: size } = this.inspection.header;
    this.stage.root.setAttribute("aria-label", this.ctx.text(`data.stage${cellsOf(this.inspection.layers)}`));
    const focused = this.stage.root.matches(":focus-visible");
    this.stage.show({ photo: this.picture, size, grid: this.grid, cursor: focused ? this.stage.place : this.patch });
  }

  listMatches() {
    const matches = this.matches?.matches ?? [];
    const key = JSON.stringify([matches, this.ctx.language()]);
    if (key === this.listed) return;
    this.listed = key;
    this.digits = digitsFor(matches.map(({ score }) => score), this.ctx.number);
    this.list.replaceChildren(...matches.flatMap((match) => {
      const image = this.by.get(String(match.id));
      return image ? [this.item(image, match)] : [];
    }));
  }

  item(image, { id, score, patch }) {
    const [rows, columns] = this.matches.grid ?? this.grid;
    const box = patch ? cellBox(patch, [rows, columns], [rows, columns]) : null;
    const mark = box && svg("svg", { viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { x: box[0], y: box[1], width: box[2], height: box[3], class: "stage-cursor", fill: "none" }));
    const words = `${this.describe(image)}, ${this.ctx.text("data.similar", { score: this.ctx.number(score, this.digits) })}`;
    return element("li", { data: { id } },
      element("button", { type: "button", title: words, on: { click: () => this.pick(id) } },
        element("span", { class: "thumb" }, picture(image.thumb, { alt: this.describe(image) }), mark),
        element("span", {}, this.ctx.number(score, this.digits))));
  }
}

// Two digits, and more where different numbers would look the same.
function digitsFor(values, format) {
  const different = (digits) => new Set(values.map((value) => format(value, digits))).size;
  let digits = 2;
  while (digits < MOST_DIGITS && different(digits) < new Set(values).size) digits++;
  return digits;
}
