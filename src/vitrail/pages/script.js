// Interaction for pages that are complete without it: sort and filter tables, choose images by class
// or confusion, read and zoom curves, fade overlays, pick the attention of a patch.
"use strict";
document.documentElement.classList.add("js");
const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
// Texts of the page's language by the English ones; values take the places of {}, or of {0}, {1}.
const texts = JSON.parse(document.body.dataset.texts || "{}");
const t = (text, ...values) => {
  let next = 0;
  return (texts[text] ?? text).replace(/\{(\d*)\}/g, (_, place) => values[place === "" ? next++ : place]);
};
const make = (tag, fields = {}) => Object.assign(document.createElement(tag), fields);

// Tables: a click on a heading sorts; the value is the cell's data-value, or its text.
const valueOf = (row, column) => {
  const cell = row.cells[column];
  const text = cell ? cell.dataset.value ?? cell.textContent.trim() : "";
  const number = Number(text.replace(/[,%]/g, ""));
  return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
};
const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
  : String(a).localeCompare(String(b), undefined, { numeric: true });
const sortBy = (table, heading) => {
  const column = heading.cellIndex, body = table.tBodies[0];
  const now = heading.getAttribute("aria-sort");
  const down = now ? now === "ascending" : heading.classList.contains("number");
  const rows = Array.from(body.rows).map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => a === null ? (b === null ? 0 : 1) : b === null ? -1
    : down ? compare(b, a) : compare(a, b));
  all("th", table.tHead).forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows.map(([, row]) => row));
};
all("table.sortable").forEach((table) => all("thead th", table).forEach((heading) => {
  if (!heading.textContent.trim() || "unsorted" in heading.dataset) return;
  const button = make("button", { type: "button" });
  button.append(...heading.childNodes);
  heading.append(button);
  button.addEventListener("click", () => sortBy(table, heading));
}));
all(".sideways, .drawing").forEach((box) => { if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; });
all("[data-filter]").forEach((box) => {
  const input = make("input", { type: "search", placeholder: box.dataset.filter });
  input.setAttribute("aria-label", box.dataset.filter);
  const line = make("div", { className: "controls" });
  line.append(input);
  box.prepend(line);
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    box.classList.toggle("filtered", wanted !== "");
    all("tbody tr", box).forEach((row) => {
      row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
    });
  });
});

// Images of one confusion or class: [data-truth] and [data-predicted] on links choose [data-choose] figures.
all("[data-choose]").forEach((gallery) => {
  const figures = all("figure", gallery);
  const line = make("div", { className: "controls" });
  const status = make("span");
  status.setAttribute("role", "status");
  const every = make("button", { type: "button", className: "plain", textContent: t("Show all") });
  line.append(status, every);
  line.hidden = true;
  gallery.before(line);
  const choose = (link) => {
    const { truth, predicted, what } = link ? link.dataset : {};
    if (link) gallery.closest("details")?.setAttribute("open", "");
    let shown = 0;
    figures.forEach((figure) => {
      const mine = !link || (truth === undefined || figure.dataset.truth === truth)
        && (predicted === undefined || figure.dataset.predicted === predicted);
      figure.hidden = !mine;
      shown += mine;
    });
    all(".chosen").forEach((cell) => cell.classList.remove("chosen"));
    line.hidden = !link;
    if (!link) return;
    link.closest("td, th")?.classList.add("chosen");
    status.textContent = !shown ? t("{}: no example in this page", what)
      : shown === 1 ? t("{}: 1 example", what) : t("{}: {} examples", what, shown);
  };
  every.addEventListener("click", () => choose(null));
  all(`a[href="#${gallery.dataset.choose}"][data-what]`).forEach((link) =>
    link.addEventListener("click", () => choose(link)));
  choose(null);
});

