// The pages that ask how to send, and the rate of an operation: the slider follows the number, words follow both.
"use strict";

const SLIDER_MAX = 200;

function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  const whole = Math.round(seconds / 60);
  if (whole < 10) {
    const minutes = Math.floor(Math.round(seconds) / 60);
    const rest = Math.round(seconds) % 60;
    return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
  }
  if (whole < 60) return `${whole} min`;
  const hours = Math.floor(whole / 60);
  return whole % 60 ? `${hours} h ${whole % 60} min` : `${hours} h`;
}

function rateOf(box) {
  const text = box.querySelector("[name=rate]").value.trim();
  return text === "" ? null : Number(text.replaceAll(",", ""));
}

function sayTakes(form, box) {
  const words = form.querySelector("[data-takes]");
  if (!words) return;
  const rate = rateOf(box);
  if (rate === null) words.textContent = "As fast as the broker takes them.";
  else if (rate > 0) words.textContent = `About ${duration(Number(form.dataset.count) / rate)}, plus the waits between stages.`;
  else words.textContent = "";
}

function saySet(box) {
  const words = box.querySelector("[data-rate-words]");
  if (!words) return;
  const rate = rateOf(box);
  words.textContent = rate === null ? "Set to no limit" : `Set rate to ${rate} /s`;
}

function sayStages(form) {
  const words = form.querySelector("[data-sends]");
  if (!words || !form.querySelector("[data-stage]")) return;
  let left = Number(form.dataset.count);
  const sizes = [];
  for (const field of form.querySelectorAll("[data-stage]")) {
    const size = Number(field.value.replaceAll(",", ""));
    if (!Number.isInteger(size) || size < 1 || !left) continue;
    sizes.push(Math.min(size, left));
    left -= Math.min(size, left);
  }
  if (left) sizes.push(left);
  const told = sizes.map((size) => size.toLocaleString("en-US"));
  if (told.length < 2) words.textContent = "Sends all at once, without stages.";
  else if (told.length === 2) words.textContent = `Sends ${told[0]}, then ${told[1]}.`;
  else words.textContent = `Sends ${told[0]}, then ${told.slice(1, -1).join(", ")} and ${told.at(-1)}.`;
}

document.querySelectorAll("[data-rate]").forEach((box) => saySet(box));

document.addEventListener("input", (event) => {
  const target = event.target;
  if (!(target instanceof HTMLInputElement)) return;
  const form = target.form;
  if (!form) return;
  const box = target.closest("[data-rate]");
  if (box) {
    const number = box.querySelector("[name=rate]");
    const slider = box.querySelector("[data-rate-slider]");
    if (target === slider) number.value = slider.value;
    else slider.value = String(Math.min(SLIDER_MAX, rateOf(box) ?? SLIDER_MAX));
    sayTakes(form, box);
    saySet(box);
  }
  if (target.matches("[data-stage]")) sayStages(form);
});
