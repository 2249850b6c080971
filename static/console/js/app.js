// The shell: live refresh that knows when to hold still, keys, theme, toasts, copying.
"use strict";

const page = document.documentElement;

// Holding still ------------------------------------------------------------------------------

const EDITABLE = "input:not([type=checkbox]):not([type=radio]):not([type=submit]), textarea, select";

function whyHeld() {
  if (document.hidden) return "Held while the tab is hidden";
  if (document.querySelector(".tick[data-row]:checked")) return "Held while rows are selected";
  if (document.querySelector("[popover]:popover-open, dialog[open], details[data-menu][open]")) {
    return "Held while a menu is open";
  }
  if (document.activeElement && document.activeElement.matches(EDITABLE)) return "Held while a field has the focus";
  return "";
}

let answeredAt = Date.now();
let failedSince = 0;
let isOver = false;

function sayLive() {
  const live = document.getElementById("live");
  if (!live || !live.hasAttribute("hx-get")) return;
  const words = live.querySelector("[data-live-words]");
  const held = isOver ? "" : whyHeld();
  live.toggleAttribute("data-held", held !== "");
  live.toggleAttribute("data-late", failedSince !== 0);
  let text;
  if (isOver) text = live.dataset.over || "It has ended; nothing changes here";
  else if (held) text = held;
  else if (failedSince) text = `No answer for ${span((Date.now() - failedSince) / 1000)}`;
  else text = `Live, ${span((Date.now() - answeredAt) / 1000)} ago`;
  if (words.textContent !== text) words.textContent = text;
}

document.addEventListener("htmx:beforeRequest", (event) => {
  const element = event.detail.elt;
  if (element.hasAttribute("data-poll") && whyHeld()) event.preventDefault();
});
document.addEventListener("htmx:afterRequest", (event) => {
  const element = event.detail.elt;
  if (!element.hasAttribute("data-poll")) return;
  if (event.detail.successful) {
    answeredAt = Date.now();
    failedSince = 0;
    if (event.detail.xhr.status === 286) isOver = true;
  } else if (!failedSince) {
    failedSince = Date.now();
  }
  sayLive();
});
// A page that was hidden for an hour shows the present at once.
document.addEventListener("visibilitychange", () => {
  if (document.hidden || isOver || whyHeld()) return;
  document.querySelectorAll("[data-poll][hx-get]").forEach((element) => window.htmx?.trigger(element, "refresh"));
});

// Times, by the rules of console/times.py ----------------------------------------------------

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} days`;
}

function ago(moment, now) {
  let seconds = Math.trunc((now - moment) / 1000);
  if (Math.abs(seconds) >= 86400) {
    const words = `${moment.getUTCDate()} ${MONTHS[moment.getUTCMonth()]}`;
    return moment.getUTCFullYear() === now.getUTCFullYear() ? words : `${words} ${moment.getUTCFullYear()}`;
  }
  if (seconds > -3 && seconds < 0) seconds = 0;
  return seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

// Browsers' clocks are wrong; the server's time of this page is not, unless the page is an old one from the cache.
const isOld = performance.getEntriesByType("navigation")[0]?.type === "back_forward";
const lag = Date.parse(page.dataset.now || "") - Date.now() || 0;
const skew = isOld || Math.abs(lag) < 3000 ? 0 : lag;

function tellTimes() {
  const now = new Date(Date.now() + skew);
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const text = ago(new Date(element.dateTime), now);
    if (element.textContent !== text) element.textContent = text;
  }
}

setInterval(() => {
  if (document.hidden) return;
  sayLive();
  tellTimes();
}, 1000);

// Toasts -------------------------------------------------------------------------------------

const TOAST_SECONDS = 6;

function startToasts() {
  for (const toast of document.querySelectorAll("[data-toast]:not([data-started])")) {
    toast.setAttribute("data-started", "");
    if (toast.dataset.toastKey && sessionStorage.getItem(toast.dataset.toastKey)) {
      toast.remove();
      continue;
    }
    // One that offers a way back, or says what went wrong, waits to be dismissed.
    if (toast.querySelector("form, a") || toast.matches(".toast-error, .toast-warning")) continue;
    setTimeout(() => toast.remove(), TOAST_SECONDS * 1000);
  }
}

function toast(text) {
  const region = document.getElementById("flash");
  const element = document.createElement("div");
  element.className = "toast toast-info";
  element.setAttribute("data-toast", "");
  element.textContent = text;
  region.append(element);
  startToasts();
}

// Clicks -------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const target = event.target instanceof Element ? event.target : null;
  if (!target) return;
  const refused = target.closest('[aria-disabled="true"]');
  if (refused) {
    event.preventDefault();
    if (refused.title) toast(refused.title);
    return;
  }
  if (target.closest("[data-dismiss]")) {
    const dismissed = target.closest("[data-toast]");
    // A page that shows it again after a reload does not ask again.
    if (dismissed.dataset.toastKey) sessionStorage.setItem(dismissed.dataset.toastKey, "dismissed");
    dismissed.remove();
    return;
  }
  if (target.closest("[data-keys]")) {
    document.getElementById("keys").showModal();
    return;
  }
  const qualifier = target.closest("[data-qualifier]");
  if (qualifier) {
    const field = document.getElementById("search-text");
    event.preventDefault();
    field.value = `${field.value.trimEnd()} ${qualifier.dataset.qualifier}`.trimStart();
    field.focus();
    return;
  }
  const copy = target.closest("[data-copy], [data-copy-text]");
  if (copy) {
    const source = document.getElementById(copy.dataset.copy || "");
    try {
      await navigator.clipboard.writeText(source ? source.textContent : copy.dataset.copyText);
      toast("Copied.");
    } catch {
      toast("The browser refused to copy. Select the text and copy it by hand.");
    }
    return;
  }
  const theme = target.closest("[data-theme-switch]");
  if (theme) {
    event.preventDefault();
    const isDark = page.dataset.theme
      ? page.dataset.theme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
    page.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `theme=${page.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
    document.dispatchEvent(new CustomEvent("theme"));
  }
});
window
  .matchMedia("(prefers-color-scheme: dark)")
  .addEventListener("change", () => document.dispatchEvent(new CustomEvent("theme")));

// Keys of every page; those of a list are in rows.js -----------------------------------------

function isTyping(event) {
  return event.ctrlKey || event.metaKey || event.altKey || (event.target instanceof Element && event.target.matches(EDITABLE));
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target instanceof Element && event.target.matches(EDITABLE)) {
    event.target.blur();
    return;
  }
  if (isTyping(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "?") {
    document.getElementById("keys")?.showModal();
  } else if (event.key === "/") {
    const form = document.getElementById("find");
    if (!form) return;
    if (getComputedStyle(form).display === "none") form.showPopover();
    document.getElementById("find-text").focus();
  } else {
    return;
  }
  event.preventDefault();
});

// A form that acts is sent once, however often its button is pressed.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post" || event.defaultPrevented || form.hasAttribute("hx-post")) return;
  // A download leaves the page where it is, so its button must work again.
  if (form.hasAttribute("data-stays")) return;
  if (form.hasAttribute("data-sent")) event.preventDefault();
  else form.setAttribute("data-sent", "");
});
window.addEventListener("pageshow", () => {
  document.querySelectorAll("form[data-sent]").forEach((form) => form.removeAttribute("data-sent"));
});

document.addEventListener("htmx:load", startToasts);
startToasts();
sayLive();
