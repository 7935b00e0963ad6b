// The page's movements, after parts.js. Of each group of maps the weights come deflated, in the order layer, head, query,
// key; they are inflated when the group is first shown. `state` is all there is to know; every change of it ends in `paint`.

const MEAN = -1;                   // in place of a head: the mean over heads
const FAINT = 0.05;                // below, lines wait until one of their pieces is chosen, numbers until pointed at
const MOST_LINES = 1500;           // the strongest: more make the page slow and nothing clearer
const LONG = 32;                   // pieces a side; above, shades grow with the root of the weight and places are named
const VIEWS = ["heads", "model", "matrix"];

const state = { view: data.view, group: 0, layer: 0, head: MEAN, pinned: null, hover: null, cell: null, beyond: "" };
const words = { query: [], key: [] };                    // their buttons; pinned and hover are {side, i}, cell {t, s}
let here;                          // the group shown: its facts, T, S, long, window and whole (numbers once inflated)

const other = (side) => (side === "query" ? "key" : "query");
const quoted = (text) => `“\u2068${text}\u2069”`;
const count = (number) => number.toLocaleString("en");
const several = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
const exact = (w) => (w * 100).toFixed(here.bits === 16 || w < 0.01 ? 2 : 1);        // as many places as the page keeps
const span = ([first, end]) => (end - first > 1 ? `${count(first)}–${count(end - 1)}` : count(first));
const headName = (head) => (head === MEAN ? `mean of ${here.heads.length} heads` : `head ${here.heads[head]}`);
const tone = (w) => (here.long ? Math.sqrt(w) : w);
const cut = () => here.query.count > here.T || here.key.count > here.S;

function calls(side, i) {          // a piece, and in a long text its place
  return quoted(here[side].pieces[i]) + (here.long ? ` (${count(here[side].window[0] + i)})` : "");
}

// ---- numbers ----

const FINE = Float32Array.from({ length: 65536 }, (_, code) => code / 65535);
const COARSE = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2);

