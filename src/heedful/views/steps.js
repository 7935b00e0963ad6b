// The page of steps: `state` holds the token, maps, layer and head; every change ends in `paint`.

const texts = [...document.querySelectorAll("[data-text]")].sort((a, b) => a.dataset.text - b.dataset.text).map((text) => [...text.querySelectorAll(".word")]);
const made = texts[0].filter((word) => word.classList.contains("made")), M = made.length, K = data.count;
const chosen = new Uint16Array(decoded(data.probabilities)), candidateIndices = new Uint32Array(decoded(data.candidates)), shares = new Uint16Array(decoded(data.shares));
const MEAN = -1;                   // in place of a head: the average over heads
const state = { step: M - 1, maps: 0, layer: data.maps[0]?.layer ?? 0, head: MEAN, playing: null };

const saying = (word) => word.querySelector("bdi").textContent;
const here = () => data.maps[state.maps];

// ---- numbers ----

function opened(maps) {            // (layer, head, step) => the weights of all chips that are known, or null
  const largest = new Float32Array(decoded(maps.largest)), codes = new Uint8Array(decoded(maps.codes));
  const places = maps.places && new Uint16Array(decoded(maps.places)), heads = maps.alone ? maps.heads.length + 1 : 1;
  return (layer, head, step) => {
    const t = step - maps.first;
    if (t < 0 || t >= maps.steps || (head !== MEAN && !maps.alone)) return null;
    const row = (layer * heads + (head === MEAN ? heads - 1 : head)) * maps.steps + t, found = new Float32Array(maps.keys);
    for (let i = 0; i < maps.most; i++) found[places ? places[row * maps.most + i] : i] = (largest[row] * codes[row * maps.most + i]) / 255;
    return found;
  };
}
const rows = data.maps.map(opened);
const looked = (layer = state.layer, head = state.head) => (here() ? rows[state.maps](layer, head, state.step) : null);
const chip = (key) => texts[here().text][here().from + key];       // what a key's weight belongs to
const probability = (step) => kept16(chosen[step]);

function candidates(step) {        // what was likely, best first, and what was chosen wherever it stood
  const all = [...Array(K).keys()].map((rank) => step * K + rank).filter((i) => candidateIndices[i] < data.pool.length)
    .map((i) => ({ name: data.pool[candidateIndices[i]], share: kept16(shares[i]), kind: candidateIndices[i] === data.generated[step] ? "chosen" : "" }));
  const own = all.some((one) => one.kind) ? [] : [{ name: saying(made[step]), share: probability(step), kind: "chosen" }];
  const rest = 1 - [...all, ...own].reduce((sum, one) => sum + one.share, 0);
  const others = rest > 0.0005 ? [{ name: make("bdi", "", "all others"), share: rest, kind: "rest" }] : [];
  return [...all, ...own, ...others];
}

// ---- parts ----

function paintText(weights) {
  for (const words of texts) for (const word of words) {
    word.classList.remove("deep", "now", "later", "unknown");
    word.style.removeProperty("--w");
    word.querySelector("i").textContent = "";
  }
  made.forEach((word, step) => {
    word.classList.toggle("later", step > state.step);
    word.classList.toggle("now", step === state.step);
    word.tabIndex = step === state.step ? 0 : -1;
    if (step === state.step) word.setAttribute("aria-current", "step");
    else word.removeAttribute("aria-current");
  });
  if (!weights) return;
  const words = texts[here().text];
  words.forEach((word, i) => {
    const w = weights[i - here().from], before = here().text > 0 || i < texts[0].length - M + state.step;
    word.classList.toggle("unknown", w === undefined && before && i < here().reach);   // a key whose weight was left out
    if (!w) return;
    word.style.setProperty("--w", w);
    word.classList.toggle("deep", w > colours.flip);
    if (w >= 0.02) word.querySelector("i").textContent = percent(w);
  });
}

