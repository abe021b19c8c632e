// The picture of the walk: one scene a step, played once when the step is reached; a click chooses another patch.
import { PatchStage } from "./patch_stage.js";
import { SCENES } from "./walk_scenes.js";

const DURATION = 1400; // ms of a scene
const SCENE_OF = {
  image: "photo", stem: "kernel", patches: "lift", projection: "tokens", class_token: "tokens", positions: "tokens",
  merge: "merge", conv: "kernel", downsample: "merge", local: "kernel", unfold: "fold", window: "windows", bias: "heat",
  scores: "heat", softmax: "attention", sum: "gather", fold: "fold", last: "photo", pool: "pool", head: "photo",
};

export class WalkStage extends PatchStage {
  constructor(options) {
    super(options);
    this.frame = 0;
    this.played = "";
  }

  /** Shows the scene of a step; it moves where the person wants motion and the step is a new one. */
  play(step, given) {
    const key = `${step.id} ${given.key}`;
    const moves = this.played.split(" ")[0] !== step.id && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (key === this.played) return;
    this.played = key;
    const { size, grid, extent, cell } = given;
    this.show({ photo: null, size, grid, extent, lines: false });
    if (cell) this.place = cell;
    const { canvas } = this;
    const scene = { ...given, context: canvas.getContext("2d"), width: canvas.width, height: canvas.height };
    const draw = SCENES[sceneOf(step)];
    cancelAnimationFrame(this.frame);
    const paint = (t) => {
      scene.context.setTransform(1, 0, 0, 1, 0, 0);
      scene.context.globalAlpha = 1;
      scene.context.clearRect(0, 0, scene.width, scene.height);
      draw(scene, t);
    };
    this.root.dataset.scene = sceneOf(step);
    if (!moves) {
      paint(1);
      return;
    }
    const start = performance.now();
    const tick = (now) => {
      const t = Math.min((now - start) / DURATION, 1);
      paint(t);
      if (t < 1) this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
  }

  /** Plays the scene of the step again. */
  again() {
    this.played = "";
  }

  stop() {
    cancelAnimationFrame(this.frame);
    this.played = "";
  }
}

// Where tokens alone are read out, no cell moves.
function sceneOf({ id, text_args: { pool, distilled } }) {
  return id === "pool" && (pool === "cls" || distilled) ? "photo" : SCENE_OF[id] ?? "one";
}

/** A patch of a photo, enlarged, as a canvas. */
export function patchPicture(photo, [r, c], grid, extent, size, side = 72) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  canvas.setAttribute("aria-hidden", "true");
  canvas.className = "patch-picture";
  const [high, wide] = [(extent[0] / grid[0]) * (photo.height / size[0]), (extent[1] / grid[1]) * (photo.width / size[1])];
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(photo, c * wide, r * high, wide, high, 0, 0, side, side);
  return canvas;
}

