// Topics: a tree that fills as messages pass. It is bounded: what comes for too many topics is only counted.

import { get } from "./api.js";
import { Client } from "./client.js";
import { facts, field, h, head, put } from "./dom.js";
import { linked } from "./link.js";
import { table } from "./list.js";
import { shown } from "./payload.js";
import { told } from "./properties.js";
import { Tree } from "./tree.js";
import { bytes, count, rate } from "./format.js";

const TOPICS_MOST = 3000; // branches of the tree
const LEVELS_MOST = 24;
const DRAW_EVERY = 1000;
const OVER = 5; // seconds that a rate is taken over
const METRICS_EVERY = 5000;

// Figures of the topic filters of metrics.topics: totals, and what passes between two looks.
function metrics(host) {
  const before = new Map();
  let at = 0;

  async function look() {
    const { items } = await get("/topic-metrics").catch(() => ({ items: [] }));
    const now = performance.now();
    const passed = (item, figure) => (before.has(item.filter) ? `${rate(Math.max(0, item[figure] - before.get(item.filter)[figure]) * 1000 / (now - at))} /s` : "–");
    host.hidden = !items.length;
    put(host, h("h2", {}, "Topic metrics"), table("Topic metrics", [
      ["Topic filter", (item) => item.filter],
      ["In", (item) => passed(item, "received"), "number"],
      ["Out", (item) => passed(item, "sent"), "number"],
      ["Messages in", (item) => count(item.received), "number"],
      ["Bytes in", (item) => bytes(item.received_bytes), "number"],
      ["Messages out", (item) => count(item.sent), "number"],
      ["Bytes out", (item) => bytes(item.sent_bytes), "number"],
    ], items));
    for (const item of items) before.set(item.filter, item);
    at = now;
  }

  look();
  return setInterval(look, METRICS_EVERY);
}

export function show(host) {
  const client = new Client();
  const filter = h("input", { value: "#", name: "filter", spellcheck: "false", autocomplete: "off" });
  const total = h("p", { class: "small muted", role: "status" });
  const detail = h("section", { class: "card", "aria-label": "Topic" }, h("p", { class: "muted" }, "Choose a topic."));
  const tree = new Tree("Topics", { onselect: draw });
  const figures = h("section", { class: "card", "aria-label": "Topic metrics", hidden: true });
  const changed = new Set();
  let branches = 0, left = 0, messages = 0, chosen = null, listening = "";

  function take({ detail: message }) {
    messages += 1;
    let branch = null, topic = "";
    for (const [depth, level] of message.topic.split("/", LEVELS_MOST).entries()) {
      topic = depth ? `${topic}/${level}` : level;
      const known = branch ? branch.children : tree.roots;
      const isNew = !known.has(level);
      const next = isNew && branches >= TOPICS_MOST ? null : tree.child(branch, level, topic);
      if (!next) {
        left += 1;
        return;
      }
      if (isNew) Object.assign(next, { count: 0, before: 0, rate: 0, at: branches++ });
      next.count += 1;
      changed.add(next);
      branch = next;
    }
    branch.last = message;
    branch.when = Date.now();
  }

  function draw(branch) {
    chosen = branch;
    const last = branch.last;
    put(detail, h("h2", {}, branch.topic || "(empty)"),
      facts([
        ["Messages", `${count(branch.count)} here and below, ${rate(branch.rate)} /s`],
        ...(last ? [["Last", new Date(branch.when).toLocaleTimeString()], ["QoS", `${last.qos}${last.retain ? ", retained" : ""}`], ["Size", bytes(last.payload.length)], ...told(last.properties)] : []),
      ]),
      last ? h("pre", { class: "payload", tabindex: "0", "aria-label": "Last payload" }, shown(last.payload)) : null);
  }

  function tick() {
    for (const branch of changed) {
      branch.rate += ((branch.count - branch.before) * 1000 / DRAW_EVERY - branch.rate) / OVER;
      branch.before = branch.count;
      branch.detail.textContent = branch.rate >= 0.05 ? `${rate(branch.rate)} /s` : count(branch.count);
      if (branch.rate < 0.05) changed.delete(branch);
    }
    if (chosen) draw(chosen);
    total.textContent = `${count(messages)} messages, ${count(branches)} levels${left ? `; ${count(left)} messages for topics beyond what is shown` : ""}`;
  }

  function listen() {
    if (listening) client.unsubscribe(listening);
    listening = filter.value || "#";
    tree.clear();
    changed.clear();
    branches = left = messages = 0;
    chosen = null;
    client.subscribe(listening, 0).catch(() => {}); // the connection ended: it subscribes again when it is back
    tick();
  }

  client.addEventListener("message", take);
  put(host, head("Topics", "What passes now, and what is retained."), linked(client),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); listen(); } },
      h("div", { class: "grow" }, field("Topic filter", filter)), h("button", { type: "submit" }, "Watch")),
    h("div", { class: "split" }, h("section", { class: "card" }, total, tree.element), detail), figures);
  listen();
  const looks = metrics(figures);
  const timer = setInterval(tick, DRAW_EVERY);
  return () => {
    clearInterval(timer);
    clearInterval(looks);
    client.close();
  };
}
