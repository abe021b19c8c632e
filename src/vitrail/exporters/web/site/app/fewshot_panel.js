// "Teach it": classes that a person names, a few photos of each, and the few-shot head solved for them.
import { fitHead, scoreRanges } from "./fewshot.js";
import { readClasses, writeClasses } from "./fewshot_file.js";
import { text, translate } from "./language.js";
import { deleteClasses, loadClasses, saveClasses } from "./store.js";

const ENOUGH = 5;
const list = document.getElementById("classes");
const status = document.getElementById("few-shot-status");

export class FewShotPanel {
  // page: what this panel needs of the page.
  //   embed(file) -> {feature, picture}, embedShown() -> the same, or null if nothing is shown
  //   canEmbedShown() -> boolean
  //   confirm(question, action) -> whether the person agrees
  //   notify(words), notifyFailure(error, file name)
  //   headChanged()
  constructor(facts, page) {
    Object.assign(this, { facts, page, classes: [], solved: null, progress: "" });
    document.getElementById("new-class").addEventListener("submit", (event) => this.addClass(event));
    document.getElementById("save").addEventListener("click", () => this.saveFile());
    document.getElementById("open").addEventListener("change", (event) => this.openFile(event.target));
    document.getElementById("delete").addEventListener("click", () => this.deleteAll());
  }

  async restore() {
    try {
      this.classes = (await loadClasses(this.facts.digest)) ?? [];
    } catch (error) {
      this.page.notify(text("storage.failed", { reason: error.message }));
    }
    this.solve();
  }

  // {head, names, ranges} for the classes that have photos, or null while there are fewer than two.
  solve() {
    const used = this.classes.filter(({ photos }) => photos.length);
    this.solved = null;
    if (used.length > 1) {
      const began = performance.now();
      const features = used.flatMap(({ photos }) => photos.map(({ feature }) => feature));
      const targets = used.flatMap(({ photos }, number) => photos.map(() => number));
      const head = fitHead(features, targets, used.length);
      const ranges = scoreRanges(head, features, targets);
      const names = used.map(({ name }) => name);
      this.solved = { head, names, ranges, ms: performance.now() - began };
    }
    this.show();
    this.page.headChanged();
  }

  async change() {
    this.solve();
    try {
      if (this.classes.length) await saveClasses(this.facts.digest, this.classes);
      else await deleteClasses(this.facts.digest);
    } catch (error) {
      this.page.notify(text("storage.failed", { reason: error.message }));
    }
  }

  addClass(event) {
    event.preventDefault();
    const field = document.getElementById("class-name");
    const name = field.value.trim();
    if (!name || this.refuseDuplicate(name)) return;
    field.value = "";
    this.classes.push({ name, photos: [] });
    this.change();
    list.lastElementChild.querySelector("label.button input").focus();
  }

  refuseDuplicate(name, own = null) {
    const known = this.classes.some((one) => one !== own && one.name === name);
    if (known) this.page.notify(text("teach.duplicate"));
    return known;
  }

  // A class may be deleted while its photos are read: then the rest is not read.
  async addPhotos(one, input) {
    const files = [...input.files];
    input.value = "";
    for (const [place, file] of files.entries()) {
      this.showProgress(text("teach.reading", { number: place + 1, count: files.length }));
      const photo = await this.embedOrNotify(() => this.page.embed(file), file.name);
      if (!this.classes.includes(one)) break;
      if (!photo) continue;
      one.photos.push(photo);
      this.showClass(one);
    }
    this.showProgress("");
    if (this.classes.includes(one)) await this.change();
  }

  async addShown(one) {
    const photo = await this.embedOrNotify(() => this.page.embedShown());
    if (!photo || !this.classes.includes(one)) return;
    one.photos.push(photo);
    await this.change();
  }

  async embedOrNotify(embed, name) {
    try {
      return await embed();
    } catch (error) {
      this.page.notifyFailure(error, name);
      return null;
    }
  }

  async removeClass(one) {
    const question = text("teach.class.ask", { name: one.name });
    if (one.photos.length && !(await this.page.confirm(question, text("dialog.delete")))) return;
    this.classes = this.classes.filter((other) => other !== one);
    await this.change();
    document.getElementById("class-name").focus();
  }

  rename(one, field) {
    const name = field.value.trim();
    if (!name || this.refuseDuplicate(name, one)) field.value = one.name;
    else if (name !== one.name) {
      one.name = name;
      this.change();
    }
  }

