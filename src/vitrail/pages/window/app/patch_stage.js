// A picture with a grid on it: cells are chosen or painted with the mouse, a finger or the keyboard.
import { element, svg } from "./elements.js";
import { cellBox, gridPath, paint } from "./draw.js";

const LONGER_SIDE = 640; // pixels of the canvas; the page scales it
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

export class PatchStage {
  /**
   * `pick(cell, how)` is called with a cell's [row, column]; how is "press", "drag", "hover", "key" (Space or Enter) or
   * "move" (arrow keys). With `paints`, a finger draws on the picture instead of scrolling the page.
   */
  constructor({ label, pick, paints = false, hovers = false, name = "" }) {
    this.pick = pick;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.lines = svg("path", { class: "stage-lines" });
    this.marks = svg("g", {});
    this.cursor = svg("rect", { class: "stage-cursor", fill: "none" });
    this.drawing = svg("svg", { class: "stage-marks", "aria-hidden": "true", preserveAspectRatio: "none" }, this.lines, this.marks, this.cursor);
    this.root = element("div", {
      class: `patch-stage${paints ? " paints" : ""}`, tabindex: 0, role: "application", "aria-label": label, data: { name },
      on: {
        pointerdown: (event) => this.press(event),
        pointermove: (event) => this.drag(event, hovers),
        pointerup: () => (this.pressed = null),
        pointercancel: () => (this.pressed = null),
        keydown: (event) => this.key(event),
      },
    }, this.canvas, this.drawing);
    this.pressed = null;
    this.place = [0, 0];
  }

  /**
   * Shows a picture of `size` (height, width in pixels of the model's image) with a grid and marks over it.
   * `cells` is a canvas with a pixel for each cell; `marks` are elements of SVG in pixels of the image.
   */
  show({ photo, size, grid, extent = size, cells = null, marks = [], cursor = null, lines = true }) {
    [this.grid, this.size, this.extent] = [grid, size, extent];
    const scale = LONGER_SIDE / Math.max(...size);
    const [height, width] = size.map((side) => Math.round(side * scale));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      [this.canvas.width, this.canvas.height] = [width, height];
      this.root.style.setProperty("--shape", `${width} / ${height}`);
    }
    paint(this.canvas, photo, cells, Object.assign([...extent], { size }));
    this.drawing.setAttribute("viewBox", `0 0 ${size[1]} ${size[0]}`);
    this.lines.setAttribute("d", lines ? gridPath(grid, extent) : "");
    this.marks.replaceChildren(...marks);
    this.moveCursor(cursor);
  }

  moveCursor(cell) {
    this.cursor.toggleAttribute("hidden", !cell);
    if (!cell) return;
    this.place = cell;
    const [x, y, width, height] = cellBox(cell, this.grid, this.extent);
    for (const [key, value] of Object.entries({ x, y, width, height })) this.cursor.setAttribute(key, value);
  }

  at({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    const pixels = [((clientY - box.top) / box.height) * this.size[0], ((clientX - box.left) / box.width) * this.size[1]];
    const cell = pixels.map((at, axis) => Math.floor((at * this.grid[axis]) / this.extent[axis]));
    return cell.every((place, axis) => place >= 0 && place < this.grid[axis]) ? cell : null;
  }

  press(event) {
    const cell = this.grid && this.at(event);
    if (!cell || event.button > 0) return;
    this.pressed = cell.join();
    if (event.isPrimary) this.root.setPointerCapture?.(event.pointerId);
    this.pick(cell, "press");
  }

  drag(event, hovers) {
    const hovering = hovers && event.pointerType === "mouse" && this.pressed === null;
    if (!this.grid || (this.pressed === null && !hovering)) return;
    const cell = this.at(event);
    if (!cell || (hovering ? this.place.join() : this.pressed) === cell.join()) return;
    if (!hovering) this.pressed = cell.join();
    this.pick(cell, hovering ? "hover" : "drag");
  }

  key(event) {
    if (!this.grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEPS[event.key];
    if (step) {
      this.place = this.place.map((at, axis) => Math.min(Math.max(at + step[axis], 0), this.grid[axis] - 1));
      this.moveCursor(this.place);
      this.pick(this.place, "move");
    } else if (event.key === " " || event.key === "Enter") this.pick(this.place, "key");
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
