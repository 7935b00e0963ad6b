// The image page: `state` holds the query token, layer and head; every change ends in `paint`. Tokens are numbered as in the
// model: those before the patches first, then patches row by row. `PATCHES`, one past the last, is the mean over patches.

const L = data.layers.length, H = data.numbers.length, P = data.prefix.length;
const R = data.rows.length - 1, C = data.columns.length - 1, N = P + R * C, PATCHES = N;
const MEAN = -1;                   // in place of a head: the average over heads
const START = { layer: L - 1, head: MEAN, token: P ? 0 : PATCHES, show: "attention" };
const state = { ...START, hover: null };

// ---- numbers ----

function opened(pack) {            // (which row) => its N weights
  const largest = new Float32Array(decoded(pack.largest)), codes = new Uint8Array(decoded(pack.codes));
  const code = pack.bits === 8 ? (i) => codes[i] / 255 : (i) => ((i & 1 ? codes[i >> 1] >> 4 : codes[i >> 1] & 15) / 15) ** 2;
  return (row) => Float32Array.from({ length: N }, (_, i) => largest[row] * code(row * N + i));
}
const means = opened(data.mean), tokens = opened(data.tokens), heads = data.heads && opened(data.heads), kept = new Map();
const maps = Object.fromEntries(["rollout", "gradient"].map((name) => [name, data[name] && new Float32Array(decoded(data[name]))]));

function weights(layer, head, token) {           // a query token's N weights, null if left out
  const key = `${layer},${head},${token}`, place = layer * H + head;
  if (kept.has(key)) return kept.get(key);
  const patch = token >= P && token < PATCHES;
  const found = head === MEAN ? means(layer * (N + 1) + token) : !patch ? tokens(place * (P + 1) + Math.min(token, P))
    : heads && heads(place * R * C + token - P);
  if (kept.size > 4000) kept.clear();
  kept.set(key, found);
  return found;
}

function values(layer = state.layer, head = state.head, token = currentToken()) {     // of the R × C patches, as they are shown
  if (state.show === "nothing") return null;
  return state.show === "attention" ? weights(layer, head, token)?.subarray(P) ?? null : maps[state.show];
}

function scaled(all) {             // 0 .. 1 from the least to the most; of signed ones by size
  const size = state.show === "gradient" ? all.map(Math.abs) : all;
  let low = state.show === "gradient" ? 0 : Infinity, high = -Infinity;
  for (const value of size) { low = Math.min(low, value); high = Math.max(high, value); }
  return { low, high, share: (i) => (high > low ? (size[i] - low) / (high - low) : 0.5) };
}

const currentToken = () => state.hover ?? state.token;
const signed = (value, words) => (value < 0 ? "−" : "+") + words;
const said = (value) => (state.show === "gradient" ? signed(value, Math.abs(value).toPrecision(2)) : `${percent(value)} %`);
const spot = (patch) => [Math.floor(patch / C), patch % C];
function title(token) {
  if (token === PATCHES) return "every patch (mean)";
  return token < P ? data.prefix[token] : `patch (${spot(token - P).map((i) => i + 1).join(", ")})`;
}

// ---- image and heat map ----

let wide, high;                    // of either, in CSS pixels

function measure() {
  const room = Math.min(420, find("main").clientWidth - 48), [w, h] = data.size, scale = Math.min(room / w, room / h);
  wide = Math.round(w * scale); high = Math.round(h * scale);
  for (const [part, side] of [["width", wide], ["height", high]]) find(".frame img").style[part] = `${side}px`;
}

function box(patch) {              // left, top, width, height
  const [r, c] = spot(patch), x = Math.round(data.columns[c] * wide), y = Math.round(data.rows[r] * high);
  return [x, y, Math.round(data.columns[c + 1] * wide) - x, Math.round(data.rows[r + 1] * high) - y];
}

function paintPictures(all) {
  const veil = sharp(find(".frame canvas"), wide, high), heat = sharp(find(".heat"), wide, high), { share } = all ? scaled(all) : {};
  const cell = box(0)[2], numbers = cell >= 30, signs = state.show === "gradient" && cell >= 9;
  heat.fillStyle = ink("chip");
  heat.fillRect(0, 0, wide, high);
  for (let i = 0; all && i < R * C; i++) {
    const [x, y, w, h] = box(i), s = share(i);
    veil.fillStyle = `rgb(28 28 32 / ${0.72 * (1 - s)})`;      // dim, in light and dark: the image stays to be seen
    veil.fillRect(x, y, w, h);
    heat.fillStyle = shade(s);
    heat.fillRect(x, y, w, h);
    heat.fillStyle = ink(s > colours.flip ? "on-accent" : "text");
    heat.textAlign = "center"; heat.textBaseline = "middle";
    heat.font = font(numbers ? 11 : Math.min(12, cell));
    const words = state.show === "gradient" ? (signs && s >= 0.01 ? signed(all[i], numbers ? Math.round(100 * s) : "") : "") : numbers && all[i] > 0 ? percent(all[i]) : "";
    if (words) heat.fillText(words, x + w / 2, y + h / 2 + 0.5);
  }
  heat.strokeStyle = ink("edge"); heat.lineWidth = 1;
  heat.strokeRect(0.5, 0.5, wide - 1, high - 1);
  const token = currentToken();
  if (token < P || token >= PATCHES || ["rollout", "gradient"].includes(state.show)) return;
  outlined(veil, ...box(token - P));
  if (all) outlined(heat, ...box(token - P), [4, 3]);
}

