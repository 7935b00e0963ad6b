// The lens page: `state` holds the selected cell and the first column of the window; every change ends in `paint`.

const L = data.layers.length, T = data.pieces.length, K = data.count;
const top_ = new (data.wide ? Uint32Array : Uint16Array)(decoded(data.top)), shares = new Uint16Array(decoded(data.shares));
const NONE = data.pool.length;     // in place of a piece: no candidate
const WINDOW = 40;                 // columns at once
const state = { pinned: null, hover: null, start: 0 };   // pinned, hover: {layer, position}
const cells = [];                  // [layer][column of the window] -> td
let heads = [], labels = [];

const at = (layer, position, rank = 0) => (layer * T + position) * K + rank;
const best = (layer, position) => top_[at(layer, position)];
const share = (layer, position, rank = 0) => kept16(shares[at(layer, position, rank)]);
const final = (position) => best(L - 1, position);

function candidates(layer, position) {           // [{piece, share}], best first
  return [...Array(K).keys()].filter((rank) => top_[at(layer, position, rank)] !== NONE)
    .map((rank) => ({ piece: top_[at(layer, position, rank)], share: share(layer, position, rank) }));
}
const after = (layer) => (/^\d+$/.test(data.layers[layer]) ? `layer ${data.layers[layer]}` : data.layers[layer]);
const first = (position) => [...Array(L).keys()].find((layer) => best(layer, position) === final(position));

// ---- the table ----

function build() {
  const table = find(".lens"), head = table.createTHead(), body = table.createTBody(), foot = table.createTFoot();
  const width = Math.min(WINDOW, T), columns = [...Array(width).keys()], top = head.insertRow();
  top.append(make("th", "", "layer"));
  heads = columns.map(() => make("th"));
  heads.forEach((cell) => { cell.scope = "col"; });
  top.append(...heads);
  data.layers.forEach((name, layer) => {
    const row = body.insertRow(), label = make("th", "", name);
    label.scope = "row";
    labels.push(label);
    row.append(label);
    cells.push(columns.map((column) => {
      const cell = row.insertCell(), here = () => ({ layer, position: state.start + column });
      cell.setAttribute("role", "gridcell");
      cell.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && change({ hover: here() }));
      cell.addEventListener("pointerleave", () => state.hover && change({ hover: null }));
      cell.addEventListener("focus", () => change({ pinned: here(), hover: null }));
      cell.addEventListener("click", () => cell.focus());
      cell.addEventListener("keydown", (event) => move(event, here()));
      return cell;
    }));
  });
  const came = foot.insertRow();
  came.append(make("th", "", "in truth"));
  columns.forEach(() => came.insertCell());
}

function fill() {                  // the window's columns
  const end = Math.min(T, state.start + WINDOW), foot = find(".lens tfoot tr");
  heads.forEach((head, column) => {
    const position = state.start + column;
    head.replaceChildren(make("b", "", named(data.pieces[position])), String(position));
  });
  for (let layer = 0; layer < L; layer++) cells[layer].forEach((cell, column) => {
    const position = state.start + column, p = share(layer, position), name = data.pool[best(layer, position)];
    const isFirst = first(position) === layer, isFinal = best(layer, position) === final(position);
    cell.replaceChildren(make("span", "", named(name)), make("i", "", `${percent(p)} %`));
    cell.className = [p > colours.flip && "deep", isFinal && "final", isFirst && "first"].filter(Boolean).join(" ");
    cell.style.setProperty("--w", p);
    cell.setAttribute("aria-label", `${name}, ${percent(p)} %${isFirst ? ", the final piece for the first time" : isFinal ? ", the final piece" : ""}`);
  });
  heads.forEach((_, column) => {
    const position = state.start + column, came = data.came[position], cell = foot.cells[column + 1];
    const mark = came < 0 ? "" : came === final(position) ? "✓ likeliest" : `✗ ${placed(position, came)}`;
    cell.replaceChildren(make("span", "", came < 0 ? "–" : named(data.pool[came])), make("i", "", mark));
  });
  find(".range").textContent = `positions ${state.start}–${end - 1} of 0–${T - 1}`;
  for (const button of document.querySelectorAll("[data-go]")) button.disabled = button.dataset.go < 0 ? !state.start : end === T;
}

