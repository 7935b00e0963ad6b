"use strict";
// The page's movements. The words are in the document already; the weights come as bytes in base64, in the order
// layer, head, target, source. `state` is all there is to know; every change of it ends in `paint`.

const find = (query) => document.querySelector(query);
const data = JSON.parse(find("#data").textContent);
const words = Object.fromEntries(["source", "target"].map((side) => [side, [...document.querySelectorAll(`[data-side=${side}] .word`)]]));
const text = (side, i) => words[side][i].querySelector("bdi").textContent;
const T = words.target.length, S = words.source.length, L = data.layers.length, H = data.heads.length;
const bytes = Uint8Array.from(atob(data.weights), (letter) => letter.charCodeAt(0));

const MEAN = -1;                   // in place of a head: the average over heads
const state = { layer: data.layer, head: MEAN, pinned: null, hover: null };   // pinned, hover: {side, i}
const other = (side) => (side === "source" ? "target" : "source");
const percent = (w) => (w >= 0.0995 ? `${Math.round(w * 100)}` : (w * 100).toFixed(1));

// ---- numbers ----

const kept = new Map();            // "layer,head" -> Float32Array of T × S
const pictures = new Map();        // the same -> canvas, in the colours of now

function view(layer, head) {
  const key = `${layer},${head}`;
  if (kept.has(key)) return kept.get(key);
  const table = new Float32Array(T * S), heads = head === MEAN ? [...data.heads.keys()] : [head];
  for (const h of heads) {
    const start = (layer * H + h) * T * S;
    for (let i = 0; i < T * S; i++) table[i] += bytes[start + i] / (255 * heads.length);
  }
  kept.set(key, table);
  return table;
}

function weightsOf({ side, i }) {  // of one word to every word of the other side
  const table = view(state.layer, state.head);
  return side === "target" ? table.subarray(i * S, (i + 1) * S) : Float32Array.from({ length: T }, (_, t) => table[t * S + i]);
}

// ---- colours ----

let colours;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1), long = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
    return [0, 2, 4].map((at) => parseInt(long.slice(at, at + 2), 16));
  };
  colours = Object.fromEntries(["ground", "chip", "text", "quiet", "edge", "accent"].map((name) => [name, rgb(`--${name}`)]));
  colours.onAccent = rgb("--on-accent");
  colours.flip = Number(style.getPropertyValue("--flip"));
}
const ink = (name, alpha = 1) => `rgba(${colours[name].join(",")},${alpha})`;

