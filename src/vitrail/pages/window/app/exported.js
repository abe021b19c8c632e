// What a model that is an exported file shows in every view but Model: its prediction, and in one sentence what the
// view needs beyond that.
import { AnswerBars } from "./answer_bars.js";
import { element } from "./elements.js";
import { translate } from "./language.js";

const SHOWN = 5; // classes

export class ExportedView {
  constructor(root) {
    this.root = root;
    this.says = element("p", { class: "say", data: { name: "needs" } });
    this.photo = element("img", { class: "exported-photo", alt: "" });
    this.bars = new AnswerBars({ label: "frame.exported.bars" });
    this.note = element("p", { class: "soft" });
    this.answer = element("section", { class: "card stack tight" },
      element("h2", { data: { text: "frame.exported.bars" } }), this.note,
      element("div", { class: "exported" }, this.photo, this.bars.root));
    root.append(element("section", { class: "card" }, this.says), this.answer);
  }

  /** The sentence of the view `id`, and what the model says of the photo. */
  show(id, { model, photo, prediction, text }) {
    this.root.setAttribute("aria-labelledby", `tab-${id}`);
    translate(this.root);
    this.says.textContent = text(`frame.exported.${id}`, { model: model.name });
    this.photo.hidden = !photo;
    if (photo && this.photo.src !== photo.url) this.photo.src = photo.url;
    const note = !model.classes ? "frame.exported.no_classes" : photo ? null : "frame.exported.empty";
    this.note.hidden = !note;
    if (note) this.note.textContent = text(note);
    this.bars.show((prediction ?? []).slice(0, SHOWN).map(({ label, score }) => ({ index: label, label, before: score, after: null })));
  }
}