function paintPanels(weights) {
  const likely = candidates(state.step), said = saying(made[state.step]);
  fillBars(find(".nearly"), likely);
  find(".looked").hidden = !here();
  const best = weights ? strongest(weights, 8, 0.0005) : [], rest = weights ? 1 - best.reduce((sum, key) => sum + weights[key], 0) : 0;
  fillBars(find(".seen"), [
    ...best.map((key) => ({ name: make("bdi", "", saying(chip(key))), share: weights[key] })),
    ...(rest > 0.005 ? [{ name: make("bdi", "", "all others"), share: rest, kind: "rest" }] : []),
  ]);
  const other = likely.filter((one) => !one.kind).slice(0, 2).map((one) => `${spoken(one.name)} ${percent(one.share)} %`);
  const saw = best.slice(0, 3).map((key) => `${spoken(saying(chip(key)))} ${percent(weights[key])} %`);
  find(".status").textContent = `Token ${state.step + 1} of ${M}: ${spoken(said)} with ${percent(probability(state.step))} %` +
    (other.length ? `, alternatives: ${other.join(", ")}` : "") + (saw.length ? `. It attended to ${saw.join(", ")}.` : ".") +
    (here() && !weights ? " The weights of this step were left out: see below." : "");
  const maps = here(), head = state.head === MEAN ? `mean of ${maps?.heads.length} heads` : `head ${maps?.heads[state.head]}`;
  find(".where").textContent = maps ? `: ${maps.name}, layer ${maps.layers[state.layer]}, ${maps.heads.length > 1 ? head : "its one head"}` : "";
}

function paintSure() {
  const canvas = find(".sure canvas"), wide = Math.min(find(".sure").clientWidth, M * 36), high = 56, pen = sharp(canvas, wide, high);
  const step = wide / M, gap = step > 4 ? 1 : 0, width = step - gap;
  for (let i = 0; i < M; i++) {
    const tall = Math.max(1, probability(i) * (high - 8));
    pen.fillStyle = i === state.step ? ink("accent") : ink("quiet", i > state.step ? 0.3 : 0.65);
    pen.fillRect(i * step, high - tall, Math.max(width, 1), tall);
  }
  pen.fillStyle = ink("accent");
  const middle = state.step * step + Math.max(width, 1) / 2;
  pen.beginPath(); pen.moveTo(middle - 4, 0); pen.lineTo(middle + 4, 0); pen.lineTo(middle, 5); pen.fill();
  canvas.setAttribute("aria-valuemax", M);
  canvas.setAttribute("aria-valuenow", state.step + 1);
  canvas.setAttribute("aria-valuetext", `token ${state.step + 1}, ${saying(made[state.step])}, ${percent(probability(state.step))} %`);
}

// ---- every layer and head ----

let sheet = [];                    // {layer, head, button}

function buildSheet() {
  const maps = here();
  sheet = [];
  find(".sheet").hidden = !maps;
  find(".which").hidden = data.maps.length < 2;
  if (!maps) return;
  const choices = maps.alone && maps.heads.length > 1 ? [MEAN, ...maps.heads.keys()] : [MEAN];
  fillSheet(maps.layers, choices.map((head) => (head === MEAN ? (maps.heads.length > 1 ? "mean" : "") : `head ${maps.heads[head]}`)), (layer, at) => {
    const button = make("button"), head = choices[at];
    button.type = "button";
    button.addEventListener("click", () => change({ layer, head }));
    sheet.push({ layer, head, button });
    return button;
  });
  fillSelect(find("select.layer"), maps.layers, [...maps.layers.keys()]);
  fillSelect(find("select.head"), choices.map((head) => (head === MEAN ? (maps.heads.length > 1 ? "mean" : maps.heads[0]) : maps.heads[head])), choices);
}

function paintSheet() {
  const maps = here();
  for (const { layer, head, button } of sheet) {
    const weights = looked(layer, head), best = weights ? strongest(weights, 1, 0)[0] : -1, w = weights ? weights[best] : 0;
    const name = weights ? saying(chip(best)) : "–";
    button.replaceChildren(make("bdi", "", name), make("i", "", weights ? percent(w) : ""));
    button.style.setProperty("--w", w);
    button.classList.toggle("deep", w > colours.flip);
    button.setAttribute("aria-pressed", layer === state.layer && head === state.head);
    button.setAttribute("aria-label", `layer ${maps.layers[layer]}, ${head === MEAN ? "mean of heads" : `head ${maps.heads[head]}`}: ${name} ${percent(w)} %`);
  }
  if (!maps) return;
  find("select.maps").value = state.maps; find("select.layer").value = state.layer; find("select.head").value = state.head;
}

// ---- state ----

function paint() {
  const weights = looked();
  texts.slice(1).forEach((words, i) => { words[0].closest(".aside").hidden = here().text !== i + 1; });
  paintText(weights); paintPanels(weights); paintSure(); paintSheet();
}

function change(news) {
  const other = "maps" in news && news.maps !== state.maps;
  Object.assign(state, news);
  find(".tip").hidden = true;      // it described the step before
  if (other) { state.layer = news.layer ?? here().layer; state.head = news.head ?? MEAN; buildSheet(); }
  paint();
  const maps = here();
  remember({
    step: state.step, maps: data.maps.length > 1 ? state.maps : null, layer: maps?.layers[state.layer],
    head: state.head === MEAN ? null : maps?.heads[state.head],
  });
}

