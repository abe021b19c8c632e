// The frame: tabs, model, photo, language and theme; it asks for an inspection and hands it to the open view.
//
// Every view gets `ctx`:
//   state, set        the store (state.js)
//   text, number, percent, language   words and numbers in the chosen language (language.js)
//   api               requests to the server (api.js), null in an offline page
//   models, model     records of GET /v1/models; the chosen one
//   photo             {blob, name, url, id} or null: what is looked at; `url` is for <img>
//   inspection        {header, arrays, layers} of the photo by the chosen model, or null until it is there
//   prediction        of an exported file in its place: {label, score} of the best classes
//   explain(method, target)   promise of the map of a method for the photo, computed once
//   open(blob, name, id)   looks at another photo; `id` is "data:ID" for one of the server's data
//   announce(words)   tells a screen reader
//   complain(error)   shows an Error, or words, as a sentence
//   refresh()         calls `update` of the open view again
import { layersOf } from "./attention_math.js";
import * as api from "./api.js";
import { element } from "./elements.js";
import { prepareImages, showSamples } from "./images.js";
import { chooseLanguage, language, loadTexts, number, percent, text, translate } from "./language.js";
import { askForKey, prepareSignIn, translateSignIn } from "./sign_in.js";
import { notify, set, state, subscribe } from "./state.js";

const find = (id) => document.getElementById(id);
const LANGUAGES = ["en", "ko"];
const EDGE = 24; // pixels of the row of tabs that the arrow of further ones covers
const LOADING = 1000; // ms between questions whether a model is loaded
const opened = new Map(); // modules of the views that were opened, by id
let views = {};
let source = null; // server.js or the images of an offline page
let current = null; // id of the open view
let asked = ""; // what the last inspection was asked for
let aborter = null;
let explained = new Map();
let kept = null; // the last photo that was looked into, and what was found: {photo, model, asked, explained, found}
let exported = null; // what an exported file shows in place of views

const ctx = {
  state, set, text, number, percent, language, api: null, models: [], model: null, photo: null, inspection: null,
  prediction: null, explain, open, announce, complain, refresh: notify,
};

/** Starts the page with these views (views.js) on a source of images and inspections. */
export async function start(chosenViews, chosenSource) {
  [views, source] = [chosenViews, chosenSource];
  ctx.api = source.offline ? null : api;
  document.documentElement.classList.toggle("offline", Boolean(source.offline));
  await loadTexts(source.strings);
  if (!(state.view in views)) set({ view: "attention" });
  listTabs();
  wireHeader();
  prepareImages({ open, complain, chooseSample: (id) => chooseImage(`sample:${id}`), offline: Boolean(source.offline) });
  prepareSignIn({ attempt: () => source.models(), opened: enter });
  subscribe(show);
  showFrame();
  openView();
  await begin();
}

async function begin() {
  try {
    await waitForModels();
    await listImages();
    refuseModel();
  } catch (error) {
    complain(error);
  }
  document.documentElement.dataset.ready = "1";
  notify();
}

// With a key: what was refused is asked for once more.
function enter() {
  if (ctx.models.length) {
    location.reload(); // the key was taken back meanwhile: every view begins again
    return;
  }
  find("tabs").querySelector("[aria-selected=true]").focus();
  announce(text("frame.key.done"));
  begin();
}

// The server answers before its models are loaded.
async function waitForModels() {
  for (;;) {
    ctx.models = await source.models();
    chooseModel();
    const loading = ctx.model?.state === "loading";
    find("busy").hidden = !loading;
    find("busy-words").dataset.text = loading ? "frame.loading" : "frame.busy";
    find("busy-words").textContent = text(find("busy-words").dataset.text);
    if (!loading) return;
    notify();
    await new Promise((resolve) => setTimeout(resolve, LOADING));
  }
}

// Another model was chosen, which may still be loading.
async function followModel() {
  following++;
  try {
    if (ctx.model?.state === "loading") await waitForModels();
    await listImages();
  } catch (error) {
    complain(error);
  }
  following--;
  notify();
}

let following = 0; // models that are being followed

// A link may name a model that is not served: the first one is shown, and that is said.
function refuseModel() {
  const name = state.model;
  if (!name || !ctx.model || ctx.models.some((one) => one.name === name)) return;
  set({ model: "" });
  complain(text("frame.model.unknown", { name, shown: ctx.model.name }));
}

function chooseModel() {
  ctx.model = ctx.models.find(({ name }) => name === state.model) ?? ctx.models[0] ?? null;
  const select = find("model");
  select.replaceChildren(...ctx.models.map(({ name }) => new Option(name, name)));
  if (ctx.model) select.value = ctx.model.name;
  find("model-name").textContent = ctx.model?.name ?? "";
  find("model-label").hidden = ctx.models.length < 2;
  find("model-name").hidden = ctx.models.length > 1;
}

let listed = [];
let choices = 0; // how often an image of the server was chosen: a later choice wins

