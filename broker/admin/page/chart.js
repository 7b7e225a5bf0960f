// A curve or two over the last two minutes, drawn by uPlot.

import { h } from "./dom.js";

const HEIGHT = 96; // pixels
const POINTS = 120;
const SHADE = "1a"; // opacity of the area below a curve
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

export class Chart {
  // lines: [name, function of a moment]; words: how a value is said.
  constructor(title, lines, words) {
    this.lines = lines;
    this.words = words;
    this.values = lines.map(([name], n) => h("li", { class: `s${n}` }, name));
    this.picture = h("div", { class: "picture", role: "img", "aria-label": title });
    this.top = h("span", { class: "small muted number" });
    const caption = h("figcaption", {}, h("span", {}, title), h("ul", { class: "legend" }, ...this.values));
    this.element = h("figure", { class: "chart card" }, caption, this.picture, this.top);
    this.plot = new uPlot({
      width: 300, height: HEIGHT, padding: [4, 0, 1, 0], legend: { show: false }, cursor: { show: false },
      axes: [{ show: false }, { show: false }],
      scales: { x: { time: false, range: [0, POINTS - 1] }, y: { range: (plot, low, high) => [0, high || 1] } },
      series: [{}, ...lines.map((_, n) => ({
        stroke: () => css(`--s${n}`), fill: () => `${css(`--s${n}`)}${SHADE}`, width: 1.8, points: { show: false },
      }))],
    }, this.data([]), this.picture);
    const resize = () => this.plot.setSize({ width: this.picture.clientWidth, height: HEIGHT });
    new ResizeObserver(resize).observe(this.picture);
  }

  data(curves) {
    const first = POINTS - (curves[0]?.length ?? 0);
    return [
      Array.from({ length: POINTS }, (_, n) => n),
      ...this.lines.map((_, n) => [...Array(first).fill(null), ...(curves[n] ?? [])]),
    ];
  }

  draw(history) {
    const curves = this.lines.map(([, read]) => history.map(read));
    const highest = Math.max(0, ...curves.flat());
    this.plot.setData(this.data(curves));
    curves.forEach((curve, n) => {
      this.values[n].textContent = `${this.lines[n][0]} ${curve.length ? this.words(curve.at(-1)) : "–"}`;
    });
    this.top.textContent = history.length ? `highest in two minutes: ${this.words(highest)}` : "waiting for figures";
  }
}
