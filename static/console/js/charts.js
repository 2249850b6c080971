// Draws the figures that charts.py made: <script type=application/json id=X> into <div data-chart=X>.
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

function draw(element) {
  const source = document.getElementById(element.dataset.chart);
  if (!source || !window.Plotly) return;
  const figure = JSON.parse(source.textContent);
  const colours = tokenColours();
  const { data, layout } = resolve(figure, colours.read);
  colours.done();
  if (element.clientWidth < 500) {
    layout.xaxis = { ...layout.xaxis, nticks: 4 };
    (layout.annotations || []).forEach((label) => { label.text = label.text.replace(" selected", ""); });
  }
  window.Plotly.react(element, data, layout, CONFIG).then(() => {
    if (drawn.has(element)) return;
    drawn.add(element);
    if (element.dataset.brush) watchBrush(element);
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

function drawAll(root = document) {
  root.querySelectorAll("[data-chart]").forEach(draw);
}

document.addEventListener("theme", () => drawAll());
document.addEventListener("htmx:afterSettle", (event) => drawAll(event.detail.elt.ownerDocument));
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => drawAll());
else drawAll();
