// Overview of a tenant: what passes of its own, and its limits.

import { Chart } from "./chart.js";
import { empty, facts, h, head, put } from "./dom.js";
import { told } from "./limits.js";
import { pulse } from "./live_figures.js";
import { Tiles } from "./tiles.js";
import { who } from "./sign_in.js";
import { bytes, count, rate } from "./format.js";

const TILES = [
  ["Messages in", (m) => `${rate(m.in)} /s`], ["Messages out", (m) => `${rate(m.out)} /s`],
  ["Clients", (m) => count(m.clients)], ["Sessions", (m) => count(m.sessions)],
  ["Subscriptions", (m) => count(m.subscriptions)],
  ["Retained", (m) => count(m.retained)], ["Queued", (m) => bytes(m.queued)],
  ["Dropped", (m) => `${rate(m.dropped)} /s`, (m) => m.dropped > 0],
];

export function show(host) {
  const tiles = new Tiles(TILES);
  const charts = [
    new Chart("Messages", [["in", (m) => m.in], ["out", (m) => m.out]], (n) => `${rate(n)} /s`),
    new Chart("Payloads", [["in", (m) => m.bytesIn], ["out", (m) => m.bytesOut]], (n) => `${bytes(Math.round(n))}/s`),
    new Chart("Clients", [["connected", (m) => m.clients]], count),
  ];
  const limits = h("div", {}, empty("Loading…"));
  put(host, head("Overview", `Of ${who.tenant}, live.`), tiles.element,
    h("div", { class: "grid" }, ...charts.map((chart) => chart.element),
      h("section", { class: "card", "aria-labelledby": "limits" }, h("h2", { id: "limits" }, "Limits"), limits)));

  let drawn = "";
  const beat = () => {
    charts.forEach((chart) => chart.draw(pulse.history));
    tiles.draw(pulse.history.at(-1));
    const given = pulse.latest && told(pulse.latest.limits);
    if (!given || drawn === JSON.stringify(given)) return;
    drawn = JSON.stringify(given);
    put(limits, given.length ? facts(given) : empty("None of its own."));
  };
  pulse.addEventListener("beat", beat);
  beat();
  return () => pulse.removeEventListener("beat", beat);
}