function paintStatus(all) {
  const head = state.head === MEAN ? `mean of ${H} heads` : `head ${data.numbers[state.head]}`, token = currentToken();
  const attends = state.show === "attention", what = { rollout: "rollout of all layers", gradient: "gradient × input", nothing: "the image alone" }[state.show];
  find(".where").textContent = attends ? `layer ${data.layers[state.layer]}${H > 1 ? `, ${head}` : ""}` : what;
  find(".faded").textContent = { attention: "the image, faded where the weights are small", rollout: "the image, faded where less comes from",
    gradient: "the image, faded where it matters less", nothing: "the image" }[state.show];
  find(".who").textContent = `what ${title(token)} attends to`;
  const scale = all && scaled(all), rough = attends && data.heads?.bits === 4 && state.head !== MEAN && token >= P && token < PATCHES;
  if (!all) find(".scale").textContent = state.show === "nothing" ? "" : "left out: see below";
  else if (state.show === "gradient") find(".scale").textContent = `in % of the strongest, ${scale.high.toPrecision(2)}: for (+) or against (−)`;
  else find(".scale").textContent = `${attends ? "weights" : "shares"} in %${rough ? ", roughly" : ""}: pale ${percent(scale.low)}, strong ${percent(scale.high)}`;
  const status = find(".status");
  if (!all) {
    status.textContent = state.show === "nothing" ? "" : "Of single heads, only the tokens before the patches and the mean over patches were kept; choose the mean of heads.";
    return;
  }
  const size = state.show === "gradient" ? all.map(Math.abs) : all;
  const list = strongest(size, 5, 0.001 * scale.high).map((i) => `${title(P + i)} ${said(all[i])}`);
  const before = attends ? [...data.prefix.keys()].map((i) => `${data.prefix[i]} ${said(weights(state.layer, state.head, token)[i])}`) : [];
  const start = attends ? `${title(token)} attends to` : state.show === "rollout" ? "Most reaches the output from" : `Most matter, for (+) ${data.classes.length ? `“${data.classes[0][0]}”` : "the first class"} or against it (−),`;
  status.textContent = `${start}  ${[...before, ...list].join("  ·  ")}  (patches by row and column)`;
}

function paintTokens() {
  const attends = state.show === "attention", all = attends ? weights(state.layer, state.head, currentToken()) : null;
  for (const button of document.querySelectorAll("[data-token]")) {
    const token = button.dataset.token === "patches" ? PATCHES : Number(button.dataset.token), w = all && token < P ? all[token] : 0;
    button.setAttribute("aria-pressed", token === currentToken());
    button.disabled = !attends;
    button.style.setProperty("--w", w);
    button.classList.toggle("deep", w > colours.flip);
    button.querySelector("i").textContent = all && token < P ? `${percent(w)} %` : "";
  }
  find("select.show").value = state.show; find("select.layer").value = state.layer; find("select.head").value = state.head;
  find("select.layer").disabled = find("select.head").disabled = !attends;
}

// ---- every layer and head ----

const sheet = [];                  // {layer, head, button, canvas}

function buildSheet() {
  const choices = H > 1 ? [MEAN, ...data.numbers.keys()] : [0];
  const size = between(22, Math.floor((find("main").clientWidth - 130) / choices.length) - 10, 60);
  fillSheet(data.layers, choices.map((head) => (head === MEAN ? "mean" : H > 1 ? data.numbers[head] : "")), (layer, at) => {
    const button = make("button"), canvas = make("canvas"), head = choices[at];
    button.type = "button";
    button.title = `layer ${data.layers[layer]}` + (head === MEAN ? ", mean of heads" : H > 1 ? `, head ${data.numbers[head]}` : "");
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => change({ layer, head: H > 1 ? head : MEAN, show: "attention" }));
    canvas.style.width = `${size}px`;
    canvas.style.height = `${between(size / 2, (size * data.size[1]) / data.size[0], 2 * size)}px`;
    button.append(canvas);
    sheet.push({ layer, head: H > 1 ? head : MEAN, button, canvas });
    return button;
  });
}