function sharp(canvas, width, height) {          // a canvas of so many CSS pixels, in the screen's own pixels
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

function picture(layer, head) {    // a canvas with a pixel a weight
  const key = `${layer},${head}`;
  if (pictures.has(key)) return pictures.get(key);
  const table = view(layer, head), canvas = document.createElement("canvas");
  canvas.width = S; canvas.height = T;
  const pen = canvas.getContext("2d"), image = pen.createImageData(S, T);
  for (let i = 0; i < T * S; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours.chip[c] + table[i] * (colours.accent[c] - colours.chip[c]);
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  pictures.set(key, canvas);
  return canvas;
}

// ---- the two sentences ----

const FAINT = 0.05;                // below, lines wait until one of their words is chosen, numbers until pointed at
const MOST_LINES = 1500;

function paintLines(shown) {
  const frame = find(".pair").getBoundingClientRect();
  const pen = sharp(find(".pair > canvas"), frame.width, frame.height);
  const ends = Object.fromEntries(Object.entries(words).map(([side, list]) => [side, list.map((word) => {
    const box = word.getBoundingClientRect();
    return [box.left + box.width / 2 - frame.left, (side === "source" ? box.bottom : box.top) - frame.top];
  })]));
  const table = view(state.layer, state.head), lines = [];
  for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) {
    const chosen = shown && (shown.side === "target" ? shown.i === t : shown.i === s), w = table[t * S + s];
    if (w >= (chosen ? 0.004 : FAINT)) lines.push({ t, s, w, chosen });
  }
  lines.sort((a, b) => b.w - a.w);
  for (const { t, s, w, chosen } of lines.slice(0, MOST_LINES).reverse()) {
    const [x, y] = ends.source[s], [u, v] = ends.target[t], bend = Math.max(30, (v - y) * 0.45);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.bezierCurveTo(x, y + bend, u, v - bend, u, v);
    pen.lineWidth = 0.6 + 6 * w;
    pen.strokeStyle = ink("accent", (0.25 + 0.6 * w) * (shown && !chosen ? 0.12 : 1));
    pen.stroke();
  }
}

function paintWords(shown) {
  const lit = shown ? weightsOf(shown) : null;
  for (const side of ["source", "target"]) words[side].forEach((word, i) => {
    const w = lit && side === other(shown.side) ? lit[i] : 0;
    word.style.setProperty("--w", w);
    word.classList.toggle("deep", w > colours.flip);
    word.classList.toggle("chosen", Boolean(shown) && shown.side === side && shown.i === i);
    word.querySelector("i").textContent = w >= 0.02 ? percent(w) : "";
  });
}

function paintTold(shown) {
  const head = state.head === MEAN ? `mean of ${H} heads` : `head ${data.heads[state.head]}`;
  find(".where").textContent = `layer ${data.layers[state.layer]}` + (H > 1 ? `, ${head}` : "");
  if (!shown) {
    find(".told").textContent = "Point at a word, or press Tab and the arrow keys, to see what it attends to.";
    return;
  }
  const lit = weightsOf(shown), best = [...lit.keys()].sort((a, b) => lit[b] - lit[a]).slice(0, 5).filter((i) => lit[i] >= 0.01);
  const list = best.map((i) => `\u2068${text(other(shown.side), i)}\u2069 ${percent(lit[i])} %`).join("  ·  ") || "nothing above 1 %";
  const verb = shown.side === "target" ? "attends to" : "is attended to by";
  find(".told").textContent = `“\u2068${text(shown.side, shown.i)}\u2069” ${verb}  ${list}`;
}

// ---- the heat map ----

let grid;                          // where its cells are: {left, top, wide, high}

function paintMap(shown) {
  const canvas = find(".map canvas"), total = find(".below").clientWidth, measure = canvas.getContext("2d");
  const font = (size) => `${size}px system-ui, 'Noto Sans', sans-serif`;
  measure.font = font(13);
  const clipped = (label) => {
    if (measure.measureText(label).width <= 150) return label;
    const letters = [...label];
    while (letters.length > 1 && measure.measureText(letters.join("") + "…").width > 150) letters.pop();
    return letters.join("") + "…";
  };
  const rows = words.target.map((_, t) => clipped(text("target", t))), columns = words.source.map((_, s) => clipped(text("source", s)));
  const widest = (labels) => labels.reduce((most, label) => Math.max(most, measure.measureText(label).width), 0);
  const slope = Math.PI / 4, left = Math.ceil(widest(rows)) + 10, rise = Math.ceil(widest(columns) * Math.sin(slope)) + 16;
  const lean = Math.ceil(measure.measureText(columns[S - 1]).width * Math.cos(slope)) + 8;
  const fits = (room) => Math.max(2, Math.min(44, Math.floor((room - left - lean) / S)));
  const beside = fits(total - find(".sheet").offsetWidth - 60);   // beside the sheet if the numbers have room there
  const wide = beside >= 24 ? beside : fits(total), high = Math.min(wide, 26);
  const labelled = high >= 12;
  grid = { left: labelled ? left : 0, top: labelled ? rise : 0, wide, high };
  const pen = sharp(canvas, grid.left + S * wide + (labelled ? lean : 0), grid.top + T * high + 2);
  const table = view(state.layer, state.head);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(picture(state.layer, state.head), grid.left, grid.top, S * wide, T * high);
  if (labelled) {
    pen.strokeStyle = ink("ground");
    pen.beginPath();
    for (let s = 0; s <= S; s++) { pen.moveTo(grid.left + s * wide, grid.top); pen.lineTo(grid.left + s * wide, grid.top + T * high); }
    for (let t = 0; t <= T; t++) { pen.moveTo(grid.left, grid.top + t * high); pen.lineTo(grid.left + S * wide, grid.top + t * high); }
    pen.stroke();
    pen.font = font(Math.min(13, 0.8 * high)); pen.textBaseline = "middle";
    rows.forEach((label, t) => {
      pen.textAlign = "right"; pen.fillStyle = ink("text");
      pen.fillText(label, grid.left - 8, grid.top + (t + 0.5) * high);
    });
    columns.forEach((label, s) => {
      pen.save();
      pen.translate(grid.left + (s + 0.5) * wide, grid.top - 6);
      pen.rotate(-slope);
      pen.textAlign = "left"; pen.fillStyle = ink("text");
      pen.fillText(label, 0, 0);
      pen.restore();
    });
  }
  if (wide >= 24) {
    pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center"; pen.textBaseline = "middle";
    for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) {
      const w = table[t * S + s];
      if (w < FAINT) continue;
      pen.fillStyle = ink(w > colours.flip ? "onAccent" : "text");
      pen.fillText(Math.round(w * 100), grid.left + (s + 0.5) * wide, grid.top + (t + 0.5) * high + 0.5);
    }
  }
  if (shown) {
    const row = shown.side === "target";
    pen.strokeStyle = ink("text"); pen.lineWidth = 2;
    pen.strokeRect(grid.left + (row ? 0 : shown.i * wide), grid.top + (row ? shown.i * high : 0), row ? S * wide : wide, row ? high : T * high);
  }
}

