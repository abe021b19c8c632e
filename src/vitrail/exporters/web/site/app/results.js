// Scores as a list of bars, the best first, and as a sentence for those who listen.
import { number, percent, text } from "./language.js";
import { scoreHead } from "./fewshot.js";

const TOP = 5;
const SILENCE = 2000; // milliseconds between two announcements of the camera

let announced = "";
let lastTime = 0;

// The model's own classes: softmax, or a probability of each where an image may have several labels.
export function ownScores(logits, facts) {
  const labels = facts.labels ?? Array.from(logits, (_, place) => `class ${place}`);
  const scores = facts.multi_label ? Array.from(logits, (value) => 1 / (1 + Math.exp(-value))) : softmax(logits);
  return rank(scores.map((score, place) => ({ label: labels[place], score, share: score, shown: percent(score) })));
}

function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = Array.from(logits, (value) => Math.exp(value - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((value) => value / sum);
}

// Few-shot classes: the score of the least-squares head; the bar is where it lies between the photos
// of the other classes and one's own.
export function fewShotScores(feature, { head, names, ranges }) {
  const scores = Array.from(scoreHead(head, feature));
  return rank(
    scores.map((score, k) => {
      const [low, high] = ranges[k];
      const share = Math.min(Math.max((score - low) / Math.max(high - low, 1e-9), 0), 1);
      return { label: names[k], score, share, shown: percent(share, 0), detail: number(score, 3) };
    }),
  );
}

function rank(rows) {
  return rows.sort((a, b) => b.score - a.score);
}

export function showBars(list, rows) {
  const items = rows.slice(0, TOP).map((row, place) => {
    const item = list.children[place] ?? list.appendChild(newBar());
    const [name, detail, value, bar] = item.querySelectorAll("b, small, em, i");
    name.textContent = row.label;
    detail.textContent = row.detail ?? "";
    value.textContent = row.shown;
    bar.style.width = `${(100 * row.share).toFixed(1)}%`;
    item.dataset.name = row.label;
    item.dataset.score = row.score;
    return item;
  });
  while (list.children.length > items.length) list.lastChild.remove();
}

function newBar() {
  const item = document.createElement("li");
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.append(document.createElement("i"));
  bar.setAttribute("aria-hidden", "true");
  const values = document.createElement("span");
  values.append(document.createElement("small"), document.createElement("em"));
  item.append(document.createElement("b"), values, bar);
  return item;
}

// Announces the best label to screen readers; for the camera only a new one, and not too often.
export function announce(element, row, live) {
  const words = text("result.best", { label: row.label, score: row.shown });
  const now = performance.now();
  if (live && (row.label === announced || now - lastTime < SILENCE)) return;
  [announced, lastTime] = [row.label, now];
  element.textContent = words;
}
