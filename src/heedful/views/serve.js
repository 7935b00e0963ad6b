// The page of a server: a form made from the columns of an input, answers drawn by their shape, and what the model looked
// at, in a sandboxed frame. An answer's elements share `about`: its attention request, input texts and target.

const columns = Object.entries(data.columns), names = Object.keys(data.options);
const generates = names.includes("max_new_tokens"), continues = data.streams && data.family === "decoder";
const chats = data.has_template, pictured = columns.some(([, kind]) => kind === "image");
const LABELS = 5;                  // the likeliest of labels, fills and answers
const MOST_WORDS = 3000;           // of a text, as buttons; a longer one is shown as it is

const state = { running: null, talk: [], gone: 0, leftOut: 0, image: null, pages: new Map() };  // gone: messages that the model no longer reads; leftOut: those of the last request
const fields = new Map();          // name → its text field
const spaced = (name) => name.replaceAll("_", " ");

// ---- the form ----

function addField(name, label, rows = 3) {
  const field = make("textarea");
  field.name = name; field.rows = rows;
  field.setAttribute("aria-label", label);
  const whole = make("label", "", label, field);
  fields.set(name, field);
  return whole;
}

function addDrop() {
  const input = make("input"), box = make("label", "drop", make("span", "", "Drop an image here, or choose a file."), input);
  input.type = "file"; input.accept = "image/*";
  input.setAttribute("aria-label", "image");
  input.addEventListener("change", () => input.files[0] && readImage(input.files[0]));
  for (const name of ["dragover", "dragenter"]) box.addEventListener(name, (event) => { event.preventDefault(); box.classList.add("over"); });
  box.addEventListener("dragleave", () => box.classList.remove("over"));
  box.addEventListener("drop", (event) => { event.preventDefault(); box.classList.remove("over"); if (event.dataTransfer.files[0]) readImage(event.dataTransfer.files[0]); });
  return box;
}

async function readImage(file) {   // reads and shows an image
  const address = await new Promise((done) => { const reader = new FileReader(); reader.onload = () => done(reader.result); reader.readAsDataURL(file); });
  state.image = { name: file.name, code: address.slice(address.indexOf(",") + 1), address };
  find(".drop span").replaceChildren(picture(), make("br"), file.name);
}

function picture() {               // the chosen image
  const image = make("img");
  image.src = state.image.address; image.alt = state.image.name;
  return image;
}

function buildForm() {
  const box = find(".fields"), more = find(".options");
  if (chats) {
    box.append(addField("message", "message", 2));
    more.append(addField("system", "system message", 1));
  } else if (pictured) box.append(addDrop());
  else if (data.embeds) box.append(addField("first", "text", 2), addField("second", "text to compare with (optional)", 2));
  else for (const [name, kind] of columns) box.append(addField(name, spaced(name) + (kind.endsWith("?") ? " (optional)" : ""), columns.length > 1 && name === columns[0][0] ? 2 : 4));
  more.append(...names.map((name) => {
    const input = make("input"), label = make("label", "", make("b", "", spaced(name)), data.options[name], input);
    input.type = "text"; input.name = name;
    return label;
  }));
  find(".more").hidden = !more.children.length;
  find(".go").textContent = chats ? "send" : generates ? "generate" : "predict";
  find(".new").hidden = !chats;
  find(".stop").hidden = !generates;
  fields.values().next().value?.focus();
}

// ---- examples ----

function examples() {              // {name, fill}: the name of a button, and what fills the form
  if (pictured) return [{ name: "a drawn disc", fill: () => readImage(drawnDisc()) }];
  const [first, second] = data.examples.map((example) => Object.values(example));
  if (data.embeds) return second ? [{ name: `${first[0]} / ${second[0]}`, texts: { first: first[0], second: second[0] } }] : [];
  return data.examples.map((example) => ({ name: Object.values(example).join(" / "), texts: chats ? { message: Object.values(example)[0] } : example }));
}

function drawnDisc() {             // an image file, for models whose folder has none
  const canvas = make("canvas"), pen = Object.assign(canvas, { width: 96, height: 96 }).getContext("2d");
  pen.fillStyle = "#8fb8de"; pen.fillRect(0, 0, 96, 96);
  pen.fillStyle = "#e0563b"; pen.beginPath(); pen.arc(48, 48, 28, 0, 7); pen.fill();
  const bytes = atob(canvas.toDataURL("image/png").split(",")[1]);
  return new File([Uint8Array.from(bytes, (letter) => letter.charCodeAt(0))], "disc.png", { type: "image/png" });
}