function readHash() {              // #step=3&maps=0&layer=1&head=2: steps from 0, layer and head by number
  const step = whole("step", M), maps = whole("maps", data.maps.length);
  state.step = step < 0 ? M - 1 : step;
  state.maps = maps < 0 ? 0 : maps;
  buildSheet();
  if (here()) {
    const layer = here().layers.indexOf(asked().get("layer")), head = here().heads.indexOf(asked().get("head"));
    state.layer = layer < 0 ? here().layer : layer;
    state.head = here().alone && here().heads.length > 1 ? head : MEAN;
  }
  paint();
  reveal();
}

function reveal() {                // a long text scrolls within its frame
  const word = made[state.step], frame = word.closest(".text"), box = word.getBoundingClientRect(), room = frame.getBoundingClientRect();
  if (box.top < room.top + 12 || box.bottom > room.bottom - 4) frame.scrollTop += box.top - room.top - room.height / 2;
}

function go(step) {                // the focus goes with the step where it is on a token
  const focused = made.includes(document.activeElement);
  change({ step: between(0, step, M - 1) });
  if (focused) made[state.step].focus({ preventScroll: true });
  reveal();
}

function play(on) {
  clearInterval(state.playing);
  state.playing = null;
  find(".play").textContent = on ? "❚❚ pause" : "▶ play";
  find(".status").setAttribute("aria-live", on ? "off" : "polite");
  if (!on) return;
  go(state.step === M - 1 ? 0 : state.step + 1);
  state.playing = setInterval(() => (state.step === M - 1 ? play(false) : go(state.step + 1)), 900);
}

made.forEach((word, step) => word.addEventListener("click", () => { play(false); change({ step }); word.focus(); }));
texts.forEach((words, place) => words.forEach((word, i) => {
  word.addEventListener("pointermove", (event) => {
    const weights = here()?.text === place ? looked() : null, w = weights?.[i - here().from];
    showTip(event, w === undefined ? "" : `${spoken(saying(word))} ${(w * 100).toFixed(w < 0.1 ? 2 : 1)} %`);
  });
  word.addEventListener("pointerleave", (event) => showTip(event, ""));
}));
find(".play").addEventListener("click", () => play(!state.playing));
const goals = { first: () => 0, back: () => state.step - 1, on: () => state.step + 1, last: () => M - 1 };
for (const button of document.querySelectorAll("[data-go]")) button.addEventListener("click", () => { play(false); go(goals[button.dataset.go]()); });
for (const name of ["maps", "layer", "head"]) find(`select.${name}`).addEventListener("change", (event) => change({ [name]: Number(event.target.value) }));
const strip = find(".sure canvas"), stepAt = (event) => Math.floor((event.offsetX / strip.clientWidth) * M);
strip.addEventListener("pointerdown", (event) => { play(false); go(stepAt(event)); });
strip.addEventListener("pointermove", (event) => {
  const step = between(0, stepAt(event), M - 1);
  showTip(event, `${step + 1}: ${spoken(saying(made[step]))} ${percent(probability(step))} %`);
  if (event.buttons) go(step);
});
strip.addEventListener("pointerleave", (event) => showTip(event, ""));
document.addEventListener("keydown", (event) => {
  if (typing(event)) return;
  const goal = { ArrowLeft: goals.back, ArrowRight: goals.on, Home: goals.first, End: goals.last }[event.key];
  if (goal) { event.preventDefault(); play(false); go(goal()); }
  if (event.key === " " && !event.target.closest(".tools button, .sheet button")) { event.preventDefault(); play(!state.playing); }
  if (event.key === "Escape") play(false);
  const maps = here(), by = event.shiftKey ? -1 : 1, key = event.key.toLowerCase();
  if (!maps) return;
  if (key === "l") change({ layer: turned(state.layer, by, 0, maps.layers.length) });
  if (key === "h" && maps.alone && maps.heads.length > 1) change({ head: turned(state.head, by, MEAN, maps.heads.length + 1) });
  if (key === "m" && data.maps.length > 1) change({ maps: turned(state.maps, by, 0, data.maps.length) });
});
window.addEventListener("hashchange", readHash);
window.addEventListener("resize", paintSure);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); paint(); });

fillSelect(find("select.maps"), data.maps.map((maps) => maps.name), [...data.maps.keys()]);
for (const name of ["layer", "head"]) find(`select.${name}`).parentElement.hidden = !here();
readColours(); readHash();
