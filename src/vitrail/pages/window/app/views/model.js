// Model: what it is made of and where it comes from, its filters and positions, and commands to go on with.
import { element } from "../elements.js";
import { button, card, note } from "../fields.js";
import { translate } from "../language.js";
import { latest } from "../latest.js";
import { recordTable } from "../record_table.js";

export const id = "model";
const COPIED_FOR = 1600; // ms that a button says so

let ctx = null;
let body = null;
let ask = null;
let found = null; // the answer of the server
let askedFor = null; // name of the model it is for
let shown = ""; // what is on the page: model and language

export function mount(root, given) {
  ctx = given;
  body = element("div", { class: "stack" });
  root.append(body);
  ask = latest((signal, model) => ctx.api.get("model", { model, signal }), {
    done: (answer, model) => {
      found = { answer, model };
      show();
    },
    failed: (error) => {
      askedFor = null;
      ctx.complain(error);
    },
    busy: (on) => root.classList.toggle("waiting", on),
  });
}

export function update() {
  if (!ctx.api || !ctx.model) return;
  if (askedFor !== ctx.model.name) {
    askedFor = ctx.model.name;
    ask(askedFor);
  }
  show();
}

export function leave() {
  ask.stop();
  if (found?.model !== askedFor) askedFor = null;
}

function show() {
  if (!found || found.model !== ctx.model.name) return;
  const wanted = `${found.model} ${ctx.language()}`;
  if (wanted === shown) return;
  shown = wanted;
  const { answer } = found;
  body.replaceChildren(
    factsCard(answer),
    element("div", { class: "columns" },
      commandsCard(answer.commands ?? {}), picturesCard(answer),
      tableCard("model.config", answer.config), passportCard(answer.passport)));
}

function factsCard({ parameters, macs, origin, scores, preprocessing }) {
  const { model } = ctx;
  const [height, width] = model.image_size ?? [];
  const facts = [
    ["model.family", model.family],
    ["model.parameters", big(parameters)],
    ["model.macs", macs ? big(macs) : null],
    ["model.image_size", height && ctx.text("model.image_size_value", { height, width, channels: model.channels })],
    ["model.classes", model.classes ? ctx.number(model.classes) : null],
    ["model.engine", model.engine],
    ["model.preprocessing", preprocessing],
    ["model.origin", typeof origin === "string" ? origin : null],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const parts = [heading(model.name), element("dl", { class: "facts" }, facts.map(([key, value]) =>
    element("div", {}, element("dt", {}, ctx.text(key)), element("dd", { data: { fact: key.split(".")[1] } }, value))))];
  if (scores && Object.keys(scores).length) parts.push(heading(ctx.text("model.scores"), "h3"), recordTable(scores, ctx.text("model.scores")));
  return element("section", { class: "card stack" }, parts);
}

const heading = (words, level = "h2") => element(level, {}, words);

/** 5,717,416 as 5.7 million, with all digits behind it. */
function big(value) {
  if (!value) return "–";
  const short = new Intl.NumberFormat(ctx.language(), { notation: "compact", maximumSignificantDigits: 3 }).format(value);
  return value < 10_000 ? ctx.number(value) : `${short} (${ctx.number(value)})`;
}

function commandsCard(commands) {
  const lines = Object.entries(commands).flatMap(([name, lines]) => [lines].flat().map((line) => [name, line]));
  return written(card("model.commands", note("model.commands_why"),
    element("ul", { class: "commands" }, lines.map(([name, line]) => {
      const copy = button("model.copy", () => copyText(copy, line), { "aria-label": ctx.text("model.copy_what", { name }) });
      return element("li", {}, element("span", { class: "soft small" }, ctx.text(`model.command.${name}`)),
        element("pre", { tabindex: 0 }, element("code", {}, line)), copy);
    }))));
}

async function copyText(where, words) {
  try {
    await navigator.clipboard.writeText(words);
    where.textContent = ctx.text("model.copied");
    ctx.announce(ctx.text("model.copied"));
  } catch {
    getSelection().selectAllChildren(where.parentElement.querySelector("code")); // the person copies it
    where.textContent = ctx.text("model.selected");
  }
  setTimeout(() => (where.textContent = ctx.text("model.copy")), COPIED_FOR);
}

function picturesCard({ filters, filters_are: kind, positions }) {
  const parts = [];
  if (filters?.length) {
    parts.push(heading(ctx.text("model.filters"), "h3"), note(kind === "kernels" ? "model.kernels_why" : "model.filters_why"),
      element("div", { class: "filters", role: "img", "aria-label": ctx.text("model.filters_label", { count: filters.length }) },
        filters.map((src) => element("img", { src, alt: "", loading: "lazy" }))));
  }
  if (positions) {
    const [rows, columns] = positions.grid;
    parts.push(heading(ctx.text("model.positions"), "h3"), note("model.positions_why"),
      element("img", { class: "positions", src: positions.image, alt: ctx.text("model.positions_label", { rows, columns }) }));
  }
  if (!parts.length) parts.push(note("model.no_pictures"));
  return written(element("section", { class: "card stack" }, heading(ctx.text("model.pictures")), parts));
}

function tableCard(key, record) {
  return written(card(key, recordTable(record, ctx.text(key))));
}

// How it was trained is long: it opens on a click.
function passportCard({ provenance, ...passport }) {
  const made = tableCard("model.passport", passport);
  if (!provenance || !Object.keys(provenance).length) return made;
  made.append(element("details", {},
    element("summary", {}, ctx.text("model.provenance")), recordTable(provenance, ctx.text("model.provenance"))));
  return made;
}

// Parts made after mounting get their words here.
function written(part) {
  translate(part);
  return part;
}
