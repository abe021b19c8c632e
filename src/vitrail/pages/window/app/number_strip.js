// Numbers of a tensor as they are: a strip of colours, the first of them in digits, and all behind a click.
import { element } from "./elements.js";
import { language, text } from "./language.js";

const FIRST = 6; // numbers written out beside the strip

/** A number as short as it can be read: three significant digits. */
export function digits(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100_000)) return value.toExponential(1).replace("-", "−");
  const shown = new Intl.NumberFormat(language(), { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : 3 });
  return shown.format(value).replace("-", "−");
}

/**
 * A figure of numbers: `signed` from blue (negative) over the page to red (positive), else as bars of shares.
 * @param {{name: string, note?: string, shape: number[], numbers: (number | null)[], tone?: string}} tensor
 */
export function numberStrip({ name, note = "", shape, numbers, tone = "" }) {
  const most = Math.max(...numbers.map((value) => Math.abs(value ?? 0)), 1e-12);
  const cells = numbers.map((value) => {
    const share = Math.abs(value ?? 0) / most;
    const colour = tone || (value < 0 ? "--lead" : "--glass");
    return element("i", {
      title: digits(value),
      style: { background: `color-mix(in srgb, var(${colour}) ${Math.round(100 * share)}%, var(--field))` },
    });
  });
  const total = shape.reduce((product, side) => product * side, 1);
  const first = numbers.slice(0, FIRST).map(digits).join("  ");
  return element("figure", { class: "strip", data: { name, numbers: JSON.stringify(numbers) } },
    element("figcaption", {}, element("b", {}, name), element("span", { class: "shape" }, shapeText(shape)),
      note ? element("span", { class: "soft" }, note) : null),
    element("div", { class: "strip-cells", "aria-hidden": "true" }, cells),
    element("p", { class: "digits" }, numbers.length > FIRST ? `${first}  …` : first),
    numbers.length > FIRST ? all(numbers, total) : null);
}

function all(numbers, total) {
  const words = numbers.length < total
    ? text("walk.numbers_of", { count: numbers.length, total })
    : text("walk.numbers_all", { count: numbers.length });
  return element("details", {}, element("summary", {}, words), element("p", { class: "digits all" }, numbers.map(digits).join("  ")));
}

/**
 * >>> shapeText([197, 768])
 * "197 × 768"
 */
export const shapeText = (shape) => (shape.length ? shape.join(" × ") : "1");

/**
 * Shares as bars with a name and the exact number each: those of a softmax, or scores of classes.
 * @param {{name: string, share: number, picture?: Element}[]} rows
 */
export function shareBars(rows, format) {
  const most = Math.max(...rows.map(({ share }) => share), 1e-12);
  return element("ul", { class: "share-bars" }, rows.map(({ name, share, picture, value = share }) =>
    element("li", { data: { value } }, picture ?? null, element("span", {}, name),
      element("span", { class: "bar-track", "aria-hidden": "true" },
        element("i", { class: "bar-after", style: { width: `${(100 * Math.max(share, 0)) / most}%` } })),
      element("span", { class: "number" }, format(value)))));
}