function buildExamples() {
  const all = examples();
  find(".examples").hidden = !all.length;
  find(".examples").append(...all.map(({ name, texts, fill }) => {
    const button = make("button", "", name);
    button.type = "button";
    button.title = name;
    button.addEventListener("click", async () => {
      if (state.running) return;
      await fill?.();
      for (const [field, text] of Object.entries(texts ?? {})) fields.get(field).value = text;
      send();
    });
    return button;
  }));
}

const written = (name) => fields.get(name).value;

function chosen() {                // the options that are filled in
  const given = {};
  for (const input of find(".options").querySelectorAll("input")) {
    const text = input.value.trim();
    if (!text) continue;
    if (input.name === "stop_strings") given[input.name] = [input.value];
    else try { given[input.name] = JSON.parse(text); } catch { given[input.name] = text; }
  }
  return given;
}

// ---- requests ----

function inputs() {                // the input as the server takes it, and its texts by name
  if (pictured) {
    if (!state.image) throw new Error("choose an image first");
    return { input: state.image.code, texts: [] };
  }
  const filled = [...fields].filter(([name, field]) => name !== "system" && field.value.trim()).map(([name, field]) => [name, field.value]);
  const required = chats ? ["message"] : data.embeds ? ["first"] : columns.filter(([, kind]) => !kind.endsWith("?")).map(([name]) => name);
  const missing = required.find((name) => !filled.some(([other]) => other === name));
  if (missing) { fields.get(missing).focus(); throw new Error(`${spaced(missing)} is empty; write something in it`); }
  return { input: filled.length > 1 && !data.embeds ? Object.fromEntries(filled) : filled[0][1], texts: filled.map(([, text]) => text) };
}

function requestOf({ input, texts }) {           // where to, and the body
  const options = chosen();
  if (chats) {
    const system = written("system").trim() ? [{ role: "system", content: written("system") }] : [];
    return ["/v1/chat/completions", { messages: [...system, ...state.talk, { role: "user", content: input }], stream: true, truncation: "auto", ...options }];
  }
  if (continues) return ["/v1/completions", { prompt: input, stream: true, ...options }];
  if (!generates && names.includes("top_k")) options.top_k ??= LABELS;
  return ["/predict", { inputs: data.embeds ? texts : input, ...(Object.keys(options).length ? { options } : {}) }];
}

async function post(path, body, signal) {        // raises the server's own line
  let response;
  try {
    response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  } catch (error) {
    throw signal?.aborted ? error : new Error("no connection to the server; it may have ended");
  }
  if (response.ok) return response;
  let details = null;
  try { details = (await response.json()).error; } catch { /* not the server's own answer */ }
  throw Object.assign(new Error(details?.message ?? `the server answers ${response.status}`), { code: details?.code });
}

async function* pieces(response) { // of a stream of server-sent events
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the answer ended early; send it again");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      state.leftOut = event.heedful?.left_out ?? 0;
      for (const choice of event.choices) yield choice.text ?? choice.delta.content ?? "";
    }
  }
}

