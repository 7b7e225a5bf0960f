// Overview: what passes, how fast the nodes are, and how each of them does.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { fault, h, head, put, silent } from "./dom.js";
import { table } from "./list.js";
import { pulse } from "./live_figures.js";
import { Tiles } from "./tiles.js";
import { bytes, count, rate, seconds, span } from "./format.js";

const NODES_EVERY = 3000;

const TILES = [
  ["Messages in", (m) => `${rate(m.in)} /s`], ["Messages out", (m) => `${rate(m.out)} /s`],
  ["Clients", (m) => count(m.clients)], ["Subscriptions", (m) => count(m.subscriptions)],
  ["Queued", (m) => count(m.queued)], ["Retained", (m) => count(m.retained)],
  ["Connects", (m) => `${rate(m.connects)} /s`],
  ["Dropped", (m) => `${rate(m.dropped)} /s`, (m) => m.dropped > 0],
];

const COLUMNS = [
  ["Node", (n) => n.name],
  ["State", (n) => h("span", { class: `pill ${n.ready && n.link ? "good" : "bad"}` }, n.ready ? (n.link ? "ready" : "Redis is away") : n.state)],
  ["Clients", (n) => count(n.figures.clients_connected), "number"],
  ["Queued", (n) => count(n.figures.queued_messages), "number"],
  ["Loop lag", (n) => seconds(n.figures.loop_lag_seconds), "number"],
  ["Store", (n) => seconds(n.figures.store_latency_seconds), "number"],
  ["Memory", (n) => bytes(n.resident_bytes), "number"],
  ["Up for", (n) => span(Date.now() / 1000 - n.started), "number"],
  ["Version", (n) => n.version],
];

export function show(host) {
  const tiles = new Tiles(TILES);
  const charts = [
    new Chart("Messages", [["in", (m) => m.in], ["out", (m) => m.out]], (n) => `${rate(n)} /s`),
    new Chart("Traffic", [["in", (m) => m.bytesIn], ["out", (m) => m.bytesOut]], (n) => `${bytes(Math.round(n))}/s`),
    new Chart("Latency, the most in 15 to 30 s", [["loop lag", (m) => m.lag], ["store", (m) => m.store]], seconds),
    new Chart("Clients", [["connected", (m) => m.clients]], count),
  ];
  const nodes = h("div", {}, h("p", { class: "muted" }, "Loading…"));
  put(host, head("Overview", "All nodes, live."), tiles.element,
    h("div", { class: "grid" }, ...charts.map((chart) => chart.element)),
    h("section", { class: "card", "aria-labelledby": "nodes" }, h("h2", { id: "nodes" }, "Nodes"), nodes));

  const beat = () => {
    charts.forEach((chart) => chart.draw(pulse.history));
    tiles.draw(pulse.history.at(-1));
  };
  const look = async () => {
    try {
      const found = await get("/nodes");
      put(nodes, silent(found.failures), table("Nodes", COLUMNS, Object.values(found.nodes).sort((a, b) => a.name.localeCompare(b.name))));
    } catch (error) {
      put(nodes, fault(error));
    }
  };
  pulse.addEventListener("beat", beat);
  beat();
  look();
  const timer = setInterval(look, NODES_EVERY);
  return () => {
    clearInterval(timer);
    pulse.removeEventListener("beat", beat);
  };
}
