// The page of a run: `state` holds the step, input, maps, layer and head; every change ends in `paint`.
// `spot` is the selected weight: [query, key]. Of an image one query at a time is shown: `query`.

const MEAN = -1;                   // in place of a head: the average over heads
const state = { snapshot: data.snapshots.length - 1, input: 0, map: 0, layer: 0, head: MEAN, query: 0, spot: null };
let playing = null;

const mapsAt = (snapshot = state.snapshot) => data.snapshots[snapshot].maps[state.input];
const mapAt = (snapshot = state.snapshot) => mapsAt(snapshot)[state.map];
const H = () => mapAt().heads.length, averaged = () => mapAt().heads[0] === MEAN;
const image = () => data.images[state.input];

// ---- numbers ----

const opened = new Map(), kept = new Map();

function codes(map) {
  if (!opened.has(map)) opened.set(map, new Uint8Array(decoded(map.weights)));
  return opened.get(map);
}

function table(snapshot, layer = state.layer, head = state.head) {     // the weights, queries × keys
  const key = `${snapshot},${state.input},${state.map},${layer},${head}`;
  if (kept.has(key)) return kept.get(key);
  const map = mapAt(snapshot), size = map.queries.length * map.keys.length, all = codes(map), found = new Float32Array(size);
  const heads = head === MEAN ? [...map.heads.keys()] : [head];
  for (const one of heads) {
    const start = (layer * map.heads.length + one) * size;
    for (let i = 0; i < size; i++) found[i] += all[start + i] / (255 * heads.length);
  }
  if (kept.size > 3000) kept.clear();
  kept.set(key, found);
  return found;
}

function sharpness(snapshot) {         // the mean over queries of the largest weight
  const values = table(snapshot), wide = mapAt(snapshot).keys.length, tall = mapAt(snapshot).queries.length;
  let sum = 0;
  for (let t = 0; t < tall; t++) sum += values.subarray(t * wide, (t + 1) * wide).reduce((most, w) => Math.max(most, w), 0);
  return sum / tall;
}

const headName = (head) => (averaged() ? "mean of heads" : head === MEAN ? `mean of ${H()} heads` : `head ${mapAt().heads[head]}`);
const number = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4))));
const stepName = (snapshot) => `step ${data.snapshots[snapshot].step.toLocaleString("en")}`;

// ---- the curves over the slider ----

function paintCurve() {
  const width = find(".curve").clientWidth, height = 76, pen = sharp(find(".curve canvas"), width, height);
  const snapshots = [...data.snapshots.keys()], last = snapshots.length - 1;
  const x = (snapshot) => 8 + (last ? (snapshot / last) * (width - 16) : 0);         // over the middle of the slider's thumb
  const line = (values, colour, dash, low, high) => {
    const there = snapshots.filter((snapshot) => Number.isFinite(values[snapshot]));
    const y = (snapshot) => 8 + (height - 16) * (1 - (high > low ? (values[snapshot] - low) / (high - low) : 0.5));
    pen.strokeStyle = pen.fillStyle = ink(colour); pen.lineWidth = 2; pen.setLineDash(dash);
    pen.beginPath();
    there.forEach((snapshot, i) => (i ? pen.lineTo(x(snapshot), y(snapshot)) : pen.moveTo(x(snapshot), y(snapshot))));
    pen.stroke();
    pen.setLineDash([]);
    if (!Number.isFinite(values[state.snapshot])) return;
    pen.beginPath(); pen.arc(x(state.snapshot), y(state.snapshot), 4, 0, 7); pen.fill();
  };
  pen.strokeStyle = ink("edge"); pen.lineWidth = 1;
  pen.beginPath(); pen.moveTo(x(state.snapshot), 0); pen.lineTo(x(state.snapshot), height); pen.stroke();
  const values = data.snapshots.map((snapshot) => snapshot.value ?? NaN), finite = values.filter(Number.isFinite), sharpest = snapshots.map(sharpness);
  line(values, "quiet", [5, 4], Math.min(...finite), Math.max(...finite));
  line(sharpest, "accent", [], 0, 1);
  find(".now .sharp").textContent = `sharpness ${percent(sharpest[state.snapshot])} %`;
}