async function inflated(text) {
  const stream = new Blob([decoded(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function numbers(group) {
  const bytes = await inflated(group.weights), fine = group.bits === 16, { T, S, overview } = group;
  group.window = { codes: fine ? new Uint16Array(bytes) : new Uint8Array(bytes), values: fine ? FINE : COARSE, T, S };
  if (!overview) return;
  const blocks = { T: overview.rows.length - 1, S: overview.columns.length - 1 };
  group.whole = { codes: new Uint8Array(await inflated(overview.weights)), values: COARSE, ...blocks };
}

function table({ codes, values, T, S }, layer, head) {   // T × S weights of one head, or their mean over heads
  const heads = head === MEAN ? [...here.heads.keys()] : [head], sums = new Float32Array(T * S);
  for (const h of heads) {
    const start = (layer * here.heads.length + h) * T * S;
    for (let i = 0; i < T * S; i++) sums[i] += values[codes[start + i]];
  }
  if (heads.length > 1) for (let i = 0; i < T * S; i++) sums[i] /= heads.length;
  return sums;
}

let kept = { of: null };           // the last table of the window and its picture: they are asked for at every movement

function view() {
  const name = `${state.group},${state.layer},${state.head}`;
  if (kept.of !== name) kept = { of: name, table: table(here.window, state.layer, state.head) };
  return kept.table;
}

function weightsOf({ side, i }) {  // of one piece to every piece of the other side
  const { T, S } = here;
  return side === "query" ? view().subarray(i * S, (i + 1) * S) : Float32Array.from({ length: T }, (_, t) => view()[t * S + i]);
}

function picture(weights, T, S, mostHigh, mostWide) {    // a pixel a weight, or where there is less room the largest of several
  const high = Math.max(1, Math.min(T, mostHigh)), wide = Math.max(1, Math.min(S, mostWide)), most = new Float32Array(high * wide);
  const row = Int32Array.from({ length: T }, (_, t) => Math.floor((t * high) / T)), column = Int32Array.from({ length: S }, (_, s) => Math.floor((s * wide) / S));
  for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) {
    const at = row[t] * wide + column[s];
    if (weights[t * S + s] > most[at]) most[at] = weights[t * S + s];
  }
  const canvas = make("canvas"), pen = canvas.getContext("2d"), image = new ImageData(wide, high);
  canvas.width = wide; canvas.height = high;
  most.forEach((w, i) => {
    const share = Math.min(1, tone(w));
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours.chip[c] + share * (colours.accent[c] - colours.chip[c]);
    image.data[4 * i + 3] = 255;
  });
  pen.putImageData(image, 0, 0);
  return canvas;
}

// ---- heads: two texts with lines between ----

const pair = find(".pair"), scroller = find(".scroller"), sides = find(".sides");
const columns = () => pair.classList.contains("columns");
let places;                        // where lines end, by side, from the corner of its list

function buildWords() {
  for (const side of ["key", "query"]) {
    const { pieces, starts, window, count: all } = here[side], list = find(`[data-side=${side}]`);
    let whole;
    list.replaceChildren();
    words[side] = pieces.map((text, i) => {
      const button = make("button", `word${starts[i] ? "" : " inside"}${i + 1 < pieces.length && !starts[i + 1] ? " open" : ""}`, make("bdi", "", text), make("i"));
      button.type = "button";
      button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && change({ hover: { side, i }, cell: null }));
      button.addEventListener("pointerleave", () => state.hover && change({ hover: null }));
      button.addEventListener("focus", () => { rove(side, i); change({ pinned: { side, i }, cell: null }); });
      button.addEventListener("click", () => change({ pinned: { side, i }, cell: null }));
      button.addEventListener("keydown", (event) => move(event, side, i));
      if (starts[i] || !whole) list.append((whole = make("span", "whole")));
      whole.append(button);
      return button;
    });
    const what = side === "query" ? "looking (queries)" : "looked at (keys)", shown = pieces.length < all ? `, ${span(window)} of ${count(all)}` : "";
    list.setAttribute("aria-label", what + shown);
    list.parentElement.querySelector("h2").textContent = what + shown;
    rove(side, 0);
  }
}

function layout() {                // two rows where each text is one line, else two columns, the looking one first
  const [key, query] = ["key", "query"].map((side) => find(`[data-side=${side}]`).parentElement);
  pair.className = "pair rows";
  pair.dir = "ltr";
  for (const side of ["key", "query"]) find(`[data-side=${side}]`).dir = here[side].way;
  sides.append(key, query);
  const lines = (side) => words[side].at(-1).offsetTop - words[side][0].offsetTop;
  if (here.T + here.S > 160 || lines("key") > 8 || lines("query") > 8) {
    pair.className = "pair columns";
    pair.dir = here.query.way;
    for (const side of ["key", "query"]) find(`[data-side=${side}]`).removeAttribute("dir");   // the columns stand as the queries' script runs
    sides.append(query, key);
  }
  for (const side of [key, query]) side.classList.toggle("stays", columns() && side.offsetHeight < scroller.clientHeight);
  const swapped = columns() && pair.dir === "rtl";
  places = Object.fromEntries(Object.entries(words).map(([side, list]) => {
    const box = find(`[data-side=${side}]`).getBoundingClientRect(), first = (side === "query") !== swapped;
    return [side, list.map((word) => {
      const at = word.getBoundingClientRect();
      return columns()
        ? [(first ? at.right : at.left) - box.left, at.top + at.height / 2 - box.top]
        : [at.left + at.width / 2 - box.left, (side === "key" ? at.bottom : at.top) - box.top];
    })];
  }));
}

function paintLines(shown) {
  const frame = pair.getBoundingClientRect(), { T, S } = here, lines = [], upright = columns(), weights = view();
  const pen = sharp(find(".pair > canvas"), frame.width, frame.height);
  const [keys, queries] = ["key", "query"].map((side) => {
    const box = find(`[data-side=${side}]`).getBoundingClientRect();
    return places[side].map(([x, y]) => [x + box.left - frame.left, y + box.top - frame.top]);
  });
  for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) {
    const w = weights[t * S + s];
    if (w < 0.004) continue;
    const chosen = shown && (shown.side === "query" ? shown.i === t : shown.i === s), y = queries[t][1];
    if (chosen || (w >= FAINT && (!upright || (y > 0 && y < frame.height)))) lines.push({ t, s, w, chosen });   // of two long columns the queries in sight
  }
  lines.sort((a, b) => b.w - a.w);
  for (const { t, s, w, chosen } of lines.slice(0, MOST_LINES).reverse()) {
    const [x, y] = keys[s], [u, v] = queries[t], reach = upright ? (u - x) * 0.45 : Math.max(30, (v - y) * 0.45);
    pen.beginPath();
    pen.moveTo(x, y);
    if (upright) pen.bezierCurveTo(x + reach, y, u - reach, v, u, v);
    else pen.bezierCurveTo(x, y + reach, u, v - reach, u, v);
    pen.lineWidth = 0.6 + 6 * w;
    pen.strokeStyle = ink("accent", (0.25 + 0.6 * w) * (shown && !chosen ? 0.12 : 1));
    pen.stroke();
  }
}

function paintWords(shown) {
  const lit = shown ? weightsOf(shown) : null, least = here.long ? 0.005 : 0.02;
  for (const side of ["query", "key"]) words[side].forEach((word, i) => {
    const w = lit && side === other(shown.side) ? lit[i] : 0;
    word.style.setProperty("--w", tone(w));
    word.classList.toggle("deep", tone(w) > colours.flip);
    word.classList.toggle("chosen", Boolean(shown) && shown.side === side && shown.i === i);
    word.lastChild.textContent = w >= least ? percent(w) : "";
  });
}

// ---- what is said ----

function told(shown) {
  const { S, key } = here, where = `Layer ${here.layers[state.layer]}, ${headName(state.head)}: `;
  if (state.cell) {
    const { t, s } = state.cell;
    return `${where}${calls("query", t)} → ${calls("key", s)}  ${exact(view()[t * S + s])} %`;
  }
  if (!shown) return `${where}${state.beyond}Point at a piece, or press Tab and the arrow keys, to see what it looks at.`;
  const lit = weightsOf(shown), best = strongest(lit, 5, here.long ? 0.001 : 0.01);
  const list = best.map((i) => `${calls(other(shown.side), i)} ${percent(lit[i])} %`).join("  ·  ") || `nothing above ${here.long ? 0.1 : 1} %`;
  if (shown.side === "key") return `${where}${calls("key", shown.i)} is looked at by  ${list}`;
  const rest = 1 - lit.reduce((sum, w) => sum + w, 0), outside = S < key.count && rest > 0.005 ? `  ·  ${percent(rest)} % outside of the keys shown` : "";
  return `${where}${calls("query", shown.i)} looks at  ${list}${outside}`;
}

function paintAbout() {
  const { name, layers, heads, query, key, overview } = here, both = [several(query.count, "query", "queries"), several(key.count, "key")];
  const texts = here.same ? several(query.count, "piece") : both.join(", "), over = overview ? ", over an overview of all" : "";
  const shown = cut() ? ` Shown are queries ${span(query.window)} and keys ${span(key.window)}${over}.` : "";
  find(".about").textContent = `${name[0].toUpperCase()}${name.slice(1)}: ${texts}; ${several(layers.length, "layer")} of ${several(heads.length, "head")}.${shown} The thicker a line, the larger the weight.`;
  const bits = here.bits === 16 ? "Weights are kept in 16 bits: each is within 0.001 percentage points of the model's." : "Weights are kept in 8 bits: one of 1 % is within 0.04 percentage points of the model's, one of 50 % within 0.3.";
  const far = here.overview ? "The overview's shares are kept in 8 bits, within 0.4 percentage points. " : "";
  find(".kept").textContent = `${bits} ${far}${here.note}`;
}

// ---- matrix: the heat map ----

const heat = find(".matrix > .scroll canvas");
let grid;                          // where its cells are: {left, top, wide, high}
const font = (size) => `${size}px system-ui, 'Noto Sans', sans-serif`;

function clipped(pen, label) {
  if (pen.measureText(label).width <= 150) return label;
  const letters = [...label.replace(/…$/, "")];
  while (letters.length > 1 && pen.measureText(`${letters.join("")}…`).width > 150) letters.pop();
  return `${letters.join("")}…`;
}

function paintMatrix(shown) {
  const { T, S } = here, measure = heat.getContext("2d"), weights = view(), slope = Math.PI / 4;
  measure.font = font(13);
  const few = Math.max(T, S) <= 120, label = (side) => (few ? here[side].pieces.map((text) => clipped(measure, text)) : []);
  const rows = label("query"), heads = label("key"), widest = (labels) => labels.reduce((most, text) => Math.max(most, measure.measureText(text).width), 0);
  const left = Math.ceil(widest(rows)) + 10, rise = Math.ceil(widest(heads) * Math.sin(slope)) + 16;
  const lean = few ? Math.ceil(measure.measureText(heads[S - 1]).width * Math.cos(slope)) + 8 : 8;
  const total = find(".sections").clientWidth, sheet = find(".sheet"), fits = (room) => Math.max(1, Math.min(44, Math.floor((room - (few ? left : 52) - lean) / S)));
  const beside = sheet.hidden || VIEWS.indexOf(state.view) > 0 ? 0 : fits(total - sheet.offsetWidth - 60);   // beside the sheet if the numbers have room there
  const wide = beside >= 24 ? beside : fits(total), high = Math.min(wide, 26), labelled = few && high >= 12;
  grid = { left: labelled ? left : 44, top: labelled ? rise : 20, wide, high };
  const pen = sharp(heat, grid.left + S * wide + lean, grid.top + T * high + 2);
  pen.imageSmoothingEnabled = false;
  pen.drawImage((kept.picture ??= picture(weights, T, S, T, S)), grid.left, grid.top, S * wide, T * high);
  pen.strokeStyle = ink("edge");
  pen.strokeRect(grid.left - 0.5, grid.top - 0.5, S * wide + 1, T * high + 1);
  pen.fillStyle = ink("text");
  if (labelled) {
    pen.strokeStyle = ink("ground");
    pen.beginPath();
    for (let s = 0; s <= S; s++) { pen.moveTo(grid.left + s * wide, grid.top); pen.lineTo(grid.left + s * wide, grid.top + T * high); }
    for (let t = 0; t <= T; t++) { pen.moveTo(grid.left, grid.top + t * high); pen.lineTo(grid.left + S * wide, grid.top + t * high); }
    pen.stroke();
    pen.font = font(Math.min(13, 0.8 * high)); pen.textBaseline = "middle"; pen.textAlign = "right";
    rows.forEach((text, t) => pen.fillText(text, grid.left - 8, grid.top + (t + 0.5) * high));
    pen.textAlign = "left";
    heads.forEach((text, s) => {
      pen.save();
      pen.translate(grid.left + (s + 0.5) * wide, grid.top - 6);
      pen.rotate(-slope);
      pen.fillText(text, 0, 0);
      pen.restore();
    });
  } else ticks(pen, grid, { query: here.query.window, key: here.key.window }, wide, high);
  if (wide >= 24) {
    pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center"; pen.textBaseline = "middle";
    for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) {
      const w = weights[t * S + s];
      if (w < FAINT) continue;
      pen.fillStyle = ink(tone(w) > colours.flip ? "on-accent" : "text");
      pen.fillText(Math.round(w * 100), grid.left + (s + 0.5) * wide, grid.top + (t + 0.5) * high + 0.5);
    }
  }
  pen.strokeStyle = ink("text"); pen.lineWidth = 2;
  const { left: x, top: y } = grid;
  if (shown) {
    const row = shown.side === "query";
    pen.strokeRect(x + (row ? 0 : shown.i * wide), y + (row ? shown.i * high : 0), row ? S * wide : wide, row ? high : T * high);
  }
  if (state.cell) pen.strokeRect(x + state.cell.s * wide - 1, y + state.cell.t * high - 1, wide + 2, high + 2);
}

