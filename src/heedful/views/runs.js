// The page of runs: `runs` by their id, updated from each response of the server, which ends in `paint`.

const runs = new Map();            // number → the data of the run, with its curves
const rows = new Map();            // number → {row, cells}
const chosen = new Set(asked().has("runs") ? list(asked().get("runs")) : []);     // by name: numbers are the server's own
const state = { log: asked().get("scale"), metric: asked().get("metric") ?? "loss", over: asked().get("over") === "time" ? "time" : "step", step: null, at: "", only: "" };     // step: of the keys, on the chart of the task `at`
const LEGEND = 24, COLOURS = 8;
const NAMES = { loss: "loss", rate: "learning rate", lr: "learning rate" };
let version = "", late = null;

function list(text) {              // of names, from an address
  try { const found = JSON.parse(text); return Array.isArray(found) ? found.map(String) : []; } catch { return []; }
}

// ---- texts ----

const number = (value) => (value === null || value === undefined ? "" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4))));
const rounded = (value) => Math.round(value).toLocaleString("en");

function time(seconds) {           // "3 s", "12 min", "2 h 5 min", "3 days 2 h"
  const minutes = Math.round(seconds / 60);
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} days ${Math.floor((minutes % 1440) / 60)} h`;
}

const COLUMNS = {
  run: null,
  state: (run) => [make("span", `state ${run.state}`, run.state), ...(run.reason ? [make("span", "reason", run.reason)] : [])],
  task: (run) => [run.task ?? ""],
  model: (run) => [run.model ?? ""],
  step: (run) => {
    if (run.share === null || run.state === "done") return [rounded(run.step)];
    const bar = make("i");
    bar.style.width = `${run.share * 100}%`;
    return [`${rounded(run.step)} (${Math.floor(run.share * 100)} %)`, make("span", "way", bar)];
  },
  time: (run) => [run.seconds_left !== null ? `${time(run.seconds_left)} left` : run.state === "done" && run.seconds !== null ? `took ${time(run.seconds)}` : ""],
  loss: (run) => [number(run.loss)],
  best: (run) => {
    if (!run.best) return [""];
    const [name, unit] = run.best.metric.split(", ");        // "accuracy, %"
    return [`${name} ${number(run.best.value)}${unit ? ` ${unit}` : ""} at step ${rounded(run.best.step)}`];
  },
  verdict: (run) => {
    if (!run.verdict) return [""];
    const [sentence, ...rest] = run.verdict.text.split(": ");
    return [make("span", `verdict ${run.verdict.useful ? "useful" : "useless"}`, sentence), make("span", "reason", rest.join(": "))];
  },
  speed: (run) => [run.speed !== null ? `${rounded(run.speed)} ${run.unit}/s` : ""],
  ceiling: (run) => [run.ceiling !== null ? `${percent(run.ceiling)} %` : ""],
  pages: (run) => [...run.pages.map((name) => {
    const link = make("a", "", name);
    link.href = `run/${run.id}/${encodeURIComponent(name)}`;
    link.target = "_blank"; link.rel = "noopener";
    return link;
  }), ...(run.saved === null ? [] : [opener(run)])],
};

const TERMS = {                    // what the columns mean
  state: "running: its log grows; done: it has reached its last step; stopped: its log has not grown for a while; unreadable: a file is damaged",
  step: "updates of the weights so far, and their share of the planned ones",
  time: "of a running run the estimated time left, of one that is done the time that it took",
  loss: "the last training loss; losses of different tasks cannot be compared",
  best: "the best score of the metric that chooses the saved weights, on the validation examples",
  verdict: "whether the model is better than a simple method, on the validation examples",
  speed: "of the training, in what the task counts",
  ceiling: "the training's speed as a share of the highest speed of matrix products that was measured on this machine",
  pages: "figures and pages that the run has written",
};

// ---- selection ----

const SHAPES = [                   // corners of a mark around (0, 0); the first is a circle
  null, [[-1, -1], [1, -1], [1, 1], [-1, 1]], [[0, -1.3], [1.2, 1], [-1.2, 1]], [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]], [[0, 1.3], [1.2, -1], [-1.2, -1]],
  [[-0.4, -1.4], [0.4, -1.4], [0.4, -0.4], [1.4, -0.4], [1.4, 0.4], [0.4, 0.4], [0.4, 1.4], [-0.4, 1.4], [-0.4, 0.4], [-1.4, 0.4], [-1.4, -0.4], [-0.4, -0.4]],
  [[-1.4, -0.8], [-0.8, -1.4], [0, -0.6], [0.8, -1.4], [1.4, -0.8], [0.6, 0], [1.4, 0.8], [0.8, 1.4], [0, 0.6], [-0.8, 1.4], [-1.4, 0.8], [-0.6, 0]],
  [[-0.5, -1.5], [0.5, -1.5], [0.5, 1.5], [-0.5, 1.5]],
];
const LOOKS = COLOURS * SHAPES.length, looks = new Map();        // by name: the number of a colour and a mark

function assignLooks() {           // by a hash of the name (FNV-1a); of two runs with one hash, the one that began later takes the next free
  const waiting = [...runs.values()].filter(({ name }) => !looks.has(name)).sort((a, b) => a.started - b.started || (a.name < b.name ? -1 : 1));
  for (const { name } of waiting) {
    let look = [...new TextEncoder().encode(name)].reduce((hash, byte) => Math.imul(hash ^ byte, 16777619) >>> 0, 2166136261) % LOOKS;
    const taken = new Set(looks.values());
    for (let i = 0; i < LOOKS && taken.has(look); i++) look = (look + COLOURS + 1) % LOOKS;       // another colour and another mark
    looks.set(name, look);
  }
}

const colour = (run) => `--run${looks.get(run.name) % COLOURS}`;
const shape = (run) => Math.floor(looks.get(run.name) / COLOURS);
const matches = (run) => [run.name, run.task ?? "", run.model ?? ""].some((text) => text.toLowerCase().includes(state.only));
const shown = () => [...runs.values()].filter(matches).sort((a, b) => b.started - a.started || a.name.localeCompare(b.name));
const bright = (run) => chosen.size === 0 || chosen.has(run.name);
const anyChosen = (all) => all.some((run) => chosen.has(run.name));

function choose(name) {
  if (!chosen.delete(name)) chosen.add(name);
  keep(); paint();
}

function keep() {
  remember({
    runs: chosen.size ? JSON.stringify([...chosen]) : null, scale: state.log,
    metric: state.metric === "loss" ? null : state.metric, over: state.over === "step" ? null : state.over,
  });
}

function pick(run) {               // the button that chooses a run
  const button = make("button", "pick");
  button.type = "button";
  button.append(sample(run), make("bdi", "", run.name));
  button.addEventListener("click", () => choose(run.name));
  return button;
}

function sample(run) {             // a piece of its line with its mark
  const corners = SHAPES[shape(run)], whole = make("span");
  const mark = corners ? `<polygon points="${corners.map(([x, y]) => `${17.5 + 4 * x},${6 + 4 * y}`).join(" ")}"/>` : '<circle cx="17.5" cy="6" r="4"/>';
  whole.className = "sample";
  whole.innerHTML = `<svg viewBox="0 0 35 12" aria-hidden="true"><line x1="0" x2="35" y1="6" y2="6" stroke-width="2.5"/>${mark}</svg>`;
  whole.firstChild.style.stroke = whole.firstChild.style.fill = `var(${colour(run)})`;
  return whole;
}

// ---- the table ----

function put(cell, parts) {        // only where it says something else: what is read or pointed at stays as it is
  const wanted = make("td", "", ...parts).innerHTML;
  if (cell.innerHTML !== wanted) cell.replaceChildren(...parts);
}

function paintTable(all) {
  const body = find(".runs tbody"), order = all.map((run) => run.id);
  for (const [id, { row }] of rows) if (!runs.has(id)) { row.remove(); rows.delete(id); }
  for (const run of runs.values()) {
    if (!rows.has(run.id)) {
      const row = make("tr"), cells = {};
      for (const name of Object.keys(COLUMNS)) {
        cells[name] = make("td", name === "run" ? "name" : "");
        cells[name].dataset.what = name;
        row.append(cells[name]);
      }
      cells.run.append(pick(run));
      const after = [...rows.values()].find((other) => other.started < run.started);       // younger ones stand above
      body.insertBefore(row, after?.row ?? null);
      rows.set(run.id, { row, cells, started: run.started });
    }
    const { row, cells } = rows.get(run.id);
    for (const [name, parts] of Object.entries(COLUMNS)) if (parts) put(cells[name], parts(run));
    row.hidden = !order.includes(run.id);
    mark(cells.run.firstChild, run);
  }
}

function mark(button, run) {
  button.setAttribute("aria-pressed", chosen.has(run.name));
  button.classList.toggle("pale", !bright(run));
}

function paintLegend(all) {
  const first = all.filter((run, place) => place < LEGEND || chosen.has(run.name));
  const legend = find(".legend"), more = all.length - first.length, wanted = first.map((run) => run.id).join() + `+${more}`;
  if (legend.dataset.of !== wanted) {
    legend.dataset.of = wanted;
    legend.replaceChildren(...first.map((run) => {
      const item = make("li", "", pick(run));
      item.dataset.id = run.id;
      return item;
    }), ...(more ? [make("li", "", `and ${more} more in the table`)] : []));
  }
  for (const item of legend.querySelectorAll("li[data-id]")) mark(item.firstChild, runs.get(Number(item.dataset.id)));
}

// ---- curves ----

function ticks(low, high, most) {  // round numbers, 1, 2 or 5 times a power of ten apart, that enclose both
  const span = high - low || Math.abs(high) || 1, power = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => span / one <= most + 1e-9);
  const found = [];
  for (let i = Math.floor(low / step + 1e-9); i <= Math.ceil(high / step - 1e-9); i++) found.push(Number((i * step).toPrecision(12)));
  if (found.length < 2) found.push(Number((found[0] + step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const factors = high / low < 1000 ? [1, 2, 5] : [1], marks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) for (const one of factors) marks.push(Number((one * 10 ** power).toPrecision(6)));
  const first = marks.findLastIndex((one) => one <= low * (1 + 1e-9)), last = marks.findIndex((one) => one >= high * (1 - 1e-9));
  return marks.slice(first, Math.max(last, first + 1) + 1);
}

const frames = new Map();          // by task, and "" for the learning rate: how steps and values lie on the chart's canvas
const charts = new Map();          // by task: the section of its chart
const taskOf = (run) => run.task ?? "unknown task";

function chartOf(task) {
  if (!charts.has(task)) {
    const canvas = make("canvas"), section = make("section", "chart loss", make("h2"), canvas);
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${task}: the chosen number against steps or time, one line per run; arrow keys go along the steps, and the line below the charts tells the values.`);
    listen(canvas, task);
    find(".charts").append(section);
    charts.set(task, section);
  }
  return charts.get(task);
}

