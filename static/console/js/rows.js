// A list of rows: the cursor, ticks, and the bar for what is selected. Forms work without it.
"use strict";

const list = document.querySelector("[data-rows]");

if (list) {
  const rows = () => [...list.querySelectorAll("[data-row-of]")];
  const ticks = () => [...list.querySelectorAll(".tick[data-row]")];
  const bar = document.getElementById("selection");
  const all = document.getElementById("tick-all");
  const words = document.getElementById("selection-words");
  const everything = document.getElementById("selection-everything");
  const total = Number(list.dataset.total || 0);
  const number = (value) => value.toLocaleString("en-US");
  let lastTick = null;
  let isEverything = false;

  // What opens a row.
  const linkOf = (row) => row?.querySelector(".row-link, [data-opens]");
  const cursor = () => list.querySelector("[data-cursor]");

  function move(step) {
    const known = rows();
    if (!known.length) return;
    const at = known.indexOf(cursor());
    const next = known[at === -1 ? 0 : Math.min(known.length - 1, Math.max(0, at + step))];
    cursor()?.removeAttribute("data-cursor");
    next.setAttribute("data-cursor", "");
    linkOf(next)?.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  // What is selected, in words and in what the buttons submit.
  function say() {
    if (!bar) return;
    const known = ticks();
    const count = known.filter((tick) => tick.checked).length;
    const isWholePage = count > 0 && count === known.length;
    if (!isWholePage) isEverything = false;
    all.checked = isWholePage;
    all.indeterminate = count > 0 && !isWholePage;
    bar.classList.toggle("selection-on", count > 0);
    bar.querySelectorAll("[data-selected-only]").forEach((element) => { element.hidden = count === 0; });
    bar.querySelectorAll("[data-unselected-only]").forEach((element) => { element.hidden = count > 0; });
    const foot = document.getElementById("selection-foot");
    if (foot) {
      foot.hidden = count === 0;
      document.body.classList.toggle("has-bar", count > 0);
    }
    if (isEverything) words.textContent = `All ${number(total)} that match are selected.`;
    else if (isWholePage) words.textContent = `${number(count)} on this page are selected.`.replace("1 on this page are", "1 on this page is");
    else words.textContent = `${number(count)} selected.`;
    if (everything) everything.hidden = !(isWholePage && total > known.length && !isEverything);
    // All that match are named by the search, so the ids stay at home.
    known.forEach((tick) => { tick.name = isEverything ? "" : tick.dataset.row; });
    sayLive();
  }

  function set(tick, isChecked) {
    tick.checked = isChecked;
  }

  // The label's own click would arrive without the shift key in some browsers; this is the one place.
  list.addEventListener("click", (event) => {
    const tick = event.target.closest(".tick[data-row]");
    if (!tick) return;
    if (event.shiftKey && lastTick) {
      const known = ticks();
      const [from, to] = [known.indexOf(lastTick), known.indexOf(tick)].sort((a, b) => a - b);
      known.slice(from, to + 1).forEach((each) => set(each, tick.checked));
    }
    lastTick = tick;
    say();
  });
  list.addEventListener("mousedown", (event) => {
    // Shift and click would mark the text between the two.
    if (event.shiftKey && event.target.closest(".tick-cell-td")) event.preventDefault();
  });

  function clear() {
    ticks().forEach((tick) => set(tick, false));
    isEverything = false;
    say();
  }

  all?.addEventListener("change", () => {
    ticks().forEach((tick) => set(tick, all.checked));
    say();
  });
  everything?.addEventListener("click", (event) => {
    event.preventDefault();
    isEverything = true;
    say();
    bar.querySelector(".button-primary")?.focus();
  });
  document.querySelectorAll("[data-clear-selection]").forEach((button) => button.addEventListener("click", clear));

  document.addEventListener("keydown", (event) => {
    if (isTyping(event) || document.querySelector("dialog[open], [popover]:popover-open")) return;
    const row = cursor();
    const key = event.key;
    if (key === "j") move(1);
    else if (key === "k") move(-1);
    else if ((key === "x" || key === "X") && row) {
      const tick = row.querySelector(".tick[data-row]");
      if (!tick) return;
      tick.checked = !tick.checked;
      if (key === "X" && lastTick) {
        const known = ticks();
        const [from, to] = [known.indexOf(lastTick), known.indexOf(tick)].sort((a, b) => a - b);
        known.slice(from, to + 1).forEach((each) => set(each, tick.checked));
      }
      lastTick = tick;
      say();
    } else if (key === "e" && row) linkOf(row)?.click();
    else if (key === "r") {
      if (ticks().some((tick) => tick.checked)) bar.querySelector("[data-replay] .button")?.click();
      else row?.querySelector("[data-replay-row], [data-replay-row-box] .button")?.click();
    } else if (key === "m" && row) row.querySelector("[data-mute]")?.click();
    else if (key === "o" && row) row.querySelector("[data-owner]")?.click();
    else if (key === "f") document.getElementById("search-text")?.focus();
    else if (key === "Escape" && ticks().some((tick) => tick.checked)) clear();
    else return;
    event.preventDefault();
  });

  list.addEventListener("focusin", (event) => {
    const row = event.target.closest("[data-row-of]");
    if (!row || row === cursor()) return;
    cursor()?.removeAttribute("data-cursor");
    row.setAttribute("data-cursor", "");
  });

  // The poll says which rows the page shows and how, and is answered those that have changed since.
  document.addEventListener("htmx:configRequest", (event) => {
    if (!event.detail.elt.hasAttribute("data-poll")) return;
    const shown = rows().filter((row) => row.dataset.version);
    if (shown.length) {
      event.detail.parameters.rows = shown.map((row) => `${row.dataset.rowOf}:${row.dataset.version}`).join(",");
    }
  });
  // A row that is drawn anew keeps the cursor and the focus.
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const row = event.detail.target;
    const fresh = event.detail.fragment?.querySelector?.("[data-row-of]");
    if (!fresh || !row.matches("[data-row-of]")) return;
    fresh.toggleAttribute("data-cursor", row.hasAttribute("data-cursor"));
    fresh.toggleAttribute("data-focused", row.contains(document.activeElement));
  });
  document.addEventListener("htmx:oobAfterSwap", () => {
    const fresh = list.querySelector("[data-focused]");
    fresh?.removeAttribute("data-focused");
    linkOf(fresh)?.focus({ preventScroll: true });
  });

  // A list that is drawn anew as a whole keeps them on the row of the same name.
  let kept = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const row = cursor();
    const isWithin = row && list.contains(event.detail.target) && event.detail.target.contains(row);
    kept = isWithin ? { name: row.dataset.rowOf, isFocused: linkOf(row) === document.activeElement } : null;
  });
  document.addEventListener("htmx:afterSwap", () => {
    const fresh = kept && rows().find((row) => row.dataset.rowOf === kept.name);
    if (fresh && !cursor()) fresh.setAttribute("data-cursor", "");
    if (fresh && kept.isFocused) linkOf(fresh)?.focus({ preventScroll: true });
    kept = null;
  });

  // Back from another page the browser restores ticks.
  window.addEventListener("pageshow", say);
  say();
}
