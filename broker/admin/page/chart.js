// A curve or two over the last two minutes.

import { h, svg } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 100;
const POINTS = 120;

export class Chart {
  // lines: [name, function of a moment]; words: how a value is said.
  constructor(title, lines, words) {
    this.lines = lines;
    this.words = words;
    this.values = lines.map(([name], n) => h("li", { class: `s${n}` }, name));
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.picture.setAttribute("aria-label", title);
    this.paths = lines.map((_, n) => {
      const group = svg("g", { class: `s${n}` }, svg("path", { class: "area" }), svg("path", { class: "line" }));
      this.picture.append(group);
      return group;
    });
    this.picture.append(svg("line", { class: "floor", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }));
    this.top = h("span", { class: "small muted number" });
    const caption = h("figcaption", {}, h("span", {}, title), h("ul", { class: "legend" }, ...this.values));
    this.element = h("figure", { class: "chart card" }, caption, this.picture, this.top);
  }

  draw(history) {
    const curves = this.lines.map(([, read]) => history.map(read));
    const highest = Math.max(0, ...curves.flat());
    const scale = highest > 0 ? (HEIGHT * 0.94) / highest : 0;
    curves.forEach((curve, n) => {
      const first = POINTS - curve.length;
      const points = curve.map((y, x) => `${(((first + x) / (POINTS - 1)) * WIDTH).toFixed(1)},${(HEIGHT - y * scale).toFixed(1)}`);
      const [area, line] = this.paths[n].children;
      const begin = ((first / (POINTS - 1)) * WIDTH).toFixed(1);
      line.setAttribute("d", points.length ? `M${points.join("L")}` : "");
      area.setAttribute("d", points.length ? `M${begin},${HEIGHT}L${points.join("L")}L${WIDTH},${HEIGHT}Z` : "");
      this.values[n].textContent = `${this.lines[n][0]} ${curve.length ? this.words(curve.at(-1)) : "–"}`;
    });
    this.top.textContent = history.length ? `highest in two minutes: ${this.words(highest)}` : "waiting for figures";
  }
}
