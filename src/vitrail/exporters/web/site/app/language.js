// One catalogue of texts in two languages; the page is written in the one that is chosen.

const KEPT = "vitrail language";
const listeners = [];
let catalogue = {};
let chosen = "en";

export async function loadTexts() {
  const response = await fetch("strings.json");
  catalogue = await response.json();
  const wished = kept() ?? navigator.languages.map((name) => name.slice(0, 2)).find((name) => name in catalogue);
  chosen = wished in catalogue ? wished : "en";
  apply();
}

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

export function switchLanguage() {
  const names = Object.keys(catalogue);
  chosen = names[(names.indexOf(chosen) + 1) % names.length];
  try {
    localStorage.setItem(KEPT, chosen);
  } catch {
    // not kept: the browser does not allow it
  }
  apply();
}

// Calls back whenever the language was chosen.
export function onLanguage(listener) {
  listeners.push(listener);
}

export function text(key, values = {}) {
  return catalogue[chosen][key].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

export function percent(share, digits = 1) {
  const format = { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(chosen, format).format(share);
}

export function number(value, digits) {
  const format = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(chosen, format).format(value);
}

// Texts of the elements below one: what they say, their accessible names and placeholders.
export function translate(root) {
  for (const element of root.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", text(element.dataset.label));
  }
  for (const element of root.querySelectorAll("[data-placeholder]")) {
    element.placeholder = text(element.dataset.placeholder);
  }
}

function apply() {
  document.documentElement.lang = chosen;
  translate(document);
  for (const listener of listeners) listener();
}