function paintCharts(all) {        // a chart a task: their losses have different scales
  const kinds = state.metric === "loss" ? { training: [], validation: [7, 4] } : { [state.metric]: [] };
  const isDrawn = (run) => Object.keys(kinds).some((kind) => run.curves?.[kind]?.length);
  const tasks = [...new Set(all.map(taskOf))], drawn = tasks.filter((task) => all.some((run) => taskOf(run) === task && isDrawn(run)));
  const shownTasks = drawn.length ? drawn : tasks.slice(0, 1), name = NAMES[state.metric] ?? state.metric.replaceAll("_", " ");
  for (const task of shownTasks) chartOf(task).querySelector("h2").textContent = `${task}: ${name}`;
  for (const [task, section] of charts) section.hidden = !shownTasks.includes(task);
  for (const task of charts.keys()) frames.delete(task);
  const logs = shownTasks.map((task) => paintChart(task, charts.get(task), all.filter((run) => taskOf(run) === task), kinds, shownTasks.length > 1 ? 220 : 320));
  find(".scale").setAttribute("aria-pressed", logs.some(Boolean));
}

function metrics() {               // what some run has a curve of
  const found = new Set(["loss"]);
  for (const run of runs.values()) for (const [name, points] of Object.entries(run.curves ?? {})) if (points.length && !["training", "validation", "rate", "seconds"].includes(name)) found.add(name);
  return ["loss", ...[...found].filter((name) => name !== "loss").sort()];
}