// ---- one map ----

let grid = null;                   // {left, top, wide, high}: where its cells are

function paintMap() {
  const map = mapAt(), values = table(state.snapshot), canvas = find(".one canvas");
  const whose = image() ? ` of ${map.queries[state.query]}` : "";
  find(".which").textContent = `${map.name}${whose}, layer ${map.layers[state.layer]}, ${headName(state.head)}` + (map.note ? ` (${map.note})` : "");
  if (image()) return paintImage(map, values, canvas);
  const T = map.queries.length, S = map.keys.length, names = namesOf(canvas, map.queries, map.keys), { left, rise, lean } = names;
  const wide = between(13, Math.floor((find(".one").clientWidth - left - lean) / S), 60), high = between(13, wide, 34);
  grid = { left, top: rise, wide, high, T, S };
  const pen = sharp(canvas, left + S * wide + lean, rise + T * high + 2);
  pen.textBaseline = "middle";
  for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) {
    const w = values[t * S + s];
    pen.fillStyle = shade(w);
    pen.fillRect(left + s * wide, rise + t * high, wide - 1, high - 1);
    if (wide < 24 || w < 0.05) continue;
    pen.font = font(11); pen.textAlign = "center"; pen.fillStyle = ink(w > colours.flip ? "on-accent" : "text");
    pen.fillText(Math.round(w * 100), left + (s + 0.5) * wide, rise + (t + 0.5) * high);
  }
  paintNames(pen, names, grid);
  if (!state.spot) return;
  pen.strokeStyle = ink("text"); pen.lineWidth = 2;
  pen.strokeRect(left + state.spot[1] * wide, rise + state.spot[0] * high, wide - 1, high - 1);
}

const pictures = data.images.map((one) => {
  if (!one) return null;
  const picture = new Image();
  picture.addEventListener("load", () => paint());
  picture.src = one.source;
  return picture;
});

function paintImage(map, values, canvas) {       // light on the patches by their weight: the largest of the snapshot is full
  const { size: [w, h], grid: [R, C] } = image(), scale = Math.min(440, find(".one").clientWidth) / Math.max(w, h);
  const width = Math.round(w * scale), height = Math.round(h * scale), pen = sharp(canvas, width, height);
  const S = map.keys.length, P = S - R * C, row = state.query, own = values.subarray(row * S + P, (row + 1) * S);
  const most = own.reduce((a, b) => Math.max(a, b), 1e-9);
  find(".which").append(`; full light is ${percent(most)} %`);
  pen.imageSmoothingEnabled = Math.max(w, h) > 64;
  if (pictures[state.input].complete) pen.drawImage(pictures[state.input], 0, 0, width, height);
  grid = { left: 0, top: 0, wide: width / C, high: height / R, T: R, S: C, P };
  own.forEach((weight, i) => {
    pen.fillStyle = `rgba(12,12,20,${0.82 * (1 - weight / most)})`;
    const [r, c] = [Math.floor(i / C), i % C], x = Math.round((c * width) / C), y = Math.round((r * height) / R);
    pen.fillRect(x, y, Math.round(((c + 1) * width) / C) - x, Math.round(((r + 1) * height) / R) - y);
  });
  if (!state.spot) return;
  const at = state.spot[1] - P;
  if (at >= 0) outlined(pen, (at % C) * grid.wide, Math.floor(at / C) * grid.high, grid.wide, grid.high);
}

function spotAt(event) {
  const box = find(".one canvas").getBoundingClientRect(), s = Math.floor((event.clientX - box.left - grid.left) / grid.wide);
  const t = Math.floor((event.clientY - box.top - grid.top) / grid.high);
  if (s < 0 || s >= grid.S || t < 0 || t >= grid.T) return null;
  return image() ? [state.query, grid.P + t * grid.S + s] : [t, s];
}

// ---- every layer and head ----

let sheet = [];                    // {layer, head, button, canvas}

