// Numbers of a tensor as they are: a strip of colours, the first of them in digits, and all behind a click.
import { element } from "./elements.js";
import { language, text } from "./language.js";

const FIRST = 6; // numbers written out below the strip

/** A number as short as it can be read: about three digits. */
export function digits(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100_000)) return value.toExponential(1).replaceAll("-", "−");
  const most = size >= 100 ? 0 : size >= 10 ? 1 : 3;
  return new Intl.NumberFormat(language(), { maximumFractionDigits: most }).format(value).replace("-", "−");
}

/**
 * A figure of numbers: from blue (negative) over the page's own colour (zero) to red (positive), or in one tone.
 * @param {{name: string, title: string, shape: number[], numbers: (number | null)[], tone?: string}} tensor
 */
export function numberStrip({ name, title, shape, numbers, tone = "" }) {
  const most = Math.max(...numbers.map((value) => Math.abs(value ?? 0)), 1e-12);
  const cells = numbers.map((value) => {
    const share = Math.abs(value ?? 0) / most;
    const colour = tone || (value < 0 ? "--lead" : "--glass");
    return element("i", {
      title: digits(value), style: { background: `color-mix(in srgb, var(${colour}) ${Math.round(100 * share)}%, var(--field))` },
    });
  });
  const first = numbers.slice(0, FIRST).map(digits).join("   ");
  return element("figure", { class: "strip", data: { name, numbers: JSON.stringify(numbers) } },
    element("figcaption", {}, element("b", {}, title), element("span", { class: "soft" }, shapeText(shape))),
    element("div", { class: "strip-cells", "aria-hidden": "true" }, cells),
    numbers.length > FIRST ? more(numbers, shape, first) : element("p", { class: "digits" }, first));
}

function more(numbers, shape, first) {
  const total = shape.reduce((product, side) => product * side, 1);
  const words = text(numbers.length < total ? "walk.numbers_of" : "walk.numbers_all", { count: numbers.length, total });
  return element("details", {},
    element("summary", {}, element("span", { class: "digits" }, `${first}   …`), element("span", { class: "unseen" }, words)),
    element("p", { class: "digits all" }, numbers.map(digits).join("   ")),
    element("p", { class: "soft small" }, words));
}

/**
 * >>> shapeText([197, 768])
 * "197 × 768"
 */
export const shapeText = (shape) => shape.join(" × ");

/**
 * Shares as bars with a name and a number each: those of a softmax, or scores of classes. A full bar is 100 %.
 * @param {{name: string, share: number, picture?: Element}[]} rows
 */
export function shareBars(rows, format) {
  return element("ul", { class: "share-bars" }, rows.map(({ name, share, picture }) =>
    element("li", { data: { value: share } }, picture ?? null, element("span", {}, name),
      element("span", { class: "bar-track", "aria-hidden": "true" },
        element("i", { class: "bar-after", style: { width: `${100 * Math.max(share, 0)}%` } })),
      element("span", { class: "number" }, format(share)))));
}
