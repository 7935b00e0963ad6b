// The attention page's lines: two texts with pieces as buttons, in two rows or two columns, and lines between them.

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
    const what = side === "query" ? "queries" : "keys", shown = pieces.length < all ? `, ${span(window)} of ${count(all)}` : "";
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

// ---- keyboard ----

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

scroller.addEventListener("scroll", () => here?.window && paintLines(shownNow()));