  async deleteAll() {
    if (!this.classes.length) return;
    if (!(await this.page.confirm(text("teach.delete.ask"), text("dialog.delete")))) return;
    this.classes = [];
    await this.change();
  }

  saveFile() {
    const words = writeClasses(this.facts, this.classes, this.solved?.head);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([words], { type: "application/json" }));
    link.download = "vitrail-classes.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  async openFile(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    let classes;
    try {
      classes = await readClasses(file, this.facts);
    } catch (error) {
      const why = error.message === "other" ? "teach.file.other" : "teach.file.bad";
      this.page.notify(text(why, { name: file.name }));
      return;
    }
    const question = text("teach.open.ask", { name: file.name });
    if (this.classes.length && !(await this.page.confirm(question, text("dialog.replace")))) return;
    this.classes = classes;
    this.page.notify(text("teach.opened", { count: classes.length }));
    await this.change();
  }

  showProgress(words) {
    this.progress = words;
    this.showStatus();
  }

  showStatus() {
    const count = this.classes.reduce((sum, { photos }) => sum + photos.length, 0);
    const solved = this.solved && {
      count,
      ms: this.solved.ms.toFixed(0),
      right: this.solved.head.leftOut.right,
    };
    status.textContent = this.progress || (solved ? text("teach.solved", solved) : text("teach.need"));
    for (const id of ["save", "delete"]) document.getElementById(id).disabled = !this.classes.length;
  }

  show() {
    list.replaceChildren(...this.classes.map((one) => this.card(one)));
    this.showStatus();
  }

  showClass(one) {
    list.children[this.classes.indexOf(one)].replaceWith(this.card(one));
  }

  showAvailable(available) {
    for (const button of list.querySelectorAll(".shown")) button.disabled = !available;
  }

  card(one) {
    const item = document.createElement("li");
    item.className = "class";
    item.append(this.cardHead(one), this.pictures(one), this.cardButtons(one));
    translate(item);
    return item;
  }

  cardHead(one) {
    const head = element("div", "class-head");
    const field = element("input", "class-name");
    Object.assign(field, { value: one.name, maxLength: 60, autocomplete: "off" });
    field.dataset.label = "teach.rename";
    field.addEventListener("change", () => this.rename(one, field));
    const count = element("span", one.photos.length < ENOUGH ? "count" : "count enough");
    const key = one.photos.length < ENOUGH ? "teach.count" : "teach.enough";
    count.textContent = text(key, { count: one.photos.length });
    const remove = element("button", "cross");
    remove.type = "button";
    remove.setAttribute("aria-label", text("teach.remove", { name: one.name }));
    remove.addEventListener("click", () => this.removeClass(one));
    head.append(field, count, remove);
    return head;
  }

  pictures(one) {
    const row = element("ul", "pictures");
    one.photos.forEach((photo, place) => {
      const values = { number: place + 1, name: one.name };
      const item = element("li", photo.picture ? "" : "blank");
      if (photo.picture) {
        const image = document.createElement("img");
        image.alt = text("teach.photo", values);
        image.src = URL.createObjectURL(photo.picture);
        image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
        item.append(image);
      }
      const remove = element("button", "cross");
      remove.type = "button";
      remove.setAttribute("aria-label", text("teach.photo.remove", values));
      remove.addEventListener("click", () => {
        one.photos.splice(place, 1);
        this.change();
      });
      item.append(remove);
      row.append(item);
    });
    return row;
  }

  cardButtons(one) {
    const row = element("div", "buttons");
    const choose = element("label", "button");
    const input = element("input", "unseen");
    Object.assign(input, { type: "file", accept: "image/*", multiple: true });
    input.setAttribute("aria-label", text("teach.photos.for", { name: one.name }));
    input.addEventListener("change", () => this.addPhotos(one, input));
    const words = document.createElement("span");
    words.dataset.text = "teach.photos";
    choose.append(input, words);
    const shown = element("button", "button shown");
    shown.type = "button";
    shown.dataset.text = "teach.shown";
    shown.setAttribute("aria-label", text("teach.shown.for", { name: one.name }));
    shown.disabled = !this.page.canEmbedShown();
    shown.addEventListener("click", () => this.addShown(one));
    row.append(choose, shown);
    return row;
  }
}

function element(name, kind) {
  const made = document.createElement(name);
  made.className = kind;
  return made;
}
