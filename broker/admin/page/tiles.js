// Figures of an overview, a tile each.

import { h } from "./dom.js";

// rows: [title, function of a moment of the pulse -> text, perhaps one that says whether it is bad].
export class Tiles {
  constructor(rows) {
    this.rows = rows;
    this.shown = rows.map(() => h("dd", { class: "big" }, "–"));
    this.element = h("dl", { class: "tiles" }, ...rows.map(([name], n) => h("div", { class: "tile" }, h("dt", {}, name), this.shown[n])));
  }

  draw(now) {
    if (now) this.rows.forEach(([, words, isBad], n) => {
      this.shown[n].textContent = words(now);
      this.shown[n].classList.toggle("bad", Boolean(isBad?.(now)));
    });
  }
}
