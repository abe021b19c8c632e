// The elements of the Attention view; their texts come from the catalogue.
import { saving } from "../charts.js";
import { element } from "../elements.js";

const words = (key, name = "span", attributes = {}) => element(name, { ...attributes, data: { text: key } });
const button = (key, attributes = {}) => words(key, "button", { type: "button", ...attributes });
const select = (id, key) => element("label", { class: "field" }, words(key), element("select", { id }));
const check = (id, key) => element("label", { class: "check" }, element("input", { type: "checkbox", id }), words(key));

/** Builds the view below `root` around a stage; returns its parts by name. */
export function buildAttention(root, stage) {
  const [method, layer, head, target] = [
    select("method", "attention.map"), select("layer", "attention.layer"), select("head", "attention.head"),
    select("target", "attention.target"),
  ];
  const [lines, windows, sinks] = [
    check("lines", "attention.show.lines"), check("windows", "attention.show.windows"), check("sinks", "attention.show.sinks"),
  ];
  const opacity = element("input", { type: "range", id: "opacity", min: 0, max: 1, step: 0.05 });
  const parts = {
    method: method.lastChild, layer: layer.lastChild, head: head.lastChild, target: target.lastChild, opacity,
    linesWords: lines.lastChild, lines: lines.firstChild, windows: windows.firstChild, sinks: sinks.firstChild, windowsWords: windows.lastChild,
    forward: button("attention.forward", { id: "forward", "aria-pressed": "true" }),
    back: button("attention.back", { id: "back", "aria-pressed": "false" }),
    play: button("attention.play", { id: "play", "aria-pressed": "false" }),
    all: button("attention.heads.all", { id: "heads-all" }), one: button("attention.heads.one", { id: "heads-one" }),
    png: button("attention.png", { id: "png" }), svg: button("attention.svg", { id: "svg" }),
    link: button("attention.link", { id: "link" }),
    linkNote: element("p", { class: "small soft", id: "link-note", role: "status" }),
    where: element("strong"), words: element("span"),
    low: element("span"), high: element("span"), bar: element("i"),
    tokens: element("div", { class: "row tokens", id: "tokens", role: "group", data: { label: "attention.tokens" } }),
    heads: element("div", { class: "heads", id: "heads", role: "group", data: { label: "attention.heads.title" } }),
    withData: button("attention.distance.data", { id: "distance-data" }),
    dataNote: element("p", { class: "small soft", id: "distance-note", "aria-live": "polite" }),
    distance: element("div", { id: "distance" }), distanceTable: element("div", { id: "distance-table" }),
    sinkList: element("ul", { class: "row", id: "sink-list" }),
    empty: words("attention.empty", "p", { class: "soft" }),
  };
  parts.say = element("p", { id: "say", class: "say", "aria-live": "polite" }, parts.where, " ", parts.words);
  parts.direction = element("div", { class: "segments", role: "group", data: { label: "attention.direction" } },
    parts.forward, parts.back);
  addCards(root, stage, parts, { pickers: [method, layer, head, target], checks: [lines, windows, sinks] });
  return parts;
}

function addCards(root, stage, parts, { pickers, checks }) {
  const scale = element("div", { class: "scale", "aria-hidden": "true" }, parts.low, parts.bar, parts.high);
  parts.controls = element("div", { class: "stack controls" },
    scale, parts.say,
    element("div", { class: "row" }, parts.direction, parts.tokens),
    element("div", { class: "pickers" }, pickers),
    element("div", { class: "row" }, parts.play),
    element("label", { class: "range" }, words("attention.opacity"), parts.opacity),
    element("div", { class: "row checks" }, checks),
    element("div", { class: "row" }, words("attention.save", "span", { class: "soft small" }), parts.png, parts.svg, parts.link, parts.linkNote),
    keyboard());
  parts.title = words("attention.title", "h2", { id: "attention-title" });
  parts.left = element("section", { class: "card stack", "aria-labelledby": "attention-title" }, parts.title, stage, parts.controls);
  parts.sinkCard = card("attention.sinks.title", words("attention.sinks.text", "p", { class: "small" }), parts.sinkList);
  parts.headCard = card("attention.heads.title", parts.heads);
  const { headCard } = parts;
  headCard.firstChild.after(element("div", { class: "row" },
    element("div", { class: "segments", role: "group", data: { label: "attention.heads.title" } }, parts.all, parts.one)));
  parts.none = card("attention.none.title", words("attention.none.text", "p"));
  parts.distanceCard = card("attention.distance.title", words("attention.distance.text", "p", { class: "small soft" }),
    parts.distance, element("div", { class: "row" }, parts.withData, parts.dataNote),
    element("details", {}, words("attention.table", "summary"), parts.distanceTable,
      saving(() => parts.distance.firstChild, "vitrail-distance")));
  parts.right = element("div", { class: "stack" }, parts.none, headCard, parts.distanceCard, parts.sinkCard);
  root.append(parts.empty, element("div", { class: "attention" }, parts.left, parts.right));
}

function card(key, ...children) {
  return element("section", { class: "card stack tight" }, words(key, "h2"), children);
}

function keyboard() {
  const line = (keys, key) => element("li", {}, keys.map((one) => element("kbd", {}, one)), " ", words(key));
  return element("details", { class: "keys" }, words("attention.keys", "summary"), element("ul", { class: "small" },
    line(["←", "↑", "↓", "→"], "attention.keys.patch"), line(["[", "]"], "attention.keys.layer"),
    line([",", "."], "attention.keys.head"), line(["b"], "attention.keys.back"), line(["c"], "attention.keys.token")));
}