function paintMetrics() {
  const select = find(".metric"), wanted = metrics();
  if (!wanted.includes(state.metric)) wanted.push(state.metric);       // of the address: its run may be found yet
  if ([...select.options].map((option) => option.value).join("\n") !== wanted.join("\n")) {
    select.replaceChildren(...wanted.map((name) => { const option = make("option", "", NAMES[name] ?? name.replaceAll("_", " ")); option.value = name; return option; }));
  }
  select.value = state.metric;
  find(".over").value = state.over;
  find(".key").hidden = state.metric !== "loss";
}

function moved(run, points) {      // the points of a curve by the axis that is chosen: steps, or hours since the run began
  if (state.over === "step") return points;
  const times = run.curves?.seconds ?? [], found = [];
  let i = 0;
  for (const [step, value] of points) {
    while (i + 1 < times.length && times[i + 1][0] <= step) i++;
    if (!times.length) continue;
    const [a, b] = [times[i], times[i + 1] ?? times[i]];
    const share = b[0] > a[0] ? between(0, (step - a[0]) / (b[0] - a[0]), 1) : 0;
    found.push([(a[1] + share * (b[1] - a[1])) / 60, value, step]);
  }
  return found;
}

function paintChart(name, section, all, kinds, height) {   // kinds: {curve: dash}; true if its scale is logarithmic
  const canvas = section.querySelector("canvas"), width = section.clientWidth, pen = sharp(canvas, width, height);
  const lines = all.flatMap((run) => Object.keys(kinds).map((kind) => ({ run, kind, points: moved(run, run.curves?.[kind] ?? []) }))).filter(({ points }) => points.length);
  frames.delete(name);
  if (!lines.length) {
    pen.font = font(14); pen.fillStyle = ink("quiet"); pen.fillText("no line yet", 8, 24);
    return false;
  }
  let [low, high, last] = [Infinity, -Infinity, 0];
  for (const { points } of lines) for (const [step, value] of points) { low = Math.min(low, value); high = Math.max(high, value); last = Math.max(last, step); }
  const log = name !== "" && low > 0 && (state.log === null ? high > 20 * low : state.log === "log");
  const up = log ? logTicks(low, high) : ticks(low > 0 && (low < 0.4 * high || name === "") ? 0 : low, high, height > 200 ? 6 : 3);
  const unit = log ? Math.log10 : (value) => value, [bottom, top] = [unit(up[0]), unit(up.at(-1))];
  pen.font = font(12);
  const left = Math.ceil(Math.max(...up.map((tick) => pen.measureText(number(tick)).width))) + 12, right = width - 12;
  const floor = height - 24, ceiling = 10, most = last || 1;
  const x = (step) => left + ((right - left) * step) / most, y = (value) => floor - ((floor - ceiling) * (unit(value) - bottom)) / (top - bottom || 1);
  pen.textBaseline = "middle"; pen.lineWidth = 1;
  for (const tick of up) {
    pen.strokeStyle = ink("edge"); pen.fillStyle = ink("quiet"); pen.textAlign = "right";
    pen.beginPath(); pen.moveTo(left, y(tick)); pen.lineTo(right, y(tick)); pen.stroke();
    pen.fillText(number(tick), left - 8, y(tick));
  }
  pen.textAlign = "center"; pen.textBaseline = "alphabetic";
  const across = ticks(0, most, width > 600 ? 6 : 3).filter((tick) => tick <= most), unitName = state.over === "time" ? "minutes" : "steps";
  for (const tick of across.slice(0, -1)) pen.fillText(number(tick), Math.max(left, x(tick)), height - 6);
  const axisEnd = `${number(across.at(-1))} ${unitName}`;        // the unit stands at the last number, where no curve is
  pen.fillText(axisEnd, between(left, x(across.at(-1)), right - pen.measureText(axisEnd).width / 2), height - 6);
  const style = getComputedStyle(document.documentElement), some = anyChosen(all);
  const drawn = some ? [...lines.filter(({ run }) => !chosen.has(run.name)), ...lines.filter(({ run }) => chosen.has(run.name))] : lines;
  pen.lineJoin = "round";
  for (const { run, kind, points } of drawn) {
    const clear = !some || chosen.has(run.name);
    pen.strokeStyle = pen.fillStyle = style.getPropertyValue(colour(run)).trim();
    pen.globalAlpha = clear ? 1 : 0.22; pen.lineWidth = some && clear ? 2.6 : 1.6;
    pen.setLineDash(kinds[kind]);
    pen.beginPath();
    points.forEach(([step, value], i) => (i ? pen.lineTo(x(step), y(value)) : pen.moveTo(x(step), y(value))));
    pen.stroke();
    pen.setLineDash([]);
    const every = Math.max(1, Math.ceil(points.length / (kind === "validation" ? 20 : 6))), first = (looks.get(run.name) * 3) % every;      // marks of neighbours do not hide each other
    points.forEach(([step, value], i) => { if (i % every === first || points.length === 1) drawMark(pen, shape(run), x(step), y(value)); });
  }
  pen.globalAlpha = 1;
  frames.set(name, { x, y, left, right, most, lines });
  if (state.step === null || name !== state.at) return log;
  pen.strokeStyle = ink("text"); pen.lineWidth = 1;
  pen.beginPath(); pen.moveTo(x(state.step), ceiling); pen.lineTo(x(state.step), floor); pen.stroke();
  return log;
}

