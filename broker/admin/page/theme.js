// Light or dark: as the system has it, unless the operator has chosen.

import { pulse } from "./live_figures.js";

const KEY = "flockmq.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => localStorage.getItem(KEY);

function apply() {
  const theme = chosen() ?? (system.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Use ${theme === "dark" ? "light" : "dark"} colours`);
  pulse.dispatchEvent(new Event("beat")); // views draw their charts again
}

export function begin() {
  system.addEventListener("change", apply);
  document.getElementById("theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    if (next === (system.matches ? "dark" : "light")) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
    apply();
  });
  apply();
}
