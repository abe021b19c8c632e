// One catalogue of texts in two languages: elements with data-text, data-label, data-title or data-placeholder get
// theirs.

const KEPT = "vitrail language";
const FILES = ["strings/frame.json", "strings/views.json"];
let catalogue = { en: {}, ko: {} };
let chosen = "en";

/** Reads the catalogue; an offline page has it already. */
export async function loadTexts(given = null) {
  const parts = given ? [given] : await Promise.all(FILES.map((file) => readPart(file)));
  catalogue = { en: {}, ko: {} };
  for (const part of parts) for (const name of Object.keys(catalogue)) Object.assign(catalogue[name], part[name]);
}

async function readPart(file) {
  const response = await fetch(new URL(`../${file}`, import.meta.url));
  return response.ok ? response.json() : {};
}

/** Chooses a language ("" for the one kept, the one a page was written in, or the browser's) and returns its name. */
export function chooseLanguage(name) {
  const written = document.documentElement.dataset.language;
  const wished = [name, kept(), written, ...navigator.languages.map((one) => one.slice(0, 2))];
  chosen = wished.find((one) => one && one in catalogue) ?? "en";
  if (name) keep(chosen);
  document.documentElement.lang = chosen;
  translate(document);
  return chosen;
}

export const language = () => chosen;

/** The text of a key; {name} in it is replaced by the value of that name. A key without a text is shown as it is. */
export function text(key, values = {}) {
  const words = catalogue[chosen][key] ?? catalogue.en[key] ?? key;
  return words.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

export const has = (key) => key in catalogue[chosen];

export function percent(share, digits = share < 0.1 ? 1 : 0) {
  const format = { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(chosen, format).format(share);
}

export function number(value, digits = 0) {
  const format = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(chosen, format).format(value);
}

/** Writes the texts of all elements below one, in the chosen language. */
export function translate(root) {
  const write = (attribute, apply) => {
    for (const element of root.querySelectorAll(`[data-${attribute}]`)) apply(element, text(element.dataset[attribute]));
  };
  write("text", (element, words) => (element.textContent = words));
  write("label", (element, words) => element.setAttribute("aria-label", words));
  write("title", (element, words) => (element.title = words));
  write("placeholder", (element, words) => (element.placeholder = words));
}

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null; // the browser does not allow it
  }
}

function keep(name) {
  try {
    localStorage.setItem(KEPT, name);
  } catch {
    // not kept: the browser does not allow it
  }
}
