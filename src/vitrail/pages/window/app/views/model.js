// Model: what it is made of and where it comes from, its filters and positions, and commands to go on with.
import { element } from "../elements.js";
import { button, card, note } from "../fields.js";
import { has, translate } from "../language.js";
import { latest } from "../latest.js";
import { preprocessingWords } from "../preprocessing.js";
import { recordTable, valueText } from "../record_table.js";

export const id = "model";
const COPIED_FOR = 1600; // ms that a button says so
const SHARES = ["accuracy", "top5", "exact", "f1", "mean_precision", "ece"]; // scores from 0 to 1

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
  ask = latest((signal, { name, can_inspect: inside }) => (
    inside === false ? ctx.api.get(`models/${encodeURIComponent(name)}`, { signal }) : ctx.api.get("model", { model: name, signal })
  ), {
    done: (answer, { name }) => {
      found = { answer, model: name };
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
  if (!ctx.api || !ctx.model || ctx.model.state === "loading") return;
  if (askedFor !== ctx.model.name) {
    askedFor = ctx.model.name;
    ask(ctx.model);
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
  if (ctx.model.can_inspect === false) {
    const { config, ...passport } = answer.passport;
    body.replaceChildren(
      element("section", { class: "card" }, element("p", { class: "say", data: { name: "needs" } }, ctx.text("model.exported", { model: found.model }))),
      factsCard({ ...answer, parameters: 0, origin: null, scores: answer.passport.scores }),
      element("div", { class: "columns" }, tableCard("model.config", config), passportCard(passport)));
    return;
  }
  body.replaceChildren(
    factsCard(answer),
    element("div", { class: "columns" },
      commandsCard(answer.commands ?? {}), picturesCard(answer),
      tableCard("model.config", answer.config), passportCard(answer.passport)));
}

function factsCard({ parameters, macs, origin, scores, passport }) {
  const { model } = ctx;
  const [height, width] = model.image_size ?? [];
  const facts = [
    ["model.family", model.family],
    ["model.parameters", parameters ? big(parameters) : null],
    ["model.macs", macs ? big(macs) : null],
    ["model.image_size", height && ctx.text("model.image_size_value", { height, width, channels: model.channels })],
    ["model.classes", model.classes ? ctx.number(model.classes) : null],
    ["model.engine", model.engine],
    ["model.preprocessing", preprocessingWords(passport.preprocessing)],
    ["model.origin", typeof origin === "string" ? valueText(origin) : null],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const parts = [heading(model.name), element("dl", { class: "facts" }, facts.map(([key, value]) =>
    element("div", {}, element("dt", {}, ctx.text(key)), element("dd", { data: { fact: key.split(".")[1] } }, value))))];
  if (scores && Object.keys(scores).length) parts.push(heading(ctx.text("model.scores"), "h3"), scoresList(scores));
  return element("section", { class: "card stack" }, parts);
}

function scoresList(scores) {
  const named = (name) => (has(`model.score.${name}`) ? ctx.text(`model.score.${name}`) : name);
  return element("dl", { class: "facts" }, Object.entries(scores).map(([name, value]) => element("div", {},
    element("dt", {}, named(name)),
    element("dd", { data: { score: name } }, SHARES.includes(name) ? ctx.percent(value, 1) : ctx.number(value, 3)))));
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
