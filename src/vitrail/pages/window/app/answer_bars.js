// Scores of classes as bars, each before and after an edit: elements stay, so that bars move instead of jumping.
import { element } from "./elements.js";
import { percent, text } from "./language.js";

export class AnswerBars {
  constructor({ label }) {
    this.root = element("ul", { class: "answers", data: { label } });
    this.items = new Map(); // by the index of the class
  }

  /** `rows` of {index, label, before, after}; `after` may be null where there is nothing to compare with. */
  show(rows) {
    const kept = new Set(rows.map(({ index }) => index));
    for (const [index, { root }] of this.items) {
      if (kept.has(index)) continue;
      root.remove();
      this.items.delete(index);
    }
    rows.forEach((row, place) => {
      const item = this.items.get(row.index) ?? this.make(row.index);
      write(item, row);
      if (this.root.children[place] !== item.root) this.root.insertBefore(item.root, this.root.children[place] ?? null);
    });
  }

  make(index) {
    const [name, numbers, before, after] = ["b", "span", "i", "i"].map((tag) => element(tag));
    before.className = "bar-before";
    after.className = "bar-after";
    const root = element("li", {}, name, numbers, element("span", { class: "bar-track", "aria-hidden": "true" }, before, after));
    const item = { root, name, numbers, before, after };
    this.items.set(index, item);
    return item;
  }
}

function write({ root, name, numbers, before, after }, row) {
  const changed = row.after !== null && row.after !== undefined;
  name.textContent = row.label;
  const values = { before: percent(row.before, 1), after: changed ? percent(row.after, 1) : "" };
  numbers.textContent = changed ? text("what_if.from_to", values) : values.before;
  root.dataset.index = row.index;
  root.dataset.before = row.before;
  if (changed) root.dataset.after = row.after;
  else delete root.dataset.after;
  before.hidden = !changed;
  before.style.width = `${100 * row.before}%`;
  after.style.width = `${100 * (changed ? row.after : row.before)}%`;
  after.dataset.way = !changed || Math.abs(row.after - row.before) < 0.0005 ? "same" : row.after > row.before ? "up" : "down";
}
