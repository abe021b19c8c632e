// Equations of the server, which are plain text, with raised and lowered parts: x_p, E_pos, ℝ^(N×(P²·C)).
import { element } from "./elements.js";

const LOWERED = /^_([\p{L}\p{N}\p{Lm}₀-₎]+)/u;

/**
 * The parts of an equation for an element.
 * >>> equation("x_p ∈ ℝ^(N×D)")
 * ["x", <sub>p</sub>, " ∈ ℝ", <sup>N×D</sup>]
 */
export function equation(words) {
  const parts = [];
  let plain = "";
  const flush = () => {
    if (plain) parts.push(plain);
    plain = "";
  };
  for (let at = 0; at < words.length;) {
    const rest = words.slice(at);
    const lowered = LOWERED.exec(rest);
    const raised = rest.startsWith("^(") ? enclosed(rest.slice(1)) : null;
    if (lowered || raised !== null) flush();
    if (lowered) parts.push(element("sub", {}, lowered[1]));
    else if (raised !== null) parts.push(element("sup", {}, raised));
    else plain += words[at];
    at += lowered ? lowered[0].length : raised !== null ? raised.length + 3 : 1;
  }
  flush();
  return parts;
}

// What stands between a bracket and the one that closes it.
function enclosed(words) {
  let depth = 0;
  for (let at = 0; at < words.length; at++) {
    depth += { "(": 1, ")": -1 }[words[at]] ?? 0;
    if (!depth) return words.slice(1, at);
  }
  return null;
}