function placed(position, piece) { // where the last layer ranks a piece
  const rank = candidates(L - 1, position).findIndex((one) => one.piece === piece);
  return rank < 0 ? `not in ${K}` : `rank ${rank + 1}`;
}

// ---- the overview of long texts ----

function paintOverview() {
  if (T <= WINDOW) return;
  const canvas = find(".overview canvas"), wide = canvas.clientWidth, pen = sharp(canvas, wide, 64);
  const map = shadedPixels(make("canvas"), T, L, (i) => share(Math.floor(i / T), i % T));
  canvas.style.width = "";
  pen.imageSmoothingEnabled = T > wide;
  pen.drawImage(map, 0, 0, wide, 64);
  pen.strokeStyle = ink("text"); pen.lineWidth = 2;
  pen.strokeRect((state.start / T) * wide + 1, 1, Math.max(6, (WINDOW / T) * wide - 2), 62);
  canvas.setAttribute("aria-valuenow", state.start + 1);
  canvas.setAttribute("aria-valuemax", T - WINDOW + 1);
  canvas.setAttribute("aria-valuetext", find(".range").textContent);
}

function slide(start) {
  const goal = between(0, start, Math.max(0, T - WINDOW));
  if (goal === state.start && heads[0].firstChild) return;
  state.start = goal;
  fill();
  paintOverview();
}

// ---- the selected cell ----

function fate(list, position, piece) {           // one piece through the layers; below the last candidate only a bound is known
  fillBars(list, data.layers.map((name, layer) => {
    const all = candidates(layer, position), found = all.find((one) => one.piece === piece);
    if (found) return { name: make("bdi", "", name), share: found.share, kind: best(layer, position) === piece ? "chosen" : "" };
    const bound = Math.min(all[all.length - 1].share, Math.max(0, 1 - all.reduce((sum, one) => sum + one.share, 0)));
    return { name: make("bdi", "", name), share: 0, said: `under ${percent(Math.max(bound, 0.001))} %` };
  }));
}

function paint() {
  const shown = state.hover || state.pinned, cards = find(".cards");
  document.querySelectorAll(".lens .chosen").forEach((cell) => cell.classList.remove("chosen"));
  cards.hidden = !shown;
  if (!shown) {
    find(".status").textContent = "Point at a cell, or press Tab and the arrow keys, to see its candidates.";
    return;
  }
  const { layer, position } = shown, column = position - state.start, came = data.came[position], all = candidates(layer, position);
  for (const cell of [cells[layer][column], heads[column], labels[layer]]) cell?.classList.add("chosen");
  const read = data.pieces.slice(Math.max(0, position - 4), position + 1).map((piece) => piece.replace(/^␣(?=.)/, " ")).join("");
  const context = `${position > 4 ? "…" : ""}${read.trim()}`, start = first(position);
  find(".status").textContent = `After ${after(layer)}, position ${position} (“\u2068${context}\u2069”): ` +
    all.map((one) => `${spoken(data.pool[one.piece])} ${percent(one.share)} %`).join("  ·  ");
  find(".where").textContent = `likeliest after ${after(layer)}, position ${position}`;
  const rest = 1 - all.reduce((sum, one) => sum + one.share, 0);
  const rows = all.map((one) => ({ name: data.pool[one.piece], share: one.share, kind: one.piece === came ? "chosen" : "" }));
  fillBars(find(".candidates"), rest > 0.0005 ? [...rows, { name: make("bdi", "", "all others"), share: rest, kind: "rest" }] : rows);
  find(".fate").replaceChildren("the final piece “", named(data.pool[final(position)]), `” through the layers: first the likeliest after ${after(start)}`);
  fate(find(".through"), position, final(position));
  find(".other").hidden = came < 0 || came === final(position);
  if (find(".other").hidden) return;
  find(".came").replaceChildren("the true piece “", named(data.pool[came]), "” through the layers");
  fate(find(".really"), position, came);
}

