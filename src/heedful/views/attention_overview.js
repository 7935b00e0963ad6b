// The attention page's overview of a long text: block means, with a frame around the window.

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
  return `queries ${span(of("rows", t))} ${spoken(overview.rowsSaid[t])} give ${percent(share)} % to keys ${span(of("columns", s))} ${spoken(overview.columnsSaid[s])}`;
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
