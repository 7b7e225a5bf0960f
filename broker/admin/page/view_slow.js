// Slow clients: the deepest queues, the oldest unacknowledged messages, the most losses.

import { get } from "./api.js";
import { empty, fault, field, h, head, put, silent } from "./dom.js";
import { table } from "./list.js";
import { scope } from "./sign_in.js";
import { bytes, count, span } from "./format.js";

const EVERY = 5000;
const ORDERS = [["queue", "deepest queue"], ["age", "oldest unacknowledged message"], ["drops", "most lost messages"]];
const NOTHING = { queue: "No message waits for a client.", age: "No client lets others wait behind a message.", drops: "No client has lost a message." };

const COLUMNS = [
  ["Client", (c) => h("a", { href: `#/clients?client=${encodeURIComponent(c.client_id)}` }, c.client_id)],
  ["State", (c) => h("span", { class: `pill ${c.connected ? "good" : ""}` }, c.connected ? "connected" : "away")],
  ["User", (c) => c.username || "–"],
  ["Waiting", (c) => count(c.queued_messages), "number"],
  ["Bytes", (c) => bytes(c.queued_bytes), "number"],
  ["Oldest", (c) => (c.oldest_seconds === null ? "–" : span(c.oldest_seconds)), "number"],
  ["Lost", (c) => h("span", { title: `${count(c.dropped_queue_full)} at the full queue, ${count(c.dropped_output_full)} at the full output` }, count(c.dropped_messages)), "number"],
  ["Last lost", (c) => (c.dropped_ago === null ? "–" : `${span(c.dropped_ago)} ago`), "number"],
  ["Node", (c) => c.node],
];

export function show(host) {
  const by = h("select", { name: "by" }, ...ORDERS.map(([value, words]) => h("option", { value }, words)));
  const place = h("section", { class: "card", "aria-label": "Slow clients" }, empty("Loading…"));
  put(host, head("Slow clients", "The ten that are the slowest to take messages, of all nodes."), h("form", { class: "bar" }, field("By", by)), place);

  async function look() {
    const wanted = by.value;
    try {
      const { items, failures } = await get("/slow-clients", { ...scope(), by: wanted });
      if (wanted !== by.value) return;
      put(place, silent(failures), items.length ? table("Slow clients", COLUMNS, items) : empty(NOTHING[wanted]));
    } catch (error) {
      put(place, fault(error));
    }
  }

  by.addEventListener("change", look);
  look();
  const timer = setInterval(look, EVERY);
  return () => clearInterval(timer);
}
