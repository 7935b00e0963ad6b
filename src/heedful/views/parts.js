"use strict";
// Shared functions of all interactive pages: elements, numbers and colours, drawing, lists of bars, the sheet of layers and
// heads, and the address that keeps the view. A page's own script follows in the same element.

const find = (query) => document.querySelector(query);
const data = JSON.parse(find("#data").textContent);

function make(tag, kind = "", ...inside) {       // an element of a class; strings inside become text, never markup
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.append(...inside);
  return element;
}

function named(piece) {            // a piece of text; the space before a word is seen, faintly
  const name = make("bdi");
  if (piece.length > 1 && piece.startsWith("␣")) name.append(make("span", "gap", "␣"), piece.slice(1));
  else name.append(piece);
  return name;
}

const spoken = (piece) => `“\u2068${piece.replace(/^␣(?=.)/, "")}\u2069”`;   // a piece within a sentence

// ---- numbers ----

const decoded = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const percent = (p) => (p >= 0.0995 ? `${Math.round(p * 100)}` : p >= 0.00095 ? (p * 100).toFixed(1) : p > 0 ? "<0.1" : "0");
const kept16 = (code) => Math.max(code, 0.5) / 65535;   // a probability in 16 bits; the least of them is small, not none
const between = (low, value, high) => Math.max(low, Math.min(high, value));
const turned = (at, by, from, size) => from + ((at - from + by + size) % size);
const strongest = (values, count, least) =>      // the places of the largest values
  [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count).filter((i) => values[i] >= least);

// ---- colours ----

let colours;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1), long = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
    return [0, 2, 4].map((at) => parseInt(long.slice(at, at + 2), 16));
  };
  colours = Object.fromEntries(["ground", "chip", "text", "quiet", "edge", "accent", "on-accent"].map((name) => [name, rgb(`--${name}`)]));
  colours.flip = Number(style.getPropertyValue("--flip"));
}
const ink = (name, alpha = 1) => `rgba(${colours[name].join(",")},${alpha})`;
const shade = (share) => `rgb(${colours.chip.map((c, i) => Math.round(c + share * (colours.accent[i] - c))).join(",")})`;

function sharp(canvas, width, height) {          // a canvas of so many CSS pixels, in the screen's own pixels
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

// ---- drawing ----

const SLOPE = Math.PI / 4;         // of the names of columns
const font = (size) => `${size}px system-ui, 'Noto Sans', sans-serif`;

function shadedPixels(canvas, wide, high, share) {         // a pixel each, from the colour of nothing to that of all
  canvas.width = wide; canvas.height = high;
  const pen = canvas.getContext("2d"), image = pen.createImageData(wide, high);
  for (let i = 0; i < wide * high; i++) {
    const s = share(i);
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours.chip[c] + s * (colours.accent[c] - colours.chip[c]);
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

function clipped(pen, name) {
  if (pen.measureText(name).width <= 150) return name;
  const letters = [...name.replace(/…$/, "")];
  while (letters.length > 1 && pen.measureText(`${letters.join("")}…`).width > 150) letters.pop();
  return `${letters.join("")}…`;
}

function namesOf(canvas, rows, columns) {        // of a heat map, with the room they take: left, above, and beyond the last column
  const pen = canvas.getContext("2d");
  pen.font = font(13);
  const [down, along] = [rows, columns].map((names) => names.map((name) => clipped(pen, name))), width = (name) => pen.measureText(name).width;
  const widest = (names) => names.reduce((most, name) => Math.max(most, width(name)), 0);
  return { down, along, left: Math.ceil(widest(down)) + 10, rise: Math.ceil(widest(along) * Math.sin(SLOPE)) + 16, lean: Math.ceil(width(along.at(-1) ?? "") * Math.cos(SLOPE)) + 8 };
}

function paintNames(pen, { down, along }, { left, top, wide, high }, size = 13) {        // the columns' turned
  pen.font = font(size); pen.fillStyle = ink("text"); pen.textBaseline = "middle"; pen.textAlign = "right";
  down.forEach((name, t) => pen.fillText(name, left - 8, top + (t + 0.5) * high));
  pen.textAlign = "left";
  along.forEach((name, s) => {
    pen.save();
    pen.translate(left + (s + 0.5) * wide, top - 6);
    pen.rotate(-SLOPE);
    pen.fillText(name, 0, 0);
    pen.restore();
  });
}

function outlined(pen, x, y, wide, high, dash = []) {      // seen on any ground: a light line on a dark one
  pen.setLineDash(dash);
  for (const [colour, width] of [["#000", 5], ["#fff", 2]]) {
    pen.strokeStyle = colour; pen.lineWidth = width;
    pen.strokeRect(x + 1, y + 1, wide - 2, high - 2);
  }
  pen.setLineDash([]);
}

// ---- parts ----

function fillBars(list, rows) {    // rows: {name, share, kind, said}; a bar is as long as its share of 1
  list.replaceChildren(...rows.map(({ name, share, kind = "", said }) => {
    const bar = make("i"), item = make("li", kind);
    bar.style.width = `${between(0, share * 100, 100)}%`;
    item.append(make("span", "name", typeof name === "string" ? named(name) : name), make("span", "bar", bar), make("span", "share", said ?? `${percent(share)} %`));
    return item;
  }));
}

function fillSelect(select, names, values) {
  select.replaceChildren(...names.map((name, i) => {
    const option = make("option", "", name);
    option.value = values[i];
    return option;
  }));
}

function fillSheet(layers, heads, button) {       // a row a layer, a column a name of `heads`, in each cell button(layer, column)
  const table = find(".sheet table"), row = (cells) => table.insertRow().append(...cells);
  table.replaceChildren();
  row(["layer", ...heads].map((name) => make("th", "", name)));
  layers.forEach((name, layer) => row([make("th", "", String(name)), ...heads.map((_, at) => make("td", "", button(layer, at)))]));
}

function showTip(event, words) {
  const tip = find(".tip");
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  const right = event.clientX + 14 + tip.offsetWidth < window.innerWidth;
  tip.style.left = `${Math.max(4, right ? event.clientX + 14 : event.clientX - 14 - tip.offsetWidth)}px`;
  tip.style.top = `${event.clientY + 16}px`;
}

function remember(facts) {         // the view, in the address
  const hash = new URLSearchParams(Object.entries(facts).filter(([, value]) => value !== null && value !== undefined));
  try { history.replaceState(null, "", `#${hash}`); } catch { /* a frame without an address: the view is just not linkable */ }
}
const asked = () => new URLSearchParams(location.hash.slice(1));

function whole(name, most) {       // a whole number of the address, or -1
  const given = asked().get(name);
  return given !== null && /^\d+$/.test(given) && Number(given) < most ? Number(given) : -1;
}

// ---- within a frame of another page ----

if (window.parent !== window) {    // frame.js around it gives the frame the height of this page, and says how much of it is above the window
  new ResizeObserver(([{ target }]) => window.parent.postMessage({ height: target.offsetHeight }, "*")).observe(find("main"));
  window.addEventListener("message", ({ source, data: told }) => {
    if (source !== window.parent || !(told?.above >= 0)) return;
    document.documentElement.classList.add("framed");
    const bar = find(".bar"), down = parseFloat(bar?.style.top) || 0;
    if (bar) bar.style.top = `${Math.max(0, told.above - bar.offsetTop + down)}px`;  // it stays in view
  });
}

const typing = (event) => event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input[type=text]");
