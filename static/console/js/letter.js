// Keys of a letter's page: j and k go to the neighbours, r opens the page that asks.
"use strict";

document.addEventListener("keydown", (event) => {
  if (isTyping(event) || document.querySelector("dialog[open], [popover]:popover-open")) return;
  const link = { j: "[data-older]", k: "[data-newer]", r: "[data-replay] a" }[event.key];
  const target = link && document.querySelector(link);
  if (!target) return;
  event.preventDefault();
  target.click();
});
