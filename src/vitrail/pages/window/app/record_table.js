// Records of the server as tables: nested fields get dotted names, long lists are cut and counted.
import { element } from "./elements.js";
import { has, text } from "./language.js";

const MOST_ITEMS = 12; // of a list that stands in one cell

/**
 * Fields of a record, [name, value] each, nested ones by dotted names.
 * >>> flatten({ a: { b: 1 }, c: [2, 3] })
 * [["a.b", 1], ["c", [2, 3]]]
 */
export function flatten(record, before = "") {
  return Object.entries(record ?? {}).flatMap(([key, value]) => {
    const nested = value !== null && typeof value === "object" && !Array.isArray(value);
    return nested ? flatten(value, `${before}${key}.`) : [[before + key, value]];
  });
}

/** A value in one line; what is longer than a line is cut. */
export function valueText(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) {
    const shown = value.slice(0, MOST_ITEMS).map(valueText).join(", ");
    return value.length > MOST_ITEMS ? text("views.and_more", { shown, more: value.length - MOST_ITEMS }) : shown || "–";
  }
  if (typeof value === "object") return flatten(value).map(([key, one]) => `${key}: ${valueText(one)}`).join(", ");
  if (typeof value === "boolean") return text(value ? "views.yes" : "views.no");
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return has(`views.value.${value}`) ? text(`views.value.${value}`) : String(value);
}

/** A table of a record's fields, in a part of the page that scrolls where it is too wide. */
export function recordTable(record, label) {
  const rows = flatten(record).map(([name, value]) => element("tr", {},
    element("th", { scope: "row" }, element("code", {}, name)), element("td", {}, valueText(value))));
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label },
    element("table", { class: "record" }, element("tbody", {}, rows)));
}
