// Says the chosen crontab in words below its field, on the admin's form of a periodic task.
"use strict";

(() => {
  const data = document.getElementById("readable-crontabs");
  const field = document.getElementById("id_crontab");
  if (!data || !field) return;
  const words = JSON.parse(data.textContent);
  const line = document.createElement("div");
  line.className = "help";
  line.setAttribute("role", "status");
  field.closest(".form-row").append(line);
  const say = () => {
    line.textContent = words[field.value] ?? "";
  };
  field.addEventListener("change", say);
  say();
  // The same in a row of its own, which does not follow the choice.
  document.querySelector(".field-crontab_translation")?.setAttribute("hidden", "");
})();
