// Comfort for a page that is whole without it: sort and filter tables, choose images by class or
// confusion, zoom curves, fade overlays.
"use strict";
document.documentElement.classList.add("js");
const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
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
  if (!heading.textContent.trim()) return;
  const button = make("button", { type: "button" });
  button.append(...heading.childNodes);
  heading.append(button);
  button.addEventListener("click", () => sortBy(table, heading));
}));
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
  const told = make("span", { role: "status" });
  const every = make("button", { type: "button", className: "plain", textContent: "Show all" });
  line.append(told, every);
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
    told.textContent = `${what}: ${shown ? `${shown} in this page` : "no image in this page"}`;
  };
  every.addEventListener("click", () => choose(null));
  all(`a[href="#${gallery.dataset.choose}"][data-what]`).forEach((link) =>
    link.addEventListener("click", () => choose(link)));
  choose(null);
});

// Curves: drag to zoom, double click to return, move to read. The frame of the axes and its range
// are in data-frame (left top right bottom) and data-range (x0 x1 y0 y1) of the drawing.
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
  const labels = document.createElementNS(svg.namespaceURI, "g");
  svg.append(labels);
  lines.forEach((group) => all("[clip-path]", group).forEach((path) => {
    group.setAttribute("clip-path", path.getAttribute("clip-path"));
    path.removeAttribute("clip-path");
    path.setAttribute("vector-effect", "non-scaling-stroke");
  }));
  const reading = make("div", { className: "reading" });
  const words = make("span", { textContent: "Drag to zoom, move to read." });
  const back = make("button", { type: "button", className: "plain", textContent: "Reset zoom", hidden: true });
  reading.append(words, " ", back);
  svg.after(reading);
  let [x0, x1, y0, y1] = whole;
  const px = (x) => left + (right - left) * (x - x0) / (x1 - x0);
  const py = (y) => bottom - (bottom - top) * (y - y0) / (y1 - y0);
  const place = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return [Math.min(Math.max(point.x, left), right), Math.min(Math.max(point.y, top), bottom)];
  };
  const label = (value, x, y, like, anchor, asPercent) => {
    const node = document.createElementNS(svg.namespaceURI, "text");
    node.textContent = show(value, asPercent);
    node.setAttribute("style", like.getAttribute("style"));
    node.style.textAnchor = anchor;
    node.setAttribute("x", x);
    node.setAttribute("y", y);
    labels.append(node);
  };
  const draw = () => {
    const zoomed = whole.some((value, i) => value !== [x0, x1, y0, y1][i]);
    back.hidden = !zoomed;
    axes.forEach((axis) => { axis.style.display = zoomed ? "none" : ""; });
    labels.replaceChildren();
    const kx = (whole[1] - whole[0]) / (x1 - x0), ky = (whole[3] - whole[2]) / (y1 - y0);
    const tx = px(whole[0]) - kx * left, ty = py(whole[3]) - ky * top;
    lines.forEach((group) => Array.from(group.children).forEach((child) => {
      if (child.tagName !== "defs") child.setAttribute("transform", `matrix(${kx} 0 0 ${ky} ${tx} ${ty})`);
    }));
    if (!zoomed || !text[0] || !text[1]) return;
    ticks(x0, x1).forEach((x) => label(x, px(x), bottom + 14, text[0], "middle", false));
    ticks(y0, y1).forEach((y) => label(y, left - 5, py(y) + 3, text[1], "end", percent));
  };
  back.addEventListener("click", () => { [x0, x1, y0, y1] = whole; draw(); });
  svg.addEventListener("dblclick", () => back.click());
  const rows = all("tbody tr", figure).map((row) => Array.from(row.cells, (cell) => cell.textContent));
  const heads = all("thead th", figure).map((cell) => cell.textContent);
  const at = rows.map((row) => Number(row[0].replace(/,/g, "")));
  let from = null, box = null;
  svg.addEventListener("pointerdown", (event) => {
    if (log || event.button || event.pointerType === "touch") return;
    from = place(event);
    box = document.createElementNS(svg.namespaceURI, "rect");
    box.setAttribute("class", "zoom-box");
    svg.append(box);
    svg.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (from) {
      const set = { x: Math.min(x, from[0]), y: Math.min(y, from[1]),
        width: Math.abs(x - from[0]), height: Math.abs(y - from[1]) };
      Object.entries(set).forEach(([name, value]) => box.setAttribute(name, value));
      return;
    }
    if (!at.length) return;
    let value = x0 + (x1 - x0) * (x - left) / (right - left);
    if (log) value = 10 ** value;
    const far = (i) => log ? Math.abs(Math.log(at[i] / value)) : Math.abs(at[i] - value);
    const near = at.reduce((best, _, i) => far(i) < far(best) ? i : best, 0);
    words.textContent = heads.map((head, i) => `${head} ${rows[near][i]}`).join(", ");
  });
  svg.addEventListener("pointerup", (event) => {
    if (!from) return;
    const [x, y] = place(event), [a, b] = from;
    from = null;
    box.remove();
    if (Math.abs(x - a) < 6 || Math.abs(y - b) < 6) return;
    const unx = (p) => x0 + (x1 - x0) * (p - left) / (right - left);
    const uny = (p) => y1 - (y1 - y0) * (p - top) / (bottom - top);
    [x0, x1, y0, y1] = [unx(Math.min(x, a)), unx(Math.max(x, a)), uny(Math.max(y, b)), uny(Math.min(y, b))];
    draw();
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
// each, for what the model reads out and for every patch.
all("[data-picker]").forEach((box) => {
  const { grid: [rows, columns], layers, colours } = JSON.parse(box.dataset.picker);
  const atlases = all("[data-atlas]", box).map((each) => each.dataset.atlas), loaded = [];
  const image = box.closest("article").querySelector(".overlay img");
  const option = (text, value) => make("option", { textContent: text, value });
  const layer = make("select"), head = make("select");
  layer.append(...layers.map(({ name }, i) => option(name, i)));
  layer.value = layers.length - 1;
  const field = (text, select) => { const label = make("label", { textContent: `${text} ` }); label.append(select); return label; };
  const words = make("span", { role: "status", className: "soft" });
  const out = make("button", { type: "button", className: "plain", textContent: "What the model reads out" });
  const line = make("div", { className: "controls" });
  line.append(field("Layer", layer), field("Head", head), out, words);
  const view = make("span", { className: "overlay pick", tabIndex: 0 });
  view.setAttribute("role", "application");
  view.setAttribute("aria-label", "Click a patch, or move with the arrow keys, to see where it looks");
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
    words.textContent = patch ? `seen from row ${patch[0] + 1} of ${rows}, column ${patch[1] + 1} of ${columns}`
      : "weighted by what the model reads out; click a patch of the image";
  };
  const heads = () => {
    const wanted = head.value, count = layers[layer.value].heads;
    head.replaceChildren(option("mean of heads", 0), ...Array.from({ length: count }, (_, i) => option(`head ${i}`, i + 1)));
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