function paintCurl(path, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`, to = `${location.origin}${path}`;
  const token = data.has_token ? ' -H "Authorization: Bearer $TOKEN"' : "", head = `curl -sN ${to}${token} -H 'Content-Type: application/json'`;
  const whole = JSON.stringify(body), named = quoted(state.image?.name ?? ""), [before, after] = pictured ? whole.split(state.image.code) : [];
  find(".sent code").textContent = pictured ? `{ printf %s ${quoted(before)}; base64 < ${named} | tr -d '\\n'; printf %s ${quoted(after)}; } | ${head} -d @-` : `${head} -d ${quoted(whole)}`;
  find(".copied").textContent = "";
  find(".sent").hidden = false;
}

// ---- words that open their attention ----

const segmenter = "Segmenter" in Intl ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;
const segments = (text) => (segmenter ? [...segmenter.segment(text)].map(({ segment, index }) => [segment, index]) : [...text.matchAll(/\s+|\S+/g)].map((match) => [match[0], match.index]));

function clickable(text, onChoose, marks = [], box = make("p", "text")) {  // a text whose words call onChoose(word, offset); marks: [start, end, label]
  const parts = segments(text), few = parts.length <= MOST_WORDS;
  let marked = null, whole = null;           // a word and the signs after it stay in one line
  for (const [word, at] of few ? parts : [[text, 0]]) {
    const mark = marks.find(([start, end]) => at < end && at + word.length > start);
    if (mark && marked?.of !== mark) { marked = { of: mark, box: make("mark") }; box.append(marked.box); }
    const inside = few && word.trim() ? make("button", "word", word) : word;
    if (inside !== word) {
      inside.type = "button"; inside.tabIndex = -1;
      inside.addEventListener("click", () => { for (const other of document.querySelectorAll(".word.chosen")) other.classList.remove("chosen"); inside.classList.add("chosen"); onChoose(word, at); });
    }
    const place = mark ? marked.box : box;
    if (inside === word) { whole = null; place.append(word); }
    else if (whole?.parentNode === place && /^[\p{P}\p{S}]+$/u.test(word)) whole.append(inside);
    else place.append((whole = make("span", "whole", inside)));
    if (mark && mark[2] && at + word.length >= mark[1]) marked.box.append(make("small", "", mark[2]));
  }
  const words = [...box.querySelectorAll(".word")];
  if (words.length) words[0].tabIndex = 0;
  box.addEventListener("keydown", (event) => {             // one stop of the Tab key; arrows go from word to word
    const next = words.indexOf(event.target) + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? NaN);
    if (!words[next]) return;
    event.preventDefault();
    event.target.tabIndex = -1; words[next].tabIndex = 0;
    words[next].focus();
  });
  return box;
}

// ---- attention ----

const bare = (text) => text.replaceAll("⁇", "").normalize("NFKD").replace(/[\p{M}\s␣▁]/gu, "").toLowerCase();

function placeOf(tokens, texts, which, offset, word) {     // the token at an offset of one of the texts, which follow one another in the tokens, most often in their order
  const ends = [];
  let whole = "", from = 0;
  for (const token of tokens) { whole += bare(token); ends.push(whole.length); }
  for (const [i, text] of texts.entries()) {
    const after = whole.indexOf(bare(text), from), at = after < 0 ? whole.indexOf(bare(text)) : after;
    if (i === which) {
      const start = at < 0 ? whole.indexOf(bare(word), from) : at + bare(text.slice(0, offset)).length;
      return start < 0 ? -1 : ends.findIndex((end) => end > start);
    }
    if (at >= 0) from = Math.max(from, at + bare(text).length);
  }
  return -1;
}

async function addressOf({ request, texts, target }, which, offset, word) {      // the view of a word, and its place in it
  if (pictured) {                  // the page of a written text has its words
    const { words } = await pageOf(request), place = target === undefined ? -1 : placeOf(words, [target], 0, offset, word);
    return [request, place < 0 ? "" : `#word=${place}`];
  }
  const small = await (await post("/v1/attention", { ...request, view: "heads", layers: [0], heads: [0], queries: "0:1", keys: "0:1" })).json();
  const [first] = small.maps, crosses = data.family === "encoder-decoder" && target !== undefined;
  if (which < texts.length) {
    const place = placeOf(crosses ? first.keys : first.queries, texts, which, offset, word);
    const group = crosses ? "group=encoder+self-attention&" : "";
    return [{ ...request, view: "heads" }, place < 0 ? "" : `#${group}token=${place}`];
  }
  const whole = crosses ? [target] : [...texts, target], last = whole.length - 1;
  const begin = crosses ? 0 : placeOf(first.queries, whole, last, 0, target), step = placeOf(first.queries, whole, last, offset, word) - begin;
  return [{ ...request, view: "steps" }, step >= 0 ? `#step=${step}` : ""];
}

async function showAttention(about, which, offset, word) {
  const section = find(".look"), frame = find("iframe"), pending = (state.pending = {});
  state.from = document.activeElement;
  section.hidden = false;
  find(".look h2").textContent = !word ? "what the model looked at" : which < about.texts.length ? `what “${word}” attends to` : `what the model looked at before it wrote “${word}”`;
  section.setAttribute("aria-busy", "true");
  showError("");
  try {
    const [request, hash] = await addressOf(about, which, offset, word);
    let page;
    try { page = await pageOf(request); }
    catch (error) {                // a long text has too many steps for a page: its attention has a window
      if (request.view !== "steps") throw error;
      page = await pageOf({ ...request, view: "heads" });
    }
    if (pending !== state.pending) return;
    frame.src = page.address + hash;
    section.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (pending !== state.pending) return;       // another word was chosen, or the section closed
    close(); showError(error.message);
  }
  section.setAttribute("aria-busy", "false");
}

async function pageOf(request) {   // its address, of this page's own, and its words below images
  const key = JSON.stringify(request);
  if (!state.pages.has(key)) {
    const html = await (await post("/v1/attention", { ...request, format: "html" })).text();
    const captions = pictured ? new DOMParser().parseFromString(allowed(html), "text/html").querySelectorAll("figcaption") : [];
    const address = framed(html, [...state.pages.values()][0]?.address);
    state.pages = new Map([[key, { address, words: [...captions].map(({ textContent }) => textContent) }]]);
  }
  return state.pages.get(key);
}