// Curves: drag to zoom, double click to return, move to read; with the keyboard, arrows read, + and -
// zoom, Escape returns. The frame of the axes and its range are in data-frame (left top right bottom)
// and data-range (x0 x1 y0 y1, x as log10 where data-log is 1) of the drawing.
const ticks = (low, high) => {
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
};
const show = (value, percent) => percent ? `${+(100 * value).toPrecision(4)}%`
  : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(1)
    : (+value.toPrecision(5)).toLocaleString("en");
all("svg[data-frame]").forEach((svg) => {
  const [left, top, right, bottom] = svg.dataset.frame.split(" ").map(Number);
  const whole = svg.dataset.range.split(" ").map(Number);
  const percent = svg.dataset.percent === "1", figure = svg.closest("figure");
  const log = svg.dataset.log === "1";
  const axes = all("g.x-axis, g.y-axis", svg);
  const text = axes.map((axis) => axis.querySelector("text"));
  const lines = all("g.series", svg);
  const draw = (tag, fields) => {
    const node = document.createElementNS(svg.namespaceURI, tag);
    Object.entries(fields).forEach(([name, value]) => node.setAttribute(name, value));
    svg.append(node);
    return node;
  };
  const labels = draw("g", {}), guide = draw("line", { class: "guide", y1: top, y2: bottom, visibility: "hidden" });
  lines.forEach((group) => all("[clip-path]", group).forEach((path) => {
    group.setAttribute("clip-path", path.getAttribute("clip-path"));
    path.removeAttribute("clip-path");
    path.setAttribute("vector-effect", "non-scaling-stroke");
  }));
  const touch = matchMedia("(pointer: coarse)").matches;
  const reading = make("div", { className: "reading" });
  const words = make("span", { textContent: touch ? t("Tap to read values.") : t("Drag to zoom, move to read values.") });
  const back = make("button", { type: "button", className: "plain", textContent: t("Reset zoom"), hidden: true });
  words.setAttribute("role", "status");
  reading.append(words, " ", back);
  svg.parentElement.after(reading);
  svg.setAttribute("tabindex", 0);
  let range = whole;
  const px = (x) => left + (right - left) * (x - range[0]) / (range[1] - range[0]);
  const py = (y) => bottom - (bottom - top) * (y - range[2]) / (range[3] - range[2]);
  const unx = (p) => range[0] + (range[1] - range[0]) * (p - left) / (right - left);
  const uny = (p) => range[3] - (range[3] - range[2]) * (p - top) / (bottom - top);
  const place = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return [Math.min(Math.max(point.x, left), right), Math.min(Math.max(point.y, top), bottom)];
  };
  const label = (content, x, y, like, anchor) => {
    const node = document.createElementNS(svg.namespaceURI, "text");
    node.textContent = content;
    node.setAttribute("style", like.getAttribute("style"));
    node.style.textAnchor = anchor;
    node.setAttribute("x", x);
    node.setAttribute("y", y);
    labels.append(node);
  };
  const zoom = (to) => {
    range = to;
    const [x0, x1, y0, y1] = range, zoomed = whole.some((value, i) => value !== range[i]);
    back.hidden = !zoomed;
    guide.setAttribute("visibility", "hidden");
    axes.forEach((axis) => { axis.style.display = zoomed ? "none" : ""; });
    labels.replaceChildren();
    const kx = (whole[1] - whole[0]) / (x1 - x0), ky = (whole[3] - whole[2]) / (y1 - y0);
    const tx = px(whole[0]) - kx * left, ty = py(whole[3]) - ky * top;
    lines.forEach((group) => Array.from(group.children).forEach((child) => {
      if (child.tagName !== "defs") child.setAttribute("transform", `matrix(${kx} 0 0 ${ky} ${tx} ${ty})`);
    }));
    if (!zoomed || !text[0] || !text[1]) return;
    ticks(x0, x1).forEach((x) => label(log ? (10 ** x).toExponential(1) : show(x), px(x), bottom + 14, text[0], "middle"));
    ticks(y0, y1).forEach((y) => {
      label(show(y, percent), left - 5, py(y) + 3, text[1], "end");
      labels.append(draw("line", { class: "rule", x1: left, x2: right, y1: py(y), y2: py(y) }));
    });
  };
  back.addEventListener("click", () => { zoom(whole); svg.focus(); });
  svg.addEventListener("dblclick", () => zoom(whole));
  const rows = all("tbody tr", figure).map((row) => Array.from(row.cells, (cell) => cell.textContent));
  const heads = all("thead th", figure).map((cell) => cell.textContent);
  const at = rows.map((row) => Number(row[0].replace(/,/g, ""))).map((x) => log ? Math.log10(x) : x);
  let near = null, from = null, box = null;
  const read = (row) => {
    near = row;
    words.textContent = heads.map((head, i) => `${head} ${rows[row][i] || "–"}`).join(", ");
    const x = px(at[row]);
    Object.entries({ x1: x, x2: x, visibility: x < left - 1 || x > right + 1 ? "hidden" : "visible" })
      .forEach(([name, value]) => guide.setAttribute(name, value));
  };
  const readAt = (x) => {
    if (at.length) read(at.reduce((best, value, i) => Math.abs(value - x) < Math.abs(at[best] - x) ? i : best, 0));
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    if (event.pointerType === "touch") { readAt(unx(place(event)[0])); return; }
    from = place(event);
    box = draw("rect", { class: "zoom-box", width: 0, height: 0 });
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!from) { readAt(unx(x)); return; }
    const set = { x: Math.min(x, from[0]), y: Math.min(y, from[1]),
      width: Math.abs(x - from[0]), height: Math.abs(y - from[1]) };
    Object.entries(set).forEach(([name, value]) => box.setAttribute(name, value));
  });
  svg.addEventListener("pointerup", (event) => {
    if (!from) return;
    const [x, y] = place(event), [a, b] = from;
    from = null;
    box.remove();
    if (Math.abs(x - a) < 6 || Math.abs(y - b) < 6) return;
    zoom([unx(Math.min(x, a)), unx(Math.max(x, a)), uny(Math.max(y, b)), uny(Math.min(y, b))]);
    readAt(unx(place(event)[0]));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], by = { "+": .5, "=": .5, "-": 2 }[event.key];
    if (step && at.length) read(Math.min(Math.max((near ?? (step > 0 ? -1 : at.length)) + step, 0), at.length - 1));
    else if (by) {
      const centre = near === null ? (range[0] + range[1]) / 2 : at[near], half = by * (range[1] - range[0]) / 2;
      const x = [Math.max(centre - half, whole[0]), Math.min(centre + half, whole[1])];
      zoom([...x, range[2], range[3]]);
      if (near !== null) read(near);
    } else if (event.key === "Escape") zoom(whole);
    else return;
    event.preventDefault();
  });
});

