// A gallery of images with what they are and what the model says, a page at a time.
import { element } from "./elements.js";
import { choice, setOptions } from "./fields.js";
import { picture } from "./pictures.js";

const PAGE = 60; // images shown at once

export class DataGallery {
  constructor(ctx, pick) {
    Object.assign(this, { ctx, pick, only: "", shown: PAGE, key: "" });
    this.filter = choice("data.only", (only) => {
      this.only = only;
      this.shown = PAGE;
      ctx.refresh();
    });
    this.list = element("ul", { class: "gallery" });
    this.more = element("button", {
      type: "button", on: {
        click: () => {
          this.shown += PAGE;
          ctx.refresh();
        },
      },
    });
    this.root = element("div", { class: "stack tight" }, element("div", { class: "row" }, this.filter.root), this.list, this.more);
  }

  show({ images, picked, classes, mistaken, describe }) {
    const { ctx } = this;
    this.mistaken = mistaken;
    if (!classes.includes(this.only)) this.only = "";
    setOptions(this.filter.select, [["", ctx.text("data.every_class")], ...classes.map((name) => [name, name])], this.only);
    this.filter.root.hidden = classes.length < 2;
    const fitting = images.filter(({ label, predicted }) => !this.only || label === this.only || predicted === this.only);
    const shown = fitting.slice(0, this.shown);
    this.more.hidden = shown.length === fitting.length;
    this.more.textContent = ctx.text("data.more", { count: ctx.number(fitting.length - shown.length) });
    const key = JSON.stringify([shown.map(({ id }) => id), ctx.language()]);
    if (key !== this.key) this.list.replaceChildren(...shown.map((image) => this.item(image, describe)));
    this.key = key;
    for (const item of this.list.children) {
      item.firstChild.setAttribute("aria-pressed", String(item.dataset.id === picked));
    }
  }

  item(image, describe) {
    const differs = image.predicted && image.label && image.label !== image.predicted;
    const kind = this.mistaken.has(image.id) ? "wrong" : "soft"; // of classes that the model does not have, none is wrong
    return element("li", { data: { id: image.id } },
      element("button", {
        type: "button", "aria-pressed": "false", title: describe(image),
        on: { click: () => this.pick(image.id) },
      },
      picture(image.thumb, { alt: image.label || image.predicted ? "" : image.name }),
      image.label || image.predicted ? element("span", {}, image.label ?? image.predicted) : null,
      differs ? element("span", { class: `predicted ${kind}` }, element("span", { class: "unseen" }, this.ctx.text("data.as")), image.predicted) : null));
  }
}