function paintSheet() {
  const attends = state.show === "attention";
  find(".sheet").hidden = !attends || sheet.length < 2;
  if (!attends) return;
  for (const { layer, head, button, canvas } of sheet) {
    const all = values(layer, head);
    shadedPixels(canvas, C, R, all ? scaled(all).share : () => 0);
    button.setAttribute("aria-pressed", layer === state.layer && head === state.head);
    button.disabled = !all;
  }
}

// ---- state ----

let waiting = false;               // the sheet is redrawn at most once a frame

function paint() {
  const all = values();
  paintPictures(all); paintStatus(all); paintTokens();
  if (!waiting) requestAnimationFrame(() => { waiting = false; paintSheet(); });
  waiting = true;
}

function change(news) {
  Object.assign(state, news);
  paint();
  if ("hover" in news && news.hover !== null) return;   // what is only pointed at is not worth a link
  const { show, token, layer, head } = state, part = { token: token === PATCHES ? "patches" : token, layer: data.layers[layer] };
  remember(show === "attention" ? { ...part, head: head === MEAN ? null : data.numbers[head] } : { show });
}

function readHash() {              // #token=0&layer=11&head=3, or #show=rollout
  const token = asked().get("token") === "patches" ? PATCHES : whole("token", N), layer = data.layers.indexOf(asked().get("layer"));
  const show = [...find("select.show").options].map((option) => option.value).find((value) => value === asked().get("show"));
  state.token = token < 0 ? START.token : token;
  state.layer = layer < 0 ? START.layer : layer;
  state.head = H > 1 ? data.numbers.indexOf(asked().get("head")) : MEAN;
  state.show = show ?? START.show;
  paint();
}

function patchAt(event) {
  const box = event.currentTarget.getBoundingClientRect(), x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  const c = data.columns.findIndex((limit) => limit > x) - 1, r = data.rows.findIndex((limit) => limit > y) - 1;
  return r >= 0 && c >= 0 ? P + r * C + c : null;
}

const frame = find(".frame"), heat = find(".heat");
frame.addEventListener("pointermove", (event) => {
  const token = event.pointerType === "mouse" && state.show === "attention" ? patchAt(event) : null;
  if (token !== state.hover) change({ hover: token });
});
frame.addEventListener("pointerleave", () => state.hover !== null && change({ hover: null }));
for (const picture of [frame, heat]) picture.addEventListener("click", (event) => {
  const token = patchAt(event);
  if (token !== null && state.show === "attention") change({ token, hover: null });
});
heat.addEventListener("pointermove", (event) => {
  const token = patchAt(event), all = values();
  showTip(event, token !== null && all ? `${title(token)}: ${said(all[token - P])}` : "");
});
heat.addEventListener("pointerleave", (event) => showTip(event, ""));
frame.addEventListener("keydown", (event) => {
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step || state.show !== "attention" || typing(event)) return;
  event.preventDefault();
  if (state.token < P || state.token === PATCHES) return change({ token: P, hover: null });
  const [r, c] = spot(state.token - P);
  if (r + step[0] < 0 && P) return change({ token: P - 1, hover: null });
  change({ token: P + between(0, r + step[0], R - 1) * C + between(0, c + step[1], C - 1), hover: null });
});
for (const button of document.querySelectorAll("[data-token]")) {
  button.addEventListener("click", () => change({ token: button.dataset.token === "patches" ? PATCHES : Number(button.dataset.token), hover: null }));
}
for (const name of ["layer", "head", "show"]) {
  find(`select.${name}`).addEventListener("change", (event) => change({ [name]: name === "show" ? event.target.value : Number(event.target.value) }));
}
document.addEventListener("keydown", (event) => {
  if (typing(event)) return;
  const shows = [...find("select.show").options].map((option) => option.value), by = event.shiftKey ? -1 : 1, key = event.key.toLowerCase();
  if (event.key === "Escape") change({ ...START, hover: null });
  if (key === "c") change({ token: START.token, hover: null });
  if (key === "s") change({ show: shows[turned(shows.indexOf(state.show), by, 0, shows.length)], hover: null });
  if (key === "l") change({ layer: turned(state.layer, by, 0, L) });
  if (key === "h" && H > 1) change({ head: turned(state.head, by, MEAN, H + 1) });
});
const repaint = () => { readColours(); measure(); paint(); };
window.addEventListener("hashchange", readHash);
window.addEventListener("resize", repaint);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

fillSelect(find("select.layer"), data.layers, [...data.layers.keys()]);
fillSelect(find("select.head"), H > 1 ? ["mean", ...data.numbers] : ["the only one"], H > 1 ? [MEAN, ...data.numbers.keys()] : [MEAN]);
fillBars(find(".classes"), data.classes.map(([name, share], i) => ({ name, share, kind: i ? "" : "chosen" })));
readColours(); measure(); buildSheet(); readHash();