function drawMark(pen, kind, x, y) {
  pen.beginPath();
  if (SHAPES[kind]) SHAPES[kind].forEach(([dx, dy], i) => (i ? pen.lineTo(x + 3 * dx, y + 3 * dy) : pen.moveTo(x + 3 * dx, y + 3 * dy)));
  else pen.arc(x, y, 3, 0, 7);
  pen.fill();
}

function at(points, step) {        // the value of a curve nearest to a step, null beyond its ends
  if (!points.length || step > points.at(-1)[0] * 1.02) return null;
  return points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best))[1];
}

function paintStatus(all) {
  const status = find(".status"), some = all.filter((run) => bright(run) && taskOf(run) === state.at).slice(0, 5);
  if (state.step === null || !some.length) { status.textContent = ""; return; }
  const each = some.map((run) => {
    const kinds = state.metric === "loss" ? ["training", "validation"] : [state.metric];
    const [training, validation = null] = kinds.map((kind) => at(moved(run, run.curves[kind] ?? []), state.step));
    return training === null ? null : `\u2068${run.name}\u2069 ${number(training)}` + (validation === null ? "" : ` (validation ${number(validation)})`);
  }).filter((one) => one !== null);
  status.textContent = `${state.over === "time" ? `minute ${number(state.step)}` : `step ${rounded(state.step)}`}: ${each.join(", ") || "no value"}`;
}

