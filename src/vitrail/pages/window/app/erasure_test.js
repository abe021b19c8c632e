// The test of an explanation: erase what it marks, and as much at random; if it is right, the first hurts more.
import { chartWidth } from "./charts.js";
import { drawCells, strongest, toPairs } from "./cells.js";
import { element } from "./elements.js";
import { button, choice, note, setOptions, slider } from "./fields.js";
import { percent, text } from "./language.js";
import { lineChart } from "./line_chart.js";
import { define } from "./state.js";
import { methodName } from "./words.js";

const SHARES = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9];
const SEEDS = [7, 8, 9]; // of random cells: their scores are averaged

define({ test_method: "", test_share: 20 });

export class ErasureTest {
  /** `erase(cells, grid)` shows cells as erased on the photo. */
  constructor(ctx, erase) {
    Object.assign(this, { ctx, erase, curves: null, shown: "", aborter: null, running: false });
    this.method = choice("what_if.test.method", (test_method) => ctx.set({ test_method }));
    this.share = slider("what_if.test.share", { min: 5, max: 90, step: 5, input: (test_share) => ctx.set({ test_share }) });
    this.onPhoto = button("what_if.test.on_photo", () => this.mark());
    this.start = button("what_if.test.run", () => this.run(), { class: "primary" });
    this.result = element("div", { class: "stack", role: "status" });
    this.root = element("section", { class: "card", data: { name: "erasure-test" } },
      element("h2", { data: { text: "what_if.test" } }), note("what_if.test_why"),
      element("div", { class: "row" }, this.method.root, this.start),
      element("div", { class: "row" }, this.share.root, this.onPhoto), this.result);
  }

  get chosen() {
    const { methods = [], auto } = this.ctx.inspection?.header ?? {};
    return methods.includes(this.ctx.state.test_method) ? this.ctx.state.test_method : auto;
  }

  update() {
    const { methods = [], prediction = null } = this.ctx.inspection?.header ?? {};
    this.root.hidden = !prediction; // without classes there is no score to watch
    const named = methods.map((method) => [method, methodName(method)]);
    setOptions(this.method.select, named, this.chosen ?? "");
    this.share.range.value = this.ctx.state.test_share;
    this.share.shown.textContent = percent(this.ctx.state.test_share / 100, 0);
    this.start.disabled = this.onPhoto.disabled = !methods.length || this.running;
    if (this.curves && this.shown !== this.shownKey()) this.show();
  }

  shownKey() {
    return `${this.curves.marked.length} ${this.ctx.language()}`;
  }

  reset() {
    this.stop();
    this.curves = null;
    this.result.replaceChildren();
  }

  stop() {
    this.aborter?.abort();
    this.aborter = null;
    this.running = false;
  }

  async mark() {
    const { map, grid } = await this.explained() ?? {};
    if (map) this.erase(strongest(map, this.ctx.state.test_share / 100), grid);
  }

  async explained() {
    try {
      return await this.ctx.explain(this.chosen, -1);
    } catch (error) {
      this.ctx.complain(error);
      return null;
    }
  }

  async run() {
    this.reset();
    const aborter = (this.aborter = new AbortController());
    this.running = true;
    this.update();
    const found = await this.explained();
    if (found && this.aborter === aborter) {
      try {
        await this.measure(found, aborter.signal);
      } catch (error) {
        if (this.aborter === aborter) this.ctx.complain(error);
      }
    }
    if (this.aborter === aborter) this.stop();
    this.update();
  }

  async measure({ map, grid, target }, signal) {
    const { ctx } = this;
    const [blob, model] = [ctx.photo.blob, ctx.model.name];
    const scoreOf = async (cells) => {
      const answer = await ctx.api.post("what_if", blob, { grid, erase: toPairs(cells, grid) }, { model, signal });
      const row = answer.changed.find(({ index }) => index === target.index);
      return [row?.before ?? 0, row?.after ?? 0];
    };
    const curves = { target, method: this.chosen, marked: [], random: [] };
    for (const share of SHARES) {
      const [before, marked] = await scoreOf(strongest(map, share));
      let random = 0;
      for (const seed of SEEDS) random += (await scoreOf(drawCells(grid[0] * grid[1], share, seed)))[1] / SEEDS.length;
      if (signal.aborted) return;
      if (!curves.marked.length) for (const name of ["marked", "random"]) curves[name].push([0, before]);
      curves.marked.push([share, marked]);
      curves.random.push([share, random]);
      this.curves = curves;
      this.show();
    }
  }

  show() {
    this.shown = this.shownKey();
    const { marked, random, target, method } = this.curves;
    const mean = (points) => points.slice(1).reduce((sum, [, y]) => sum + y, 0) / (points.length - 1);
    const values = {
      label: target.label, marked: percent(mean(marked), 0), random: percent(mean(random), 0),
      method: methodName(method),
    };
    const verdict = mean(marked) < mean(random) - 0.02 ? "passes" : mean(marked) > mean(random) + 0.02 ? "fails" : "even";
    const chart = lineChart(
      [{ name: text("what_if.test.marked"), points: marked }, { name: text("what_if.test.random", { draws: SEEDS.length }), points: random }],
      {
        width: chartWidth(this.result, 720), label: text("what_if.test.chart", values), x: text("what_if.test.erased"), y: text("what_if.test.score", values),
        format: (y) => percent(y, 0), formatX: (x) => percent(x, 0),
      });
    this.result.replaceChildren(
      element("p", { class: "say", data: { verdict } }, text(`what_if.test.${verdict}`, values)), chart);
  }
}
