// The page of words: `state` holds layer, head and word; every change ends in `paint`. Layer 0 and head 0 are the means.

const M = data.count, CELLS = data.rows * data.columns, H = data.heads.length + 1, L = data.layers.length + 1;
const START = { layer: 0, head: 0, word: -1 }, state = { ...START };
const largest = new Float32Array(decoded(data.weights.largest)), codes = new Uint8Array(decoded(data.weights.codes));
const figures = [...document.querySelectorAll(".words figure")];

function weights(word) {           // of a word's patches, as shares of its largest, and the largest
  const row = (state.layer * H + state.head) * M + word;
  return { all: Float32Array.from({ length: CELLS }, (_, i) => codes[row * CELLS + i] / 255), most: largest[row] };
}

function paint() {
  const { all: chosen, most } = state.word < 0 ? { all: [], most: 0 } : weights(state.word);
  figures.forEach((figure, word) => {
    const canvas = figure.querySelector("canvas"), { all } = weights(word);
    canvas.width = data.columns; canvas.height = data.rows;
    const picture = new ImageData(data.columns, data.rows);
    all.forEach((share, i) => { picture.data[4 * i + 3] = Math.round(255 * 0.88 * (1 - share)); });  // black, less where it attended
    canvas.getContext("2d").putImageData(picture, 0, 0);
    figure.classList.toggle("chosen", word === state.word);
  });
  find("select.layer").value = state.layer; find("select.head").value = state.head;
  const best = chosen.length ? chosen.indexOf(Math.max(...chosen)) : -1;
  find(".status").textContent = best < 0 ? "Point at a word to see its strongest patch."
    : `“${figures[state.word].querySelector("b").textContent}”: ${(100 * most).toFixed(1)} % on row ${1 + Math.floor(best / data.columns)}, column ${1 + best % data.columns}.`;
}

function change(news) {
  Object.assign(state, news);
  paint();
  remember({ layer: state.layer ? data.layers[state.layer - 1] : null, head: state.head ? data.heads[state.head - 1] : null, word: state.word < 0 ? null : state.word });
}

function readHash() {              // #layer=1&head=2&word=3; layers and heads by number
  state.layer = 1 + data.layers.indexOf(asked().get("layer"));
  state.head = 1 + data.heads.indexOf(asked().get("head"));
  state.word = whole("word", M);
  paint();
}

for (const figure of figures) {
  figure.querySelector("img").src = figures[0].querySelector("img").src;
  for (const event of ["pointerenter", "focus", "click"]) figure.addEventListener(event, () => change({ word: Number(figure.dataset.word) }));
}
for (const name of ["layer", "head"]) find(`select.${name}`).addEventListener("change", (event) => change({ [name]: Number(event.target.value) }));
document.addEventListener("keydown", (event) => {
  if (typing(event)) return;
  const by = event.shiftKey ? -1 : 1, key = event.key.toLowerCase();
  if (key === "l") change({ layer: turned(state.layer, by, 0, L) });
  if (key === "h") change({ head: turned(state.head, by, 0, H) });
});
window.addEventListener("hashchange", readHash);

fillSelect(find("select.layer"), ["mean", ...data.layers], [...Array(L).keys()]);
fillSelect(find("select.head"), ["mean", ...data.heads], [...Array(H).keys()]);
readHash();