function buildSheet() {
  const map = mapAt(), heads = [...map.heads.keys()], choices = heads.length > 1 ? [MEAN, ...heads] : [0];
  find(".sheet").hidden = map.layers.length * choices.length < 2;
  const size = between(30, Math.floor((find(".sheet").clientWidth - 56) / choices.length) - 8, 72);
  sheet = [];
  fillSheet(map.layers, choices.map((head) => (head === MEAN || averaged() ? "mean" : `${map.heads[head]}`)), (layer, at) => {
    const button = make("button"), canvas = make("canvas"), own = heads.length > 1 ? choices[at] : MEAN;
    button.type = "button";
    button.title = `layer ${map.layers[layer]}, ${headName(own)}`;
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => change({ layer, head: own }));
    canvas.style.width = canvas.style.height = `${size}px`;
    button.append(canvas);
    sheet.push({ layer, head: own, button, canvas });
    return button;
  });
}

function paintSheet() {
  const map = mapAt(), picture = image(), all = map.keys.length, row = picture ? state.query : 0;
  const [T, S] = picture ? picture.grid : [map.queries.length, all], skipped = picture ? all - T * S : 0;
  for (const { layer, head, button, canvas } of sheet) {
    const values = table(state.snapshot, layer, head).subarray(picture ? row * all + skipped : 0);
    const most = picture ? values.subarray(0, T * S).reduce((a, b) => Math.max(a, b), 1e-9) : 1;
    shadedPixels(canvas, S, T, (i) => values[i] / most);
    button.setAttribute("aria-pressed", layer === state.layer && head === state.head);
  }
}

// ---- texts ----

function weightThen(snapshot, query, key) {          // the weight at another snapshot, null where these tokens were not there
  const map = mapAt(snapshot), now = mapAt();
  if (map.queries[query] !== now.queries[query] || map.keys[key] !== now.keys[key]) return null;
  return table(snapshot)[query * map.keys.length + key];
}

function paintStatus() {
  const { value } = data.snapshots[state.snapshot], map = mapAt();
  find(".at").textContent = stepName(state.snapshot);
  find(".now .metric").textContent = value === null ? "" : `${data.metric} ${number(value)}`;
  find(".steps").value = state.snapshot;
  find(".steps").setAttribute("aria-valuetext", find(".at").textContent);
  if (!state.spot) {
    find(".status").textContent = "Move the slider, or press Space; point at a weight to follow it through the steps.";
    return;
  }
  const [query, key] = state.spot, snapshots = [0, state.snapshot, data.snapshots.length - 1].filter((snapshot, i, all) => all.indexOf(snapshot) === i);
  const then = snapshots.map((snapshot) => [snapshot, weightThen(snapshot, query, key)]).filter(([, w]) => w !== null);
  find(".status").textContent = `\u2068${map.queries[query]}\u2069 → \u2068${map.keys[key]}\u2069: ` +
    then.map(([snapshot, w]) => `${percent(w)} % at ${stepName(snapshot)}`).join(", ");
}

// ---- state ----

function fill() {                  // the choices of this input and attention
  const map = mapAt();
  state.layer = between(0, state.layer, map.layers.length - 1);
  state.head = map.heads.length > 1 ? between(MEAN, state.head, map.heads.length - 1) : MEAN;
  fillSelect(find("select.map"), mapsAt().map((one) => one.name), [...mapsAt().keys()]);
  fillSelect(find("select.layer"), map.layers.map(String), [...map.layers.keys()]);
  const heads = map.heads.length > 1 ? [...map.heads.keys()] : [];
  fillSelect(find("select.head"), [heads.length || averaged() ? "mean" : "the only one", ...heads.map((i) => `${map.heads[i]}`)], [MEAN, ...heads]);
  state.query = between(0, state.query, map.queries.length - 1);
  fillSelect(find("select.query"), map.queries, [...map.queries.keys()]);
  find(".queries").hidden = !image() || map.queries.length < 2;
  find(".maps").hidden = mapsAt().length < 2;
  find(".scale").textContent = image() ? ", each to its own scale" : "";
  buildSheet();
}

function paint() {
  const map = mapAt();
  if (state.spot && (state.spot[0] >= map.queries.length || state.spot[1] >= map.keys.length)) state.spot = null;
  for (const name of ["input", "map", "query", "layer", "head"]) find(`select.${name}`).value = state[name];
  paintStatus(); paintMap(); paintSheet(); paintCurve();
}