function nearest(event, task) {    // the point of a curve that is pointed at
  const frame = frames.get(task), box = event.target.getBoundingClientRect();
  if (!frame) return null;
  let found = null, least = 24 ** 2;
  for (const { run, kind, points } of frame.lines) for (const [step, value, of = step] of points) {
    const far = (frame.x(step) - event.clientX + box.left) ** 2 + (frame.y(value) - event.clientY + box.top) ** 2;
    if (far < least) [found, least] = [{ run, kind, step: of, value }, far];
  }
  return found;
}

// ---- what a run's model looks at ----

const seen = { run: null, saved: null, example: 0, view: "", address: "", pending: null };      // run: its number, saved: the time of the weights that are shown

function opener(run) {
  const button = make("button", "opener", "what it looks at");
  button.type = "button";
  button.addEventListener("click", () => { Object.assign(seen, { run: run.id, example: 0, view: "" }); showLook(); find(".look").scrollIntoView({ block: "nearest" }); });
  return button;
}

async function showLook() {        // asks for the view, and shows it or the server's one line
  const run = runs.get(seen.run), pending = (seen.pending = {}), status = find(".look .busy");
  seen.saved = run.saved;
  find(".look").hidden = false;
  find(".look h2").textContent = `what \u2068${run.name}\u2069 looks at`;
  find(".look").setAttribute("aria-busy", "true");
  status.textContent = "the model is read …";
  let answer;
  try { answer = await (await fetch(`run/${run.id}/attention?${new URLSearchParams({ example: seen.example, view: seen.view })}`)).json(); }
  catch { answer = { error: "no connection to heedful watch, or the run has no weights any more" }; }
  if (pending !== seen.pending) return;          // another was asked for, or it was closed
  find(".look").setAttribute("aria-busy", "false");
  status.textContent = answer.error ?? `validation example ${answer.example + 1} of ${answer.examples}, weights of ${new Date(run.saved).toLocaleTimeString()}`;
  find("iframe").hidden = Boolean(answer.error);
  if (answer.error) return;
  seen.example = answer.example; seen.view = answer.view;
  fillSelect(find(".look .view"), answer.views, answer.views);
  find(".look .view").value = answer.view;
  find("iframe").src = seen.address = framed(answer.page, seen.address);
}

function closeLook() { seen.run = seen.pending = null; find(".look").hidden = true; }

function followLook() {            // newer weights are shown, but not where nobody looks
  if (seen.run === null || document.hidden) return;
  const run = runs.get(seen.run);
  if (!run || run.saved === null) closeLook();
  else if (run.saved !== seen.saved) showLook();
}

find(".look .view").addEventListener("change", (event) => { seen.view = event.target.value; showLook(); });
find(".look .another").addEventListener("click", () => { seen.example += 1; showLook(); });
find(".look .close").addEventListener("click", closeLook);

// ---- painting and updates ----