// Samples depend on the model: one for grey images has other ones.
async function listImages() {
  listed = await source.samples(ctx.model?.name ?? "");
  showSamples(listed);
  const { photo } = ctx;
  const same = photo?.id.startsWith("sample:") && listed.some(({ id, name }) => photo.id === `sample:${id}` && photo.name === name);
  if (photo && (same || !photo.id.startsWith("sample:"))) return;
  find("notice").hidden = true;
  if ((await chooseImage(state.image)) || !listed.length) return;
  const problem = find("notice").hidden ? "" : find("notice-words").textContent; // of an image that a link names
  await chooseImage(`sample:${listed[0].id}`);
  if (problem) complain(problem);
}

// Looks at an image of the server by its id; false where there is none.
async function chooseImage(id) {
  const model = encodeURIComponent(ctx.model?.name ?? ""); // each has data of its own
  if (id.startsWith("data:")) return chooseAddress(`v1/data/${encodeURIComponent(id.slice(5))}/image?model=${model}`, id);
  const sample = listed.find((one) => id === `sample:${one.id}`);
  return sample ? chooseAddress(sample.url, id, sample.name) : false;
}

async function chooseAddress(address, id, name = "") {
  const mine = ++choices;
  try {
    const blob = await source.image(address);
    if (mine === choices) setPhoto(blob, name, id);
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

/** Looks at a photo: of the person, or by its id of the server's data. */
function open(blob, name = "", id = "") {
  choices++;
  setPhoto(blob, name, id);
}

function setPhoto(blob, name, id) {
  if (ctx.photo && ctx.photo !== kept?.photo) URL.revokeObjectURL(ctx.photo.url);
  ctx.photo = { blob, name, id, url: URL.createObjectURL(blob) };
  Object.assign(ctx, { inspection: null, prediction: null });
  find("notice").hidden = true;
  set({ image: id });
  notify();
}

const isExported = () => ctx.model?.can_inspect === false;

// Asks for an inspection where photo or model are others than those of the last one; an exported file predicts.
async function inspect() {
  if (!ctx.photo || !ctx.model || ctx.model.state === "loading" || (isExported() && !ctx.model.classes)) return;
  const wanted = `${ctx.model.name} ${ctx.photo.url}`;
  if (wanted === asked) return;
  asked = wanted;
  aborter?.abort();
  aborter = new AbortController();
  explained = new Map();
  Object.assign(ctx, { inspection: null, prediction: null });
  find("busy").hidden = false;
  try {
    const found = await lookAt(ctx.photo, ctx.model.name, aborter.signal);
    if (asked !== wanted) return;
    Object.assign(ctx, found);
    keepPhoto(found);
    announceAnswer();
  } catch (error) {
    if (asked !== wanted || error.name === "AbortError") return;
    refusePhoto(error);
  }
  find("busy").hidden = true;
  document.documentElement.dataset.inspected = String(Number(document.documentElement.dataset.inspected ?? 0) + 1);
  notify();
}

async function lookAt(photo, model, signal) {
  if (isExported()) return { prediction: await source.predict(photo, model, signal) };
  const found = await source.inspect(photo, model, signal);
  return { inspection: { ...found, layers: layersOf(found) } };
}

function keepPhoto(found) {
  if (kept && kept.photo !== ctx.photo) URL.revokeObjectURL(kept.photo.url);
  kept = { photo: ctx.photo, model: ctx.model.name, asked, explained, found };
}

// A photo that cannot be shown leaves the one before it as it was, with its maps.
function refusePhoto(error) {
  const { photo } = ctx;
  const isNew = photo !== kept?.photo;
  const named = isNew && photo.name && error instanceof api.ApiError && error.code !== 401;
  complain(named ? text("frame.photo.broken", { name: photo.name, reason: error.message }) : error);
  if (!isNew) return;
  URL.revokeObjectURL(photo.url);
  ctx.photo = kept?.photo ?? null;
  if (kept?.model === ctx.model.name) {
    [asked, explained] = [kept.asked, kept.explained];
    Object.assign(ctx, kept.found);
  } else {
    asked = ""; // the model is another one by now
  }
  followed = ctx.photo?.id ?? "";
  set({ image: followed });
}

function explain(method, target) {
  const key = `${asked} ${method} ${target}`;
  if (!explained.has(key)) {
    const promise = source.explain(ctx.photo, ctx.model.name, { method, target }, aborter?.signal);
    promise.catch(() => explained.delete(key)); // it may be asked again
    explained.set(key, promise);
  }
  return explained.get(key);
}

let followed = state.image;

function show() {
  const model = ctx.models.find(({ name }) => name === state.model) ?? ctx.models[0] ?? null;
  if (model?.name !== ctx.model?.name) {
    ctx.model = model;
    find("model").value = model?.name ?? "";
    followModel();
  } else if (state.image !== followed) {
    followed = state.image; // a link to another image was followed
    if (ctx.photo && state.image && state.image !== ctx.photo.id) chooseImage(state.image);
  }
  if (document.documentElement.dataset.ready && !following) refuseModel();
  showFrame();
  inspect();
  openView();
}

let shownFrame = "";

function showFrame() {
  const frame = JSON.stringify([
    state.lang, state.theme, state.view, state.image, ctx.photo?.url, Boolean(ctx.inspection), ctx.prediction,
  ]);
  if (frame === shownFrame) return;
  shownFrame = frame;
  const chosen = chooseLanguage(state.lang);
  const other = LANGUAGES.find((name) => name !== chosen);
  find("language").textContent = text(`frame.language.${other}`);
  find("language").lang = other;
  translateSignIn();
  const theme = shownTheme();
  document.documentElement.dataset.theme = theme;
  find("theme").setAttribute("aria-pressed", String(theme === "dark"));
  for (const tab of find("tabs").children) {
    const selected = tab.dataset.view === state.view;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    if (selected) keepInSight(tab);
  }
  hintTabs();
  for (const button of find("samples").children) {
    button.setAttribute("aria-pressed", String(`sample:${button.dataset.id}` === state.image));
  }
  showAnswer();
}

// Scrolls the row of tabs alone: scrollIntoView would move the page too.
function keepInSight(tab) {
  const row = find("tabs");
  const [left, right] = [tab.offsetLeft - EDGE, tab.offsetLeft + tab.offsetWidth + EDGE];
  if (left < row.scrollLeft || right > row.scrollLeft + row.clientWidth) row.scrollLeft = left - row.clientWidth / 3;
}

// Where tabs lie beyond an edge of the row, an arrow says so.
function hintTabs() {
  const { scrollLeft, clientWidth, scrollWidth, parentElement: nav } = find("tabs");
  nav.classList.toggle("more-left", scrollLeft > 2);
  nav.classList.toggle("more-right", scrollLeft + clientWidth < scrollWidth - 2);
}

const shownTheme = () => state.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function answer() {
  const best = (ctx.inspection?.header.prediction ?? ctx.prediction)?.[0];
  return best ? text("frame.answer", { label: best.label, score: percent(best.score) }) : "";
}

function showAnswer() {
  find("answer").textContent = answer();
  document.title = [answer(), text("frame.title")].filter(Boolean).join(" · ");
}

function announceAnswer() {
  announce(answer());
}

function listTabs() {
  for (const id of Object.keys(views)) {
    const tab = element("button", {
      role: "tab", type: "button", id: `tab-${id}`, "aria-controls": `panel-${id}`,
      data: { view: id, text: `frame.view.${id}` }, on: { click: () => set({ view: id }), keydown: moveTab },
    });
    find("tabs").append(tab);
    const panel = element("section", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`, hidden: true });
    find("panels").append(panel);
  }
  find("tabs").hidden = Object.keys(views).length < 2;
}

function moveTab(event) {
  const tabs = [...find("tabs").children];
  const place = tabs.indexOf(event.currentTarget);
  const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const tab = tabs[(next + tabs.length) % tabs.length];
  set({ view: tab.dataset.view });
  tab.focus();
}

async function openView() {
  const id = state.view in views ? state.view : "attention";
  if (current !== id) {
    opened.get(current)?.leave?.();
    current = id;
  }
  const without = isExported() && id !== "model"; // which shows what is known of an exported file
  for (const panel of find("panels").children) panel.hidden = without || panel.id !== `panel-${id}`;
  find("exported").hidden = !without;
  if (without) {
    await showExported(id);
    return;
  }
  if (!opened.has(id)) {
    try {
      const view = await views[id]();
      if (opened.has(id)) return;
      opened.set(id, view);
      view.mount(find(`panel-${id}`), ctx);
      translate(find(`panel-${id}`));
    } catch (error) {
      complain(error);
      return;
    }
  }
  if (current !== id) return;
  try {
    opened.get(id).update(state, ctx);
  } catch (error) {
    complain(error);
  }
}

async function showExported(id) {
  if (!exported) {
    const { ExportedView } = await import("./exported.js");
    exported ??= new ExportedView(find("exported"));
  }
  if (current === id) exported.show(id, ctx);
}

function wireHeader() {
  find("language").addEventListener("click", () => {
    set({ lang: LANGUAGES.find((name) => name !== language()) });
  });
  find("theme").addEventListener("click", () => set({ theme: shownTheme() === "dark" ? "light" : "dark" }));
  find("model").addEventListener("change", ({ target }) => set({ model: target.value }));
  find("notice-close").addEventListener("click", () => (find("notice").hidden = true));
  find("tabs").addEventListener("scroll", hintTabs, { passive: true });
  addEventListener("resize", hintTabs);
  addEventListener("resize", notify); // charts are as wide as the page
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    shownFrame = "";
    notify();
  });
}

function announce(words) {
  find("said").textContent = words;
}

function complain(error) {
  if (error?.name === "AbortError") return;
  if (error?.code === 401) {
    if (!error.stale) askForKey(); // one with a key that was given or forgotten meanwhile says nothing new
    return;
  }
  const known = typeof error === "string" || error instanceof api.ApiError;
  if (!known) console.error(error);
  find("notice-words").textContent = typeof error === "string" ? error : error.message || text("frame.error.unknown");
  find("notice").hidden = false;
}