function ticks(pen, { left, top }, spans, wide, high) {   // places along both sides, where pieces have no room
  const steps = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
  pen.font = font(11);
  for (const [side, size, apart] of [["key", wide, 56], ["query", high, 24]]) {
    const [first, end] = spans[side], step = steps.find((each) => each * size >= apart) ?? steps.at(-1);
    for (let place = Math.ceil(first / step) * step; place < end; place += step) {
      const at = (place - first) * size;
      pen.textAlign = side === "key" ? "left" : "right"; pen.textBaseline = side === "key" ? "bottom" : "top";
      if (side === "key") pen.fillText(count(place), left + at, top - 4);
      else pen.fillText(count(place), left - 4, top + at - 2);
    }
  }
}

function paintLegend() {
  const marks = here.long ? [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  find(".legend").replaceChildren(...marks.map((w) => {
    const mark = make("span", tone(w) > colours.flip ? "deep" : "", `${w * 100} %`);
    mark.style.background = shade(tone(w));
    return mark;
  }), here.long ? " shades grow with the square root of the weight" : "");
}

function cellAt(event, canvas, { left, top, wide, high }, T, S) {
  const box = canvas.getBoundingClientRect();
  const s = Math.floor((event.clientX - box.left - left) / wide), t = Math.floor((event.clientY - box.top - top) / high);
  return s >= 0 && s < S && t >= 0 && t < T ? { s, t } : null;
}

function stepped(event, { t, s }, T, S) {        // the cell an arrow key leads to
  const goal = { ArrowLeft: [t, s - 1], ArrowRight: [t, s + 1], ArrowUp: [t - 1, s], ArrowDown: [t + 1, s], Home: [t, 0], End: [t, S - 1] }[event.key];
  if (!goal) return null;
  event.preventDefault();
  return { t: between(0, goal[0], T - 1), s: between(0, goal[1], S - 1) };
}

heat.addEventListener("pointermove", (event) => {
  if (!here) return;
  const cell = cellAt(event, heat, grid, here.T, here.S), was = state.cell;
  showTip(event, cell && `${calls("query", cell.t)} → ${calls("key", cell.s)}  ${exact(view()[cell.t * here.S + cell.s])} %`);
  if (cell?.t !== was?.t || cell?.s !== was?.s) change({ hover: cell && { side: "query", i: cell.t }, cell });
});
heat.addEventListener("pointerleave", () => { find(".tip").hidden = true; change({ hover: null, cell: null }); });
heat.addEventListener("click", () => state.cell && change({ pinned: { side: "query", i: state.cell.t } }));
heat.addEventListener("keydown", (event) => {
  const at = state.cell ?? { t: state.pinned?.side === "query" ? state.pinned.i : 0, s: 0 }, cell = stepped(event, at, here.T, here.S);
  if (cell) change({ cell, hover: null, pinned: { side: "query", i: cell.t } });
});
heat.addEventListener("blur", () => state.cell && change({ cell: null }));

// ---- the overview of a long text ----

const far = find(".overview canvas");
let block = null, lattice;

function paintOverview() {
  const { overview, whole } = here;
  find(".overview").hidden = !overview;
  if (!overview) return;
  const size = Math.max(2, Math.min(7, Math.floor((find(".sections").clientWidth - 60) / whole.S)));
  lattice = { left: 52, top: 20, wide: size, high: size };
  find(".overview h2").textContent = `the whole: ${count(here.query.count)} × ${count(here.key.count)} in ${whole.T} × ${whole.S} blocks, framed what is shown above`;
  const pen = sharp(far, lattice.left + whole.S * size + 40, lattice.top + whole.T * size + 2), { left, top } = lattice;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(picture(table(whole, state.layer, state.head), whole.T, whole.S, whole.T, whole.S), left, top, whole.S * size, whole.T * size);
  pen.strokeStyle = ink("edge");
  pen.strokeRect(left - 0.5, top - 0.5, whole.S * size + 1, whole.T * size + 1);
  const among = (limits, place) => {
    const at = Math.max(0, limits.findIndex((limit) => limit > place) - 1), j = place >= limits.at(-1) ? limits.length - 1 : at;
    return j === limits.length - 1 ? j : j + (place - limits[j]) / (limits[j + 1] - limits[j]);
  };
  const [x, u] = here.key.window.map((place) => left + size * among(overview.columns, place)), [y, v] = here.query.window.map((place) => top + size * among(overview.rows, place));
  pen.strokeStyle = ink("text"); pen.lineWidth = 2;
  pen.strokeRect(x, y, Math.max(3, u - x), Math.max(3, v - y));
  if (block) { pen.setLineDash([3, 2]); pen.strokeRect(left + block.s * size - 1, top + block.t * size - 1, size + 2, size + 2); pen.setLineDash([]); }
  pen.fillStyle = ink("text");
  const each = { query: here.query.count / whole.T, key: here.key.count / whole.S };
  ticks(pen, lattice, { query: [0, here.query.count], key: [0, here.key.count] }, size / each.key, size / each.query);
}

function blockSaid({ t, s }) {
  const { overview, whole } = here, of = (name, at) => [overview[name][at], overview[name][at + 1]];
  const share = table(whole, state.layer, state.head)[t * whole.S + s];
  return `queries ${span(of("rows", t))} ${quoted(overview.rowsSaid[t])} give ${percent(share)} % to keys ${span(of("columns", s))} ${quoted(overview.columnsSaid[s])}`;
}

function options({ t, s }) {       // a window as large as this one, about a block
  const about = (limits, at, size, all) => {
    const wide = Math.max(size, limits[at + 1] - limits[at]), first = between(0, Math.round((limits[at] + limits[at + 1] - wide) / 2), all - wide);
    return `${first}:${first + wide}`;
  };
  const { overview, query, key, T, S } = here;
  return `--queries ${about(overview.rows, t, T, query.count)} --keys ${about(overview.columns, s, S, key.count)}`;
}

function show(at, chosen) {
  block = at;
  const line = find(".show");
  line.textContent = at ? blockSaid(at) : "";
  if (at && chosen) line.append(make("br"), "To see it: ", make("code", "", `heedful inspect … ${options(at)}`));
  paintOverview();
}

far.addEventListener("pointermove", (event) => {
  const at = here && cellAt(event, far, lattice, here.whole.T, here.whole.S);
  showTip(event, at && blockSaid(at));
});
far.addEventListener("pointerleave", () => { find(".tip").hidden = true; });
far.addEventListener("click", (event) => {
  const at = cellAt(event, far, lattice, here.whole.T, here.whole.S);
  if (at) show(at, true);
});
far.addEventListener("keydown", (event) => {
  const at = stepped(event, block ?? { t: 0, s: 0 }, here.whole.T, here.whole.S);
  if (at) show(at, false);
  if (event.key === "Enter" && block) show(block, true);
});

// ---- model: all layers and heads ----

let sheet = [];                    // {layer, head, button, canvas}

function buildSheet() {
  const { layers, heads } = here, choices = heads.length > 1 ? [MEAN, ...heads.keys()] : [0], rows = find(".sheet table");
  find(".sheet").hidden = layers.length * choices.length < 2;
  rows.replaceChildren();
  sheet = [];
  const row = (cells) => { const tr = rows.insertRow(); cells.forEach((cell) => tr.append(cell)); };
  row([make("th", "", "layer"), ...choices.map((head) => make("th", "", head === MEAN ? "mean" : `${heads.length > 12 ? "" : "head "}${heads[head]}`))]);
  layers.forEach((number, layer) => row([make("th", "", String(number)), ...choices.map((head, at) => {
    const button = make("button"), canvas = make("canvas"), cell = make("td", "", button);
    button.type = "button";
    button.title = `layer ${number}, ${headName(head)}`;
    button.setAttribute("aria-label", button.title);
    button.append(canvas);
    button.addEventListener("click", () => change({ layer, head }));
    button.addEventListener("keydown", (event) => {
      const goal = stepped(event, { t: layer, s: at }, layers.length, choices.length);
      if (goal) sheet[goal.t * choices.length + goal.s].button.focus();
    });
    button.addEventListener("focus", () => sheet.forEach((each) => { each.button.tabIndex = each.button === button ? 0 : -1; }));
    sheet.push({ layer, head, button, canvas });
    return cell;
  })]));
}

function paintSheet() {            // the whole text where there is an overview, else the window
  const source = here.whole ?? here.window, { T, S } = source, across = here.heads.length + (here.heads.length > 1), leads = state.view === "model";
  const alone = leads || here.S > 20, room = alone ? find(".sections").clientWidth - 60 : 480;   // alone: no room for the matrix beside it
  const size = between(20, Math.floor(room / across) - 10, leads ? 110 : alone ? 48 : 64);
  const ratio = here.whole ? 1 : T / S, high = Math.round(between(size / 3, size * ratio, 1.3 * size)), scale = window.devicePixelRatio || 1;
  for (const { layer, head, canvas } of sheet) {
    const small = picture(table(source, layer, head), T, S, Math.ceil(high * scale), Math.ceil(size * scale));
    canvas.width = small.width; canvas.height = small.height;
    canvas.getContext("2d").drawImage(small, 0, 0);
    canvas.style.width = `${size}px`; canvas.style.height = `${high}px`;
  }
  const less = T > high * scale || S > size * scale ? " Each pixel is the largest of the weights that it stands for." : "";
  find(".sheet > p").textContent = (here.whole ? "Of the whole text, in blocks." : "") + less;
}

// ---- state ----

function shownNow() { return state.hover || state.pinned; }

function paint() {
  if (!here?.window) return;
  const shown = shownNow();
  paintWords(shown); paintLines(shown); paintMatrix(shown);
  find(".told").textContent = told(shown);
}

function paintChoice() {           // what hangs on the layer and head alone
  if (!here?.window) return;
  for (const { layer, head, button } of sheet) {
    const now = layer === state.layer && head === state.head;
    button.setAttribute("aria-pressed", now);
    if (!sheet.some((each) => each.button === document.activeElement)) button.tabIndex = now ? 0 : -1;
  }
  find(".layer").value = state.layer; find(".head").value = state.head; find(".group").value = state.group;
  paintOverview();
}

function paintAll() {
  if (!here?.window) return;
  kept.picture = null;
  find(".bar").classList.toggle("long", here.long);
  readColours(); paintSheet(); layout(); paintAbout(); paintLegend(); paintChoice(); paint();
}

function change(news) {
  const chose = ["layer", "head"].some((name) => name in news && news[name] !== state[name]);
  Object.assign(state, news);
  if (chose) { paintChoice(); show(null); }
  paint();
  if (!("pinned" in news || "layer" in news || "head" in news || "view" in news)) return;     // what is only pointed at is not worth a link
  const { view: first, group, layer, head, pinned } = state, at = (side) => (pinned?.side === side ? here[side].window[0] + pinned.i : null);
  remember({
    view: first === data.view ? null : first, group: data.groups.length > 1 ? here.name : null, layer: here.layers[layer],
    head: head === MEAN || here.heads.length === 1 ? null : here.heads[head], token: at("query"), key: at("key"),
  });
}

function lead(view) {              // the section that comes first
  state.view = VIEWS.includes(view) ? view : data.view;
  const order = [state.view, ...VIEWS.filter((each) => each !== state.view)];
  find(".sections").append(...order.map((each) => find(`[data-view=${each}]`)));
  for (const knob of document.querySelectorAll(".knobs button")) knob.setAttribute("aria-pressed", knob.textContent === state.view);
}

async function enter(group) {      // another kind of attention; the layer and head stay where it has them
  const next = data.groups[group], [layer, head] = here ? [here.layers[state.layer], here.heads[state.head]] : [];
  state.group = group;
  Object.assign(next, { T: next.query.pieces.length, S: next.key.pieces.length });
  next.long = Math.max(next.T, next.S) > LONG;
  if (!next.window) await numbers(next);
  if (state.group !== group) return false;        // another was asked for meanwhile
  here = next;
  kept = { of: null };
  block = null;
  find(".show").textContent = "";
  const at = next.layers.indexOf(layer), same = next.heads.indexOf(head);
  Object.assign(state, { layer: at < 0 ? next.layer : at, head: next.heads.length === 1 ? 0 : same < 0 ? MEAN : same, pinned: null, hover: null, cell: null, beyond: "" });
  fillSelect(find(".layer"), next.layers.map(String), [...next.layers.keys()]);
  const heads = [...next.heads.keys()];
  fillSelect(find(".head"), next.heads.length > 1 ? ["mean", ...next.heads.map(String)] : next.heads.map(String), next.heads.length > 1 ? [MEAN, ...heads] : heads);
  buildWords(); buildSheet();
  return true;
}

async function readHash() {        // #view=model&group=cross-attention&layer=1&head=2&token=3 (or key=3): numbers of the model, places in the whole text
  const hash = asked(), named = data.groups.findIndex(({ name }) => name === hash.get("group")), numbered = whole("group", data.groups.length);
  lead(hash.get("view"));
  if (!(await enter(named >= 0 ? named : Math.max(0, numbered)))) return;
  const at = (numbers, name) => numbers.findIndex((number) => String(number) === hash.get(name)), layer = at(here.layers, "layer"), head = at(here.heads, "head");
  if (layer >= 0) state.layer = layer;
  else state.layer = here.layer;
  state.head = here.heads.length > 1 ? head : 0;
  for (const [name, side] of [["token", "query"], ["key", "key"]]) {
    const place = whole(name, here[side].count), i = place - here[side].window[0];
    if (place >= 0 && i >= 0 && i < words[side].length) { state.pinned = { side, i }; rove(side, i); }
    else if (place >= 0) state.beyond = `${side === "query" ? "Query" : "Key"} ${count(place)} is not among the ones shown, ${span(here[side].window)}. `;
  }
  paintAll();
  find(".sections").setAttribute("aria-busy", "false");
  if (state.pinned) words[state.pinned.side][state.pinned.i].scrollIntoView({ block: "nearest" });
}

function rove(side, i) {           // one stop of the Tab key a text; arrows go on from there
  words[side].forEach((word, at) => { word.tabIndex = at === i ? 0 : -1; });
}

function move(event, side, i) {
  const backwards = getComputedStyle(columns() ? pair : find(`[data-side=${side}]`)).direction === "rtl", last = words[side].length - 1;
  const across = (from) => (side === from ? [other(side), weightsOf({ side, i }).reduce((best, w, at, all) => (w > all[best] ? at : best), 0)] : null);
  const along = (by) => [side, i + by], [right, left] = backwards ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
  const keys = columns()
    ? { ArrowDown: () => along(1), ArrowUp: () => along(-1), [right]: () => across("query"), [left]: () => across("key") }
    : { [right]: () => along(1), [left]: () => along(-1), ArrowDown: () => across("key"), ArrowUp: () => across("query") };
  const goal = { ...keys, Home: () => [side, 0], End: () => [side, last] }[event.key]?.();
  if (!goal) return;
  event.preventDefault();
  words[goal[0]][between(0, goal[1], words[goal[0]].length - 1)].focus();
}

document.addEventListener("keydown", (event) => {
  if (typing(event) || !here?.window) return;
  const by = event.shiftKey ? -1 : 1, key = event.key.toLowerCase(), many = here.heads.length;
  if (event.key === "Escape") { change({ pinned: null, hover: null, cell: null, beyond: "" }); show(null); }
  if (key === "l") change({ layer: turned(state.layer, by, 0, here.layers.length) });
  if (key === "h" && many > 1) change({ head: turned(state.head, by, MEAN, many + 1) });
});
find(".layer").addEventListener("change", (event) => change({ layer: Number(event.target.value) }));
find(".head").addEventListener("change", (event) => change({ head: Number(event.target.value) }));
find(".group").addEventListener("change", async (event) => {
  if (await enter(Number(event.target.value))) { paintAll(); change({ pinned: null }); }
});
scroller.addEventListener("scroll", () => here?.window && paintLines(shownNow()));
window.addEventListener("hashchange", readHash);
window.addEventListener("resize", paintAll);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);

fillSelect(find(".group"), data.groups.map(({ name }) => name), [...data.groups.keys()]);
find(".group").parentElement.hidden = data.groups.length < 2;
find(".knobs").append(...VIEWS.map((view) => {
  const knob = make("button", "", view);
  knob.type = "button";
  knob.addEventListener("click", () => { lead(view); paintAll(); change({ view }); window.scrollTo(0, 0); });
  return knob;
}));
if ("DecompressionStream" in window) readHash();
else find(".told").textContent = "This browser cannot unpack the weights (no DecompressionStream); one of 2023 or later can.";