function close() {
  find(".look").hidden = true;
  state.pending = null;
  for (const word of document.querySelectorAll(".word.chosen")) word.classList.remove("chosen");
}

// ---- answers, drawn by their shape ----

const heading = (text) => make("h2", "", text);
const card = (...inside) => make("div", "card", ...inside);
const isList = (value) => Array.isArray(value);

function bars(rows) {
  const list = make("ul", "bars");
  fillBars(list, rows.map(({ label, answer, score }, i) => ({ name: (label === "" ? "␣" : label) || answer || "(no answer)", share: score, kind: i ? "" : "chosen" })));
  return list;
}

function offsets(text, start, end) {             // of characters of Python, in those of this language
  const letters = [...text];
  return [letters.slice(0, start).join("").length, letters.slice(0, end).join("").length];
}

function passage(about, which, spans) {          // a text of the input with its words, and spans marked
  const text = about.texts[which], marks = spans.map(({ start, end, label, score }) => [...offsets(text, start, end), label ? `${label} ${percent(score)} %` : ""]);
  return clickable(text, (word, offset) => showAttention(about, which, offset, word), marks);
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

function drawn(about, output) {    // the elements of an answer that is not streamed
  const given = () => about.texts.map((_, i) => passage(about, i, []));
  if (typeof output === "string" && generates) return [sideBySide(about, output)];
  if (typeof output === "number") return [make("p", "number", String(Number(output.toPrecision(4)))), card(...given())];
  if (typeof output === "string") return [card(make("p", "number", output)), card(...given())];
  if (output === null) return [card("(no answer)")];
  if (!isList(output)) return drawn(about, [output]);
  if (output.length && typeof output[0] === "string") return drawn(about, output.join(", "));
  if (output.every((one) => "start" in one)) {
    const last = about.texts.length - 1, answers = output.length > 0 && "answer" in output[0], spans = answers ? output.slice(0, 1) : output;
    const texts = about.texts.map((_, i) => card(...(answers ? [heading(spaced(columns[i][0]))] : []), passage(about, i, i === last ? spans : [])));
    return [...texts, ...(answers ? [card(heading("answers"), bars(output))] : output.length ? [] : [make("p", "quiet", "nothing is marked in this text")])];
  }
  if (isList(output[0])) return [...output.map((fills, i) => card(heading(`mask ${i + 1}`), bars(fills))), card(...given())];
  return [card(bars(output)), ...(pictured ? [seen(about)] : [card(...given())])];
}

function sideBySide(about, output) { // a generated text beside what it was made from, but for optional columns, such as a language
  about.target = about.request.target = output;
  const target = output ? clickable(output, (word, offset) => showAttention(about, about.texts.length, offset, word)) : make("p", "quiet", "(empty)");
  const given = columns.filter(([, kind]) => !kind.endsWith("?")).map(([name], i) => card(heading(spaced(name)), pictured ? picture() : passage(about, i, [])));
  return make("div", "sides", ...given, card(heading("output"), target));
}

function seen(about) {
  const button = make("button", "", "what the model looked at");
  button.type = "button";
  button.addEventListener("click", () => showAttention(about, 0, 0, ""));
  return card(picture(), make("div", "tools", button));
}

function vectors(about, output) {
  const [first, second] = output.map((one) => one.output), texts = about.texts.map((text, i) => {
    const own = { request: { input: text }, texts: [text] };
    return card(heading(i ? "text to compare with" : "text"), passage(own, 0, []));
  });
  const sides = make("div", "sides", ...texts);
  if (!second) return [card(heading(`a vector of ${first.length} numbers`), make("p", "quiet", `${first.slice(0, 6).map((value) => value.toFixed(3)).join(", ")}, …`)), sides];
  const share = cosine(first, second);
  const list = make("ul", "bars");
  fillBars(list, [{ name: "similarity", share: Math.max(0, share), kind: "chosen", said: share.toFixed(3) }]);
  return [card(heading("cosine of their vectors"), list), sides];
}

// ---- sending ----

function showError(text) { const line = find(".error"); line.textContent = text; line.hidden = !text; }

function turn(kind, inside) {
  const item = make("li", `card ${kind}`, inside);
  find(".talk").append(item); find(".talk").hidden = false;
  return item;
}

async function streamed(path, body, signal, line) {        // the text, written into an element as it comes
  let text = "";
  line.classList.add("caret");
  try {
    for await (const piece of pieces(await post(path, body, signal))) { text += piece; line.lastChild.appendData?.(piece); }
  } catch (error) {
    if (!signal.aborted) { line.classList.remove("caret"); throw Object.assign(error, { text }); }
  }
  line.classList.remove("caret");
  return text;
}

async function converse(given, path, body, signal) {
  const user = turn("user", make("p", "text", given.input)), line = make("p", "text", ""), answer = turn("assistant", line);
  line.append(document.createTextNode(""));
  fields.get("message").value = "";
  state.leftOut = 0;
  let text;
  try { text = await streamed(path, body, signal, line); }
  catch (error) { text = error.text; showError(error.message); }
  if (!text) {                     // no text came: the message goes back to its field
    answer.remove(); user.remove();
    find(".talk").hidden = !state.talk.length;
    fields.get("message").value = given.input;
    return;
  }
  state.talk.push({ role: "user", content: given.input }, { role: "assistant", content: text });
  state.talk.splice(0, state.leftOut);
  showGone(state.gone + state.leftOut);
  const first = body.messages.findIndex(({ role }) => role === "user");
  const read = body.messages.filter((_, i) => i < first || i >= first + state.leftOut);
  const about = { request: { messages: read, target: text }, texts: read.map(({ content }) => content), target: text };
  user.replaceChildren(clickable(given.input, (word, offset) => showAttention(about, about.texts.length - 1, offset, word)));
  answer.replaceChildren(clickable(text, (word, offset) => showAttention(about, about.texts.length, offset, word)));
}

function showGone(count) {         // how many messages of the conversation the model no longer reads
  const line = find(".left-out");
  state.gone = count;
  line.textContent = `The model no longer reads the first ${count} messages: the conversation is longer than its context.`;
  line.hidden = !count;
}

async function continueText(given, path, body, signal, result) {   // the prompt, and its continuation as it comes
  const line = make("p", "text", make("span", "given", given.input));
  line.append(document.createTextNode(""));
  result.replaceChildren(card(line));
  const text = await streamed(path, body, signal, line), about = { request: { input: given.input }, texts: [given.input] };
  if (text) about.target = about.request.target = text;
  line.replaceChildren(
    clickable(given.input, (word, offset) => showAttention(about, 0, offset, word), [], make("span", "given")),
    clickable(text, (word, offset) => showAttention(about, 1, offset, word), [], make("span")),
  );
}

async function send(event) {
  event?.preventDefault();
  if (state.running) return;
  showError(""); close();
  let given;
  try { given = inputs(); } catch (error) { showError(error.message); return; }
  const [path, body] = requestOf(given), result = find(".result"), start = performance.now();
  const controller = (state.running = new AbortController()), { signal } = controller;
  busy(true);
  paintCurl(path, body);
  find(".answer").hidden = chats;
  try {
    if (chats) await converse(given, path, body, signal);
    else if (continues) await continueText(given, path, body, signal, result);
    else {
      result.replaceChildren();
      const answer = await (await post(path, body, signal)).json(), about = { request: { input: given.input }, texts: given.texts };
      result.replaceChildren(...(data.embeds ? vectors(about, answer) : drawn(about, answer.output)));
    }
    find(".busy").textContent = `${signal.aborted ? "stopped after " : ""}${duration(performance.now() - start)}`;
  } catch (error) {
    find(".busy").textContent = signal.aborted ? "stopped" : "";
    if (!signal.aborted) showError(error.message);
    if (!continues) find(".answer").hidden = true;
  }
  state.running = null;
  busy(false);
}

const duration = (ms) => (ms < 950 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function busy(now) {
  find(".go").disabled = now; find(".stop").disabled = !now;
  if (now) find(".busy").textContent = "…";
}

find(".ask").addEventListener("submit", send);
find(".ask").addEventListener("keydown", (event) => {
  const plain = chats && event.target === fields.get("message") && !event.shiftKey && !event.isComposing;
  if (event.key === "Enter" && event.target.matches("textarea") && (event.ctrlKey || event.metaKey || plain)) send(event);
});
find(".stop").addEventListener("click", () => state.running?.abort());
find(".new").addEventListener("click", () => {
  state.running?.abort();
  state.talk = []; find(".talk").replaceChildren(); find(".talk").hidden = true; showGone(0);
  showError(""); close(); fields.get("message").focus();
});
find(".close").addEventListener("click", () => { close(); state.from?.focus(); });
find(".copy").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(find(".sent code").textContent); find(".copied").textContent = "copied"; }
  catch { getSelection().selectAllChildren(find(".sent code")); find(".copied").textContent = "selected: copy it with Ctrl C"; }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (state.running) state.running.abort();
  else if (!find(".look").hidden) find(".close").click();
});
buildForm(); buildExamples();
