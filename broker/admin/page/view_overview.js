// Overview: what passes, how fast the nodes are, and how each of them does.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { fault, h, head, put, silent } from "./dom.js";
import { table } from "./list.js";
import { pulse } from "./live_figures.js";
import { Tiles } from "./tiles.js";
import { bytes, count, rate, seconds, some, span } from "./format.js";

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

const SHARDS = [
  ["Shard", (s) => String(s.number)],
  ["State", (s) => h("span", { class: `pill ${s.away ? "bad" : "good"}` }, s.away ? `away from ${some(s.away, "node")}` : "connected")],
  ["Waiting blocks", (s) => count(s.waiting), "number"],
  ["Latency", (s) => seconds(s.latency), "number"],
];

// What all nodes see of each shard; nothing if there is one.
function shardsOf(nodes) {
  const most = Math.max(0, ...nodes.map((node) => node.shards.length));
  return Array.from({ length: most }, (_, number) => {
    const seen = nodes.map((node) => node.shards[number]).filter(Boolean);
    return {
      number,
      away: seen.filter((shard) => !shard.connected).length,
      waiting: seen.reduce((sum, shard) => sum + shard.waiting, 0),
      latency: Math.max(...seen.map((shard) => shard.latency)),
    };
  });
}

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
      const known = Object.values(found.nodes).sort((a, b) => a.name.localeCompare(b.name));
      const shards = shardsOf(known);
      put(nodes, silent(found.failures), table("Nodes", COLUMNS, known), ...(shards.length ? [table("Shards", SHARDS, shards)] : []));
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