// Overlays: one slider fades the maps of the block that it names.
all("input[data-opacity]").forEach((slider) => {
  const set = () => all(slider.dataset.opacity).forEach((part) =>
    part.style.setProperty("--opacity", slider.value / 100));
  slider.addEventListener("input", set);
  set();
});

// One of several: <select data-show="#box"> shows the child of the box with the same data-name.
all("select[data-show]").forEach((select) => {
  const parts = all(`${select.dataset.show} > [data-name]`);
  const set = () => parts.forEach((part) => { part.hidden = part.dataset.name !== select.value; });
  select.addEventListener("change", set);
  set();
});

// Attention of a patch: [data-picker] has the grid of patches, the layers and the colours, and each
// [data-atlas] the maps of one layer as grey pixels: a row for each head (first their mean) and, of
// each, for the pooled output and for every patch.
all("[data-picker]").forEach((box) => {
  const { grid: [rows, columns], layers, colours } = JSON.parse(box.dataset.picker);
  const atlases = all("[data-atlas]", box).map((each) => each.dataset.atlas), loaded = [];
  const image = box.closest("article").querySelector(".overlay img");
  const option = (text, value) => make("option", { textContent: text, value });
  const layer = make("select"), head = make("select");
  layer.append(...layers.map(({ name }, i) => option(name, i)));
  layer.value = layers.length - 1;
  const field = (text, select) => { const label = make("label", { textContent: `${text} ` }); label.append(select); return label; };
  const words = make("span", { className: "soft" });
  words.setAttribute("role", "status");
  const out = make("button", { type: "button", className: "plain", textContent: t("Pooled output") });
  const line = make("div", { className: "controls" });
  line.append(field(t("Layer"), layer), field(t("Head"), head), out, words);
  const view = make("span", { className: "overlay pick", tabIndex: 0 });
  view.setAttribute("role", "application");
  view.setAttribute("aria-label", t("Click a patch, or move with the arrow keys, to see its attention"));
  const canvas = make("canvas"), mark = make("i", { className: "mark" });
  view.append(make("img", { src: image.src, alt: image.alt }), canvas, mark);
  box.append(line, view);
  let patch = null;
  const levelsOf = async (i) => {
    const atlas = make("img", { src: atlases[i] });
    await atlas.decode();
    const sheet = make("canvas", { width: atlas.width, height: atlas.height }).getContext("2d", { willReadFrequently: true });
    sheet.drawImage(atlas, 0, 0);
    return sheet.getImageData(0, 0, atlas.width, atlas.height).data;
  };
  const draw = async () => {
    const i = Number(layer.value), now = layers[i], cells = now.rows * now.columns;
    const levels = await (loaded[i] ??= levelsOf(i));
    const query = patch ? 1 + patch[0] * columns + patch[1] : 0;
    const start = (Number(head.value) * (rows * columns + 1) + query) * cells;
    const pixels = new ImageData(now.columns, now.rows);
    for (let cell = 0; cell < cells; cell++) {
      const level = levels[4 * (start + cell)];
      const colour = colours[Math.round(level / 255 * (colours.length - 1))];
      pixels.data.set([...colour, level], 4 * cell);
    }
    [canvas.width, canvas.height] = [now.columns, now.rows];
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    [canvas.style.height, canvas.style.width] = now.covers.map((share) => `${100 * share}%`);
    mark.hidden = !patch;
    if (patch) Object.assign(mark.style, { top: `${100 * patch[0] / rows}%`, left: `${100 * patch[1] / columns}%`,
      height: `${100 / rows}%`, width: `${100 / columns}%` });
    words.textContent = patch
      ? t("attention of the patch in row {} of {}, column {} of {}", patch[0] + 1, rows, patch[1] + 1, columns)
      : t("attention of the pooled output; click a patch to see its attention");
  };
  const heads = () => {
    const wanted = head.value, count = layers[layer.value].heads;
    head.replaceChildren(option(t("mean of heads"), 0), ...Array.from({ length: count }, (_, i) => option(t("head {}", i), i + 1)));
    head.value = wanted && wanted <= count ? wanted : 0;
    draw();
  };
  const pick = (row, column) => {
    patch = [Math.min(Math.max(row, 0), rows - 1), Math.min(Math.max(column, 0), columns - 1)];
    draw();
  };
  view.addEventListener("click", (event) => {
    const { left, top, width, height } = view.getBoundingClientRect();
    pick(Math.floor(rows * (event.clientY - top) / height), Math.floor(columns * (event.clientX - left) / width));
  });
  view.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, column] = patch ?? [Math.floor(rows / 2), Math.floor(columns / 2)];
    pick(row + (patch ? step[0] : 0), column + (patch ? step[1] : 0));
  });
  out.addEventListener("click", () => { patch = null; draw(); });
  layer.addEventListener("change", heads);
  head.addEventListener("change", draw);
  heads();
});
