// The attention page: numbers, texts and state. It follows parts.js and the files of its sections (attention_*.js) in one
// script. The weights of a group of maps are compressed, in the order layer, head, query, key, and decompressed when the
// group is first shown. `state` is the whole state of the page; every change of it ends in `paint`.

const MEAN = -1;                   // in place of a head: the mean over heads
const FAINT = 0.05;                // below, lines wait until one of their pieces is chosen, numbers until pointed at
const MOST_LINES = 1500;           // the strongest: more make the page slow and nothing clearer
const LONG = 32;                   // pieces a side; above, shades grow with the root of the weight and places are named
const VIEWS = ["heads", "model", "matrix"];

const state = { view: data.view, group: 0, layer: 0, head: MEAN, pinned: null, hover: null, cell: null, beyond: "" };
const words = { query: [], key: [] };                    // their buttons; pinned and hover are {side, i}, cell {t, s}
let here;                          // the group shown: its facts, T, S, long, window and whole (numbers once inflated)

const other = (side) => (side === "query" ? "key" : "query");
const count = (number) => number.toLocaleString("en");
const several = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
const exact = (w) => (w * 100).toFixed(here.bits === 16 || w < 0.01 ? 2 : 1);        // as many places as the page keeps
const span = ([first, end]) => (end - first > 1 ? `${count(first)}–${count(end - 1)}` : count(first));
const headName = (head) => (head === MEAN ? `mean of ${here.heads.length} heads` : `head ${here.heads[head]}`);
const tone = (w) => (here.long ? Math.sqrt(w) : w);
const cut = () => here.query.count > here.T || here.key.count > here.S;

function calls(side, i) {          // a piece, and in a long text its place
  return spoken(here[side].pieces[i]) + (here.long ? ` (${count(here[side].window[0] + i)})` : "");
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
  return shadedPixels(make("canvas"), wide, high, (i) => Math.min(1, tone(most[i])));
}

// ---- texts ----

function describe(shown) {
  const { S, key } = here, where = `Layer ${here.layers[state.layer]}, ${headName(state.head)}: `;
  if (state.cell) {
    const { t, s } = state.cell;
    return `${where}${calls("query", t)} → ${calls("key", s)}  ${exact(view()[t * S + s])} %`;
  }
  if (!shown) return `${where}${state.beyond}Point at a piece, or press Tab and the arrow keys, to see its weights.`;
  const lit = weightsOf(shown), best = strongest(lit, 5, here.long ? 0.001 : 0.01);
  const list = best.map((i) => `${calls(other(shown.side), i)} ${percent(lit[i])} %`).join("  ·  ") || `nothing above ${here.long ? 0.1 : 1} %`;
  if (shown.side === "key") return `${where}${calls("key", shown.i)} is attended to by  ${list}`;
  const rest = 1 - lit.reduce((sum, w) => sum + w, 0), outside = S < key.count && rest > 0.005 ? `  ·  ${percent(rest)} % outside of the keys shown` : "";
  return `${where}${calls("query", shown.i)} attends to  ${list}${outside}`;
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

// ---- state ----

function shownNow() { return state.hover || state.pinned; }

function paint() {
  if (!here?.window) return;
  const shown = shownNow();
  paintWords(shown); paintLines(shown); paintMatrix(shown);
  find(".status").textContent = describe(shown);
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
else find(".status").textContent = "This browser cannot unpack the weights (no DecompressionStream); one of 2023 or later can.";
