// The attention page's sheet: a small map of every layer and head, as a button that selects it.

let sheet = [];                    // {layer, head, button, canvas}

function buildSheet() {
  const { layers, heads } = here, choices = heads.length > 1 ? [MEAN, ...heads.keys()] : [0];
  find(".sheet").hidden = layers.length * choices.length < 2;
  sheet = [];
  const names = choices.map((head) => (head === MEAN ? "mean" : `${heads.length > 12 ? "" : "head "}${heads[head]}`));
  fillSheet(layers, names, (layer, at) => {
    const button = make("button"), canvas = make("canvas"), head = choices[at];
    button.type = "button";
    button.title = `layer ${layers[layer]}, ${headName(head)}`;
    button.setAttribute("aria-label", button.title);
    button.append(canvas);
    button.addEventListener("click", () => change({ layer, head }));
    button.addEventListener("keydown", (event) => {
      const goal = stepped(event, { t: layer, s: at }, layers.length, choices.length);
      if (goal) sheet[goal.t * choices.length + goal.s].button.focus();
    });
    button.addEventListener("focus", () => sheet.forEach((each) => { each.button.tabIndex = each.button === button ? 0 : -1; }));
    sheet.push({ layer, head, button, canvas });
    return button;
  });
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