function change(news, pointed = false) {
  const other = "input" in news || "map" in news;
  Object.assign(state, news);
  if ("query" in news) state.spot = null;
  if (other) { state.map = between(0, state.map, mapsAt().length - 1); state.spot = null; fill(); }
  paint();
  if (pointed) return;             // what is only pointed at is not worth a link
  const map = mapAt(), head = state.head === MEAN ? null : map.heads[state.head];
  remember({ step: data.snapshots[state.snapshot].step, input: state.input, map: state.map, layer: map.layers[state.layer], head });
}

function readHash() {
  const step = asked().get("step"), at = data.snapshots.findIndex((snapshot) => String(snapshot.step) === step);
  state.snapshot = at < 0 ? data.snapshots.length - 1 : at;
  state.input = Math.max(0, whole("input", data.inputs.length));
  const cross = mapsAt().findIndex((one) => one.name === "cross-attention"), map = whole("map", mapsAt().length);
  state.map = map >= 0 ? map : Math.max(0, cross);
  const layer = mapAt().layers.map(String).indexOf(asked().get("layer"));
  state.layer = layer < 0 ? mapAt().layers.length - 1 : layer;
  state.head = mapAt().heads.map(String).indexOf(asked().get("head"));     // none: MEAN
  fill(); paint();
}

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => {
    if (state.snapshot === data.snapshots.length - 1) play(false); else change({ snapshot: state.snapshot + 1 }, true);
  }, 500) : null;
  if (on && state.snapshot === data.snapshots.length - 1) change({ snapshot: 0 });
  find(".play").setAttribute("aria-pressed", on);
  find(".play").textContent = on ? "❚❚ stop" : "▶ play";
}

find(".play").addEventListener("click", () => play(!playing));
find(".steps").addEventListener("input", (event) => { play(false); change({ snapshot: Number(event.target.value) }); });
for (const name of ["input", "map", "query", "layer", "head"]) {
  find(`select.${name}`).addEventListener("change", (event) => change({ [name]: Number(event.target.value) }));
}
const canvas = find(".one canvas");
canvas.addEventListener("pointermove", (event) => {
  const spot = spotAt(event);
  showTip(event, spot ? `${percent(table(state.snapshot)[spot[0] * mapAt().keys.length + spot[1]])} %` : "");
  if (spot && String(spot) !== String(state.spot)) change({ spot }, true);
});
canvas.addEventListener("pointerleave", (event) => showTip(event, ""));
canvas.addEventListener("keydown", (event) => {
  const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!by || typing(event)) return;
  event.preventDefault();
  const map = mapAt(), [query, key] = state.spot ?? [image() ? state.query : 0, image() ? grid.P - 1 : -1];
  const [down, on] = image() ? [0, by[1] + by[0] * grid.S] : by;
  change({ spot: [between(0, query + down, map.queries.length - 1), between(image() ? grid.P : 0, key + on, map.keys.length - 1)] }, true);
});
document.addEventListener("keydown", (event) => {
  if (typing(event)) return;
  const map = mapAt(), last = data.snapshots.length - 1, by = event.shiftKey ? -1 : 1, key = event.key.toLowerCase();
  if (event.key === "Escape") change({ spot: null });
  if (event.key === " " && !event.target.matches("button")) { event.preventDefault(); play(!playing); }
  if (event.key === "," || event.key === ".") { play(false); change({ snapshot: between(0, state.snapshot + (event.key === "." ? 1 : -1), last) }); }
  if (key === "l") change({ layer: turned(state.layer, by, 0, map.layers.length) });
  if (key === "h" && map.heads.length > 1) change({ head: turned(state.head, by, MEAN, map.heads.length + 1) });
  if (key === "i") change({ input: turned(state.input, by, 0, data.inputs.length) });
  if (key === "m") change({ map: turned(state.map, by, 0, mapsAt().length) });
});
window.addEventListener("hashchange", readHash);
window.addEventListener("resize", () => { fill(); paint(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); paint(); });

fillSelect(find("select.input"), data.inputs, [...data.inputs.keys()]);
find(".inputs").hidden = data.inputs.length < 2;
readColours(); readHash();