function cellAt(event) {
  const box = find(".map canvas").getBoundingClientRect();
  const s = Math.floor((event.clientX - box.left - grid.left) / grid.wide), t = Math.floor((event.clientY - box.top - grid.top) / grid.high);
  return s >= 0 && s < S && t >= 0 && t < T ? { s, t } : null;
}

function showTip(event, cell) {
  const tip = find(".tip");
  tip.hidden = !cell;
  if (!cell) return;
  const w = view(state.layer, state.head)[cell.t * S + cell.s];
  tip.textContent = `\u2068${text("target", cell.t)}\u2069 → \u2068${text("source", cell.s)}\u2069  ${(w * 100).toFixed(1)} %`;
  const right = event.clientX + 14 + tip.offsetWidth < window.innerWidth;
  tip.style.left = `${right ? event.clientX + 14 : event.clientX - 14 - tip.offsetWidth}px`;
  tip.style.top = `${event.clientY + 16}px`;
}

// ---- the sheet of all layers and heads ----

const sheet = [];                  // {layer, head, button, canvas}

function buildSheet() {
  const choices = H > 1 ? [MEAN, ...data.heads.keys()] : [0], table = find(".sheet table");
  find(".sheet").hidden = L * choices.length < 2;
  const size = Math.max(24, Math.min(64, Math.floor(480 / choices.length) - 8));
  const row = (cells) => { const tr = table.insertRow(); cells.forEach((cell) => tr.append(cell)); };
  const label = (words) => { const th = document.createElement("th"); th.textContent = words; return th; };
  row([label("layer"), ...choices.map((head) => label(head === MEAN ? "mean" : H > 1 ? `head ${data.heads[head]}` : ""))]);
  data.layers.forEach((name, layer) => row([label(name), ...choices.map((head) => {
    const cell = document.createElement("td"), button = document.createElement("button"), canvas = document.createElement("canvas");
    button.type = "button";
    button.title = `layer ${name}` + (head === MEAN ? ", mean of heads" : H > 1 ? `, head ${data.heads[head]}` : "");
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => change({ layer, head: H > 1 ? head : MEAN }));
    canvas.style.width = `${size}px`;
    canvas.style.height = `${Math.max(size / 3, Math.min(1.3 * size, (size * T) / S))}px`;
    button.append(canvas); cell.append(button);
    sheet.push({ layer, head: H > 1 ? head : MEAN, button, canvas });
    return cell;
  })]));
}

