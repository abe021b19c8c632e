// Images as points on a map: hover names one, a click or the arrow keys choose one.
import { element } from "./elements.js";

const HEIGHT = 0.72; // of the width
const MARGIN = 18;
const NEAR = 16; // pixels from the pointer
const GOLDEN = 137.508; // degrees: hues of neighbouring classes lie far apart
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The colour of class number `index`, for both themes. */
export const classColour = (index) => `oklch(0.66 0.16 ${(40 + index * GOLDEN) % 360})`;

export class Scatter {
  /** `pick(number)` is called with the chosen point, `describe(number)` names one for the tip. */
  constructor({ pick, describe }) {
    Object.assign(this, { pick, describe, points: [], selected: -1 });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.tip = element("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.root = element("div", {
      class: "scatter", tabindex: 0, role: "application",
      on: {
        pointermove: (event) => this.hover(event), pointerleave: () => (this.tip.hidden = true),
        click: (event) => this.choose(event), keydown: (event) => this.key(event),
      },
    }, this.canvas, this.tip);
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  /** `points` of [x, y] in any unit; `look(number)` gives {colour, ring} of each. */
  show({ points, look, selected, label }) {
    Object.assign(this, { points, look, selected });
    this.root.setAttribute("aria-label", label);
    this.draw();
  }

  draw() {
    const width = this.root.clientWidth;
    if (!width || !this.points.length) return;
    const height = Math.round(width * HEIGHT);
    const scale = devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [width * scale, height * scale];
    this.canvas.style.height = `${height}px`;
    this.places = place(this.points, width, height);
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const ink = getComputedStyle(this.root).color;
    const radius = Math.max(2.6, Math.min(5.5, 90 / Math.sqrt(this.points.length)));
    const order = [...this.points.keys()].sort((a, b) => this.look(a).ring - this.look(b).ring);
    for (const number of order) this.dot(context, number, radius, ink);
    if (this.selected >= 0) this.dot(context, this.selected, radius * 1.7, ink, true);
  }

  dot(context, number, radius, ink, chosen = false) {
    const { colour, ring } = this.look(number);
    context.beginPath();
    context.arc(...this.places[number], radius, 0, 2 * Math.PI);
    context.globalAlpha = chosen ? 1 : 0.8;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
    if (!ring && !chosen) return;
    context.lineWidth = chosen ? 3 : 1.6;
    context.strokeStyle = ink;
    context.stroke();
  }

  nearest({ clientX, clientY }) {
    if (!this.places) return -1;
    const box = this.canvas.getBoundingClientRect();
    const distance = ([x, y]) => Math.hypot(x - (clientX - box.left), y - (clientY - box.top));
    let best = -1;
    this.places.forEach((one, number) => {
      const near = distance(one);
      if (near < NEAR && (best < 0 || near < distance(this.places[best]))) best = number;
    });
    return best;
  }

  hover(event) {
    const number = this.nearest(event);
    this.tip.hidden = number < 0;
    if (number < 0) return;
    this.tip.textContent = this.describe(number);
    const [x, y] = this.places[number];
    const left = Math.min(Math.max(x - this.tip.offsetWidth / 2, 4), this.root.clientWidth - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${left}px, ${y > 44 ? y - 38 : y + 14}px)`;
  }

  choose(event) {
    const number = this.nearest(event);
    if (number >= 0) this.pick(number);
  }

  // The nearest point in the direction of the key, from the chosen one.
  key(event) {
    const way = STEPS[event.key];
    if (!way || !this.places) return;
    event.preventDefault();
    const from = this.places[this.selected] ?? [this.root.clientWidth / 2, this.canvas.clientHeight / 2];
    let best = [-1, Infinity];
    this.places.forEach(([x, y], number) => {
      const along = (x - from[0]) * way[0] + (y - from[1]) * way[1];
      const aside = Math.abs((x - from[0]) * way[1]) + Math.abs((y - from[1]) * way[0]);
      const cost = along + 2 * aside;
      if (number !== this.selected && along > 0.5 && aside <= 2 * along && cost < best[1]) best = [number, cost];
    });
    if (best[0] >= 0) this.pick(best[0]);
  }
}

// The same scale for both axes, so that distances are what they are.
function place(points, width, height) {
  const range = (axis) => {
    const values = points.map((point) => point[axis]);
    return [Math.min(...values), Math.max(...values)];
  };
  const [[left, right], [low, high]] = [range(0), range(1)];
  const scale = Math.min((width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN) / (high - low || 1));
  const [x0, y0] = [(width - scale * (right - left)) / 2, (height + scale * (high - low)) / 2];
  return points.map(([x, y]) => [x0 + (x - left) * scale, y0 - (y - low) * scale]);
}
