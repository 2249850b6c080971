// Draws the figures that charts.py and number_charts.py made: the JSON in the element with id X into <div data-chart=X>.
"use strict";

// A custom property returns its unresolved text; the computed colour of an element with it does not.
function tokenColours() {
  const probe = document.createElement("span");
  probe.className = "probe";
  document.body.append(probe);
  const cache = new Map();
  const read = (token) => {
    if (!cache.has(token)) {
      probe.className = `probe token-${token}`;
      cache.set(token, getComputedStyle(probe).color);
    }
    return cache.get(token);
  };
  return { read, done: () => probe.remove() };
}

// "@c-1" anywhere in a figure stands for a token; "@accent/8" for 8 % of it.
function resolve(value, read) {
  if (typeof value === "string" && value.startsWith("@")) {
    const [token, percent] = value.slice(1).split("/");
    const colour = read(token);
    return percent ? colour.replace(/^rgba?\(([^,]+,[^,]+,[^,)]+).*$/, `rgba($1, ${percent / 100})`) : colour;
  }
  if (Array.isArray(value)) return value.map((item) => resolve(item, read));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, read)]));
  }
  return value;
}

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, doubleClick: false, showTips: false };
const drawn = new Set();

// In a narrow plot names at the end of lines are cut and leave it their room; one that would still be cut off stands
// before the end.
function shortenNames(layout, width) {
  const names = (layout.annotations || []).filter((label) => label.short);
  if (!names.length) return;
  names.forEach((label) => { label.text = label.short; });
  const widthOf = (label) => label.text.length * 6.6 + 12;
  const right = Math.min(layout.margin.r, Math.round(Math.max(...names.map(widthOf))));
  layout.margin = { ...layout.margin, r: right };
  const [start, end, plot] = [...layout.xaxis.range.map((text) => Date.parse(text)), width - layout.margin.l - right];
  for (const label of names) {
    const room = (plot * (end - Date.parse(label.x))) / (end - start) + right;
    if (widthOf(label) > room) Object.assign(label, { xanchor: "right", xshift: -4 });
  }
}

function draw(element) {
  const source = document.getElementById(element.dataset.chart);
  if (!source || !window.Plotly) return;
  const figure = JSON.parse(source.textContent);
  const colours = tokenColours();
  let { data, layout } = resolve(figure, colours.read);
  colours.done();
  if (element.clientWidth < 500) {
    layout.xaxis = { ...layout.xaxis, nticks: 4 };
    // The words of a gap at the end would stand on the names of the lines.
    data = data.filter((trace) => trace.meta !== "last gap");
    shortenNames(layout, element.clientWidth);
    (layout.annotations || []).forEach((label) => { label.text = label.text.replace(/ selected$|^deploy /, ""); });
  }
  // A finger that drags over a chart of numbers scrolls the page.
  if (element.dataset.range && matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
  window.Plotly.react(element, data, layout, CONFIG).then(() => {
    if (drawn.has(element)) return;
    drawn.add(element);
    if (element.dataset.brush) watchBrush(element);
    if (element.dataset.range) watchRange(element);
  });
}

// The timeline's range becomes since: and until: of the page's address.
function watchBrush(element) {
  const step = Number(element.dataset.step) * 1000;
  const go = (from, to) => {
    const start = Math.floor(Math.min(from, to) / step) * step;
    const end = Math.max(start + step, Math.ceil(Math.max(from, to) / step) * step);
    const address = new URL(element.dataset.brush, location.href);
    const iso = (moment) => new Date(moment).toISOString().replace(/\.000Z$/, "Z");
    address.searchParams.set("since", iso(start));
    address.searchParams.set("until", iso(end));
    location.assign(address);
  };
  // plotly reads and writes such an axis in UTC, without saying so.
  const utc = (text) => (typeof text === "number" ? text : Date.parse(`${String(text).replace(" ", "T")}Z`));
  element.on("plotly_selected", (event) => {
    const range = event?.range?.x;
    if (range) go(utc(range[0]), utc(range[1]));
  });
  element.on("plotly_click", (event) => {
    const at = event?.points?.[0]?.x;
    if (at !== undefined) go(utc(at) - step / 2 + 1, utc(at) + step / 2 - 1);
  });
}

// A range dragged over a chart of numbers becomes the page's time window, at least two steps long.
function watchRange(element) {
  const step = Number(element.dataset.step) * 1000;
  const utc = (text) => Date.parse(`${String(text).replace(" ", "T")}Z`);
  element.on("plotly_selected", (event) => {
    const range = event?.range?.x;
    if (!range) return;
    const [from, to] = range.map(utc).sort((one, other) => one - other);
    if (to - from < 2 * step) {
      draw(element);
      return;
    }
    const address = new URL(element.dataset.range, location.href);
    const iso = (moment) => new Date(moment).toISOString().replace(/:\d\d\.\d+Z$/, "Z");
    ["window", "part"].forEach((name) => address.searchParams.delete(name));
    address.searchParams.set("from", iso(Math.floor(from / step) * step));
    address.searchParams.set("to", iso(Math.ceil(to / step) * step));
    location.assign(address);
  });
}

// What a reader opened stays open, and where it was scrolled to, when the charts are drawn anew.
const opened = new Set();
const scrolled = new Map();
document.addEventListener("toggle", (event) => {
  const details = event.target;
  if (!details.matches(".chart-disclosure[id]") || !details.isConnected) return;
  if (details.open) opened.add(details.id);
  else opened.delete(details.id);
}, true);
document.addEventListener("htmx:beforeSwap", () => {
  document.querySelectorAll(".chart-table[id]").forEach((table) => scrolled.set(table.id, table.scrollTop));
});
function reopen() {
  for (const id of opened) {
    const details = document.getElementById(id);
    if (!details || details.open) continue;
    details.open = true;
    const table = details.querySelector(".chart-table[id]");
    if (table) table.scrollTop = scrolled.get(table.id) || 0;
  }
}
document.addEventListener("htmx:afterSettle", reopen);

function drawAll(root = document) {
  root.querySelectorAll("[data-chart]").forEach(draw);
}

document.addEventListener("theme", () => drawAll());
document.addEventListener("htmx:afterSettle", (event) => drawAll(event.detail.elt.ownerDocument));
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => drawAll());
else drawAll();