function summary() {
  const came = data.came.map((piece, position) => [piece, position]).filter(([piece]) => piece >= 0);
  const right = came.filter(([piece, position]) => piece === final(position)).length;
  const from = data.pieces.map((_, position) => first(position)), middle = [...from].sort((a, b) => a - b)[Math.floor((T - 1) / 2)];
  find(".summary").textContent = `Half of the ${T.toLocaleString("en")} positions have their final piece by ${after(middle)}` +
    (came.length ? `; at ${right} of ${came.length} the last layer says the true piece.` : ".");
}

// ---- state ----

function change(news) {
  Object.assign(state, news);
  paint();
  if (!("pinned" in news)) return; // what is only pointed at is not worth a link
  const { layer, position } = state.pinned ?? {};
  if (state.pinned) rove();
  remember({ layer: data.layers[layer], position });
}

function rove() {                  // one stop of the Tab key; arrows go on from there
  const { layer, position } = state.pinned ?? { layer: 0, position: state.start };
  cells.forEach((row, l) => row.forEach((cell, column) => { cell.tabIndex = l === layer && column === position - state.start ? 0 : -1; }));
}

function visit(layer, position) {
  if (position < state.start || position >= state.start + WINDOW) slide(position - Math.floor(WINDOW / 2));
  cells[layer][position - state.start].focus();
}

function move(event, { layer, position }) {
  const goal = {
    ArrowRight: [layer, position + 1], ArrowLeft: [layer, position - 1], ArrowUp: [layer - 1, position], ArrowDown: [layer + 1, position],
    Home: [layer, 0], End: [layer, T - 1], PageUp: [layer, position - WINDOW], PageDown: [layer, position + WINDOW],
  }[event.key];
  if (!goal || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  visit(between(0, goal[0], L - 1), between(0, goal[1], T - 1));
}

function readHash() {              // #layer=embedding&position=5: the layer by name, positions counted from 0
  const layer = data.layers.indexOf(asked().get("layer")), position = whole("position", T);
  state.pinned = layer >= 0 && position >= 0 ? { layer, position } : null;
  if (state.pinned && (position < state.start || position >= state.start + WINDOW)) slide(position - Math.floor(WINDOW / 2));
  rove();
  paint();
  if (state.pinned) cells[state.pinned.layer][state.pinned.position - state.start].scrollIntoView({ block: "nearest", inline: "center" });
}

document.addEventListener("keydown", (event) => {
  if (typing(event)) return;
  if (event.key === "Escape") { change({ pinned: null, hover: null }); document.activeElement.blur(); rove(); }
  if (event.key === "f" && state.pinned) visit(first(state.pinned.position), state.pinned.position);
});
for (const button of document.querySelectorAll("[data-go]")) button.addEventListener("click", () => slide(state.start + button.dataset.go * WINDOW));
const overview = find(".overview canvas");
overview.addEventListener("pointerdown", (event) => slide(Math.round((event.offsetX / overview.clientWidth) * T - WINDOW / 2)));
overview.addEventListener("pointermove", (event) => event.buttons && slide(Math.round((event.offsetX / overview.clientWidth) * T - WINDOW / 2)));
overview.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: WINDOW, PageUp: -WINDOW, Home: -T, End: T }[event.key];
  if (!step) return;
  event.preventDefault();
  slide(state.start + step);
});
const repaint = () => { readColours(); fill(); paintOverview(); paint(); };
window.addEventListener("hashchange", readHash);
window.addEventListener("resize", paintOverview);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

find(".overview").hidden = T <= WINDOW;
readColours(); build(); fill(); summary(); readHash(); paintOverview();