function paint() {
  if (!version) return;              // no answer yet
  const all = shown();
  find(".none").hidden = runs.size > 0;
  find(".some").hidden = runs.size === 0;
  const running = [...runs.values()].filter((run) => run.state === "running").length;
  find(".count").textContent = runs.size ? `${runs.size} ${runs.size === 1 ? "run" : "runs"}, ${running} running` : "";
  document.title = running ? `${running} running: Runs` : "Runs";
  find(".clear").disabled = !chosen.size;
  if (!runs.size) return;
  assignLooks();
  paintTable(all); paintLegend(all); paintMetrics(); paintStatus(all); paintCharts(all);
  paintChart("", find(".rate"), all, { rate: [] }, 110);
}

function take(answer) {
  const there = new Set(answer.runs.map((run) => run.id));
  if (answer.version.split("-")[0] !== version.split("-")[0]) {       // another server: its numbers are of other runs
    runs.clear();
    for (const { row } of rows.values()) row.remove();
    rows.clear();
    closeLook();
  }
  for (const id of runs.keys()) if (!there.has(id)) runs.delete(id);
  for (const run of answer.runs) runs.set(run.id, { ...run, curves: run.curves ?? runs.get(run.id)?.curves ?? {} });
  version = answer.version;
  paint(); followLook();
}

async function look() {
  clearTimeout(late);
  let answer = null;
  try { answer = await (await fetch(`runs.json?version=${encodeURIComponent(version)}`)).json(); } catch { /* reported below */ }
  find(".fresh").textContent = answer ? "" : "No connection: heedful watch has ended or is unreachable. Retrying.";
  clearTimeout(late);              // two may have been under way
  late = setTimeout(look, data.every * 1000);
  if (answer) take(answer);
}

function listen(canvas, task) {    // the pointer and the keys on a chart
  canvas.addEventListener("pointermove", (event) => {
    const point = nearest(event, task);
    showTip(event, point ? `${point.run.name}: ${point.kind.replaceAll("_", " ")} ${number(point.value)} at step ${rounded(point.step)}` : "");
  });
  canvas.addEventListener("pointerleave", (event) => showTip(event, ""));
  canvas.addEventListener("click", (event) => { const point = nearest(event, task); if (point) choose(point.run.name); });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], frame = frames.get(task);
    if (!by || !frame || typing(event)) return;
    event.preventDefault();
    const steps = [...new Set(frame.lines.filter(({ run }) => bright(run)).flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
    if (!steps.length) return;
    const now = (state.at === task ? state.step : null) ?? (by > 0 ? -1 : Infinity);
    state.at = task;
    state.step = by > 0 ? steps.find((step) => step > now) ?? steps.at(-1) : steps.findLast((step) => step < now) ?? steps[0];
    paint();
  });
}

find(".runs thead tr").append(...Object.keys(COLUMNS).map((name) => {
  const word = make(name in TERMS ? "abbr" : "span", "", name);
  word.title = TERMS[name] ?? "";
  return make("th", "", word);
}));
find(".terms").append(...Object.keys(COLUMNS).filter((name) => name in TERMS).flatMap((name) => [make("dt", "", name), make("dd", "", TERMS[name])]));
find(".scale").addEventListener("click", () => { state.log = find(".scale").getAttribute("aria-pressed") === "true" ? "linear" : "log"; keep(); paint(); });
find(".clear").addEventListener("click", () => { chosen.clear(); keep(); paint(); });
find(".metric").addEventListener("change", (event) => { state.metric = event.target.value; state.step = null; keep(); paint(); });
find(".over").addEventListener("change", (event) => { state.over = event.target.value; state.step = null; keep(); paint(); });
find(".only").addEventListener("input", (event) => { state.only = event.target.value.trim().toLowerCase(); paint(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (event.target.matches("input")) { event.target.value = ""; state.only = ""; event.target.blur(); }
    chosen.clear(); state.step = null; keep(); paint();
    return;
  }
  if (typing(event)) return;
  if (event.key === "/") { event.preventDefault(); find(".only").focus(); }
  if (event.key === "x") find(".scale").click();
});
window.addEventListener("hashchange", () => {
  chosen.clear();
  for (const name of asked().has("runs") ? list(asked().get("runs")) : []) chosen.add(name);
  state.log = asked().get("scale");
  state.metric = asked().get("metric") ?? "loss";
  state.over = asked().get("over") === "time" ? "time" : "step";
  paint();
});
window.addEventListener("resize", paint);
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); paint(); });

readColours(); look();
