// The paper's few-shot head (arXiv:2010.11929, 4.1), solved in float64 on the device, as
// `vitrail probe --method fewshot` solves it: least squares from standardised features, with a
// constant feature of 100 as the bias and a penalty of 1024, to +1 for the own class and -1 for others.

const PENALTY = 1024;
const BIAS = 100;
const EPSILON = 1e-5;

// features: an array of Float32Array(width); targets: the class of each, 0 to classes - 1.
export function fitHead(features, targets, classes) {
  const width = features[0].length;
  const { mean, deviation } = statistics(features, width);
  const rows = features.map((feature) => standardise(feature, mean, deviation));
  const labels = targets.map((target) =>
    Float64Array.from({ length: classes }, (_, number) => (number === target ? 1 : -1)),
  );
  const factor = cholesky(gram(rows));
  const dual = solve(factor, labels, classes); // (X Xᵀ + λ)⁻¹ Y
  const weights = new Float64Array((width + 1) * classes); // Xᵀ of it
  rows.forEach((row, number) => {
    for (let at = 0; at <= width; at++) {
      for (let k = 0; k < classes; k++) weights[at * classes + k] += row[at] * dual[number][k];
    }
  });
  return { width, classes, mean, deviation, weights, leftOut: leftOut(factor, dual, labels, targets) };
}

// The score of each class for one feature: about +1 for photos like those of the class, -1 for others.
export function scoreHead(head, feature) {
  const x = standardise(feature, head.mean, head.deviation);
  const scores = new Float64Array(head.classes);
  for (let at = 0; at <= head.width; at++) {
    for (let k = 0; k < head.classes; k++) scores[k] += x[at] * head.weights[at * head.classes + k];
  }
  return scores;
}

// What one's own photos and those of the other classes score for each class, on average: [low, high].
export function scoreRanges(head, features, targets) {
  const sums = Array.from({ length: head.classes }, () => [0, 0, 0, 0]);
  features.forEach((feature, number) => {
    scoreHead(head, feature).forEach((score, k) => {
      const own = targets[number] === k ? 2 : 0;
      sums[k][own] += score;
      sums[k][own + 1] += 1;
    });
  });
  return sums.map(([low, others, high, mine]) => [low / Math.max(others, 1), high / Math.max(mine, 1)]);
}

function statistics(features, width) {
  const mean = new Float64Array(width);
  const deviation = new Float64Array(width);
  for (const feature of features) for (let at = 0; at < width; at++) mean[at] += feature[at];
  for (let at = 0; at < width; at++) mean[at] /= features.length;
  for (const feature of features) {
    for (let at = 0; at < width; at++) deviation[at] += (feature[at] - mean[at]) ** 2;
  }
  for (let at = 0; at < width; at++) {
    deviation[at] = Math.sqrt(deviation[at] / features.length) + EPSILON;
  }
  return { mean, deviation };
}

function standardise(feature, mean, deviation) {
  const out = new Float64Array(feature.length + 1);
  for (let at = 0; at < feature.length; at++) out[at] = (feature[at] - mean[at]) / deviation[at];
  out[feature.length] = BIAS;
  return out;
}

// X Xᵀ + λ: one row for each photo, so it is small.
function gram(rows) {
  return rows.map((one, i) =>
    Float64Array.from(rows, (other, j) => {
      let sum = i === j ? PENALTY : 0;
      for (let at = 0; at < one.length; at++) sum += one[at] * other[at];
      return sum;
    }),
  );
}

function cholesky(matrix) {
  const lower = matrix.map((row) => new Float64Array(row.length));
  for (let i = 0; i < matrix.length; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = matrix[i][j];
      for (let k = 0; k < j; k++) sum -= lower[i][k] * lower[j][k];
      lower[i][j] = i === j ? Math.sqrt(sum) : sum / lower[j][j];
    }
  }
  return lower;
}

function solve(lower, right, columns) {
  const count = lower.length;
  const out = right.map((row) => Float64Array.from(row));
  for (let k = 0; k < columns; k++) {
    for (let i = 0; i < count; i++) {
      for (let j = 0; j < i; j++) out[i][k] -= lower[i][j] * out[j][k];
      out[i][k] /= lower[i][i];
    }
    for (let i = count - 1; i >= 0; i--) {
      for (let j = i + 1; j < count; j++) out[i][k] -= lower[j][i] * out[j][k];
      out[i][k] /= lower[i][i];
    }
  }
  return out;
}

// How many photos get their own label from a head that was solved without their label: for least
// squares that is y - dual / (X Xᵀ + λ)⁻¹ᵢᵢ, without solving again.
function leftOut(lower, dual, labels, targets) {
  const count = lower.length;
  const unit = lower.map((_, i) => Float64Array.from({ length: count }, (_, j) => (i === j ? 1 : 0)));
  const inverse = solve(lower, unit, count);
  let right = 0;
  for (let i = 0; i < count; i++) {
    const scores = labels[i].map((label, k) => label - dual[i][k] / inverse[i][i]);
    if (scores.indexOf(Math.max(...scores)) === targets[i]) right += 1;
  }
  return { right, count };
}
