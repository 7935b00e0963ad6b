// The attention page's heat map: a cell for each weight of the chosen layer and head.

const heat = find(".matrix > .scroll canvas");
let grid;                          // where its cells are: {left, top, wide, high}

function paintMatrix(shown) {
  const { T, S } = here, weights = view(), few = Math.max(T, S) <= 120;
  const names = namesOf(heat, few ? here.query.pieces : [], few ? here.key.pieces : []), { left, rise, lean } = names;
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
    paintNames(pen, names, grid, Math.min(13, 0.8 * high));
  } else ticks(pen, grid, { query: here.query.window, key: here.key.window }, wide, high);
  if (wide >= 24) {
    pen.font = font(11); pen.textAlign = "center"; pen.textBaseline = "middle";
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