function paintSheet() {
  pictures.clear();
  for (const { layer, head, canvas } of sheet) {
    canvas.width = S; canvas.height = T;
    canvas.getContext("2d").drawImage(picture(layer, head), 0, 0);
  }
}

// ---- state ----

function paint() {
  const shown = state.hover || state.pinned;
  paintWords(shown); paintLines(shown); paintTold(shown); paintMap(shown);
  for (const { layer, head, button } of sheet) button.setAttribute("aria-pressed", layer === state.layer && head === state.head);
}

function change(news) {
  Object.assign(state, news);
  paint();
  if ("hover" in news) return;     // what is only pointed at is not worth a link
  const hash = new URLSearchParams({ layer: data.layers[state.layer] });
  if (state.head !== MEAN) hash.set("head", data.heads[state.head]);
  if (state.pinned) hash.set(state.pinned.side, state.pinned.i);
  try { history.replaceState(null, "", `#${hash}`); } catch { /* a frame without an address: the view is just not linkable */ }
}

function readHash() {              // #layer=1&head=2&target=3: layer and head by name, words counted from 0
  const hash = new URLSearchParams(location.hash.slice(1)), layer = data.layers.indexOf(hash.get("layer"));
  const side = hash.has("target") ? "target" : "source", i = Number(hash.get(side) ?? NaN);
  state.layer = layer < 0 ? data.layer : layer;
  state.head = H > 1 ? data.heads.indexOf(hash.get("head")) : MEAN;
  state.pinned = Number.isInteger(i) && i >= 0 && i < words[side].length ? { side, i } : null;
  if (state.pinned) rove(side, i);
  paint();
}

function rove(side, i) {           // one stop of the Tab key a sentence; arrows go on from there
  words[side].forEach((word, at) => { word.tabIndex = at === i ? 0 : -1; });
}

function move(event, side, i) {
  const step = getComputedStyle(find(`[data-side=${side}]`)).direction === "rtl" ? -1 : 1, last = words[side].length - 1;
  const strongest = () => weightsOf({ side, i }).reduce((best, w, at, all) => (w > all[best] ? at : best), 0);
  const goal = {
    ArrowRight: () => [side, i + step], ArrowLeft: () => [side, i - step], Home: () => [side, 0], End: () => [side, last],
    ArrowDown: () => (side === "source" ? ["target", strongest()] : null), ArrowUp: () => (side === "target" ? ["source", strongest()] : null),
  }[event.key]?.();
  if (!goal) return;
  event.preventDefault();
  words[goal[0]][Math.max(0, Math.min(words[goal[0]].length - 1, goal[1]))].focus();
}

for (const side of ["source", "target"]) words[side].forEach((word, i) => {
  word.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && change({ hover: { side, i } }));
  word.addEventListener("pointerleave", () => state.hover && change({ hover: null }));
  word.addEventListener("focus", () => { rove(side, i); change({ pinned: { side, i } }); });
  word.addEventListener("click", () => change({ pinned: { side, i } }));
  word.addEventListener("keydown", (event) => move(event, side, i));
});
find(".map canvas").addEventListener("pointermove", (event) => {
  const cell = cellAt(event), t = cell ? cell.t : -1;
  showTip(event, cell);
  if (t !== (state.hover ? state.hover.i : -1)) change({ hover: cell && { side: "target", i: t } });
});
find(".map canvas").addEventListener("pointerleave", () => { find(".tip").hidden = true; change({ hover: null }); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const turn = (at, by, from, size) => from + ((at - from + by + size) % size);
  if (event.key === "Escape") change({ pinned: null, hover: null }), change({});
  if (event.key === "l" || event.key === "L") change({ layer: turn(state.layer, event.key === "l" ? 1 : -1, 0, L) });
  if ((event.key === "h" || event.key === "H") && H > 1) change({ head: turn(state.head, event.key === "h" ? 1 : -1, MEAN, H + 1) });
});
const repaint = () => { readColours(); paintSheet(); paint(); };
window.addEventListener("hashchange", readHash);
window.addEventListener("resize", paint);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

readColours(); buildSheet(); paintSheet(); rove("source", 0); rove("target", 0); readHash();
