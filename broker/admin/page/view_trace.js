// Trace: where did my message go? Each step at all nodes, from the moment that one asks.

import { events } from "./api.js";
import { empty, fault, field, h, head, put } from "./dom.js";
import { bytes, count } from "./format.js";

const KEPT = 300; // steps that are shown
const WORDS = {
  received: "received from", stored: "stored for", answered: "answered to", retained: "retained", forwarded: "forwarded to node",
  queued: "queued for", sent: "sent to", acknowledged: "acknowledged by", dropped: "dropped for",
};

export function show(host, query) {
  const client = h("input", { name: "client", value: query.get("client") ?? "", spellcheck: "false", autocomplete: "off" });
  const topic = h("input", { name: "topic", value: query.get("topic") ?? "", spellcheck: "false", autocomplete: "off", placeholder: "site/#" });
  const button = h("button", { type: "submit" }, "Follow");
  const state = h("p", { class: "small muted", role: "status" }, "Name a client, a topic filter, or both.");
  const nothing = empty("Steps appear here.");
  const log = h("ul", { class: "log", "aria-label": "Steps", tabindex: "0" });
  let following = null, steps = 0, missed = 0;

  function take(event) {
    steps += event.steps.length;
    missed += event.missed;
    log.prepend(...event.steps.slice(-KEPT).map(line).reverse());
    while (log.children.length > KEPT) log.lastChild.remove();
    nothing.hidden = log.children.length > 0;
    state.textContent = `Following: ${count(steps)} steps${missed ? `, ${count(missed)} were too many to be told` : ""}.`;
  }

  async function follow() {
    const mine = (following = new AbortController());
    steps = missed = 0;
    log.replaceChildren();
    nothing.hidden = false;
    button.textContent = "Stop";
    state.textContent = "Asking all nodes…";
    const wanted = new URLSearchParams();
    if (client.value) wanted.set("client", client.value);
    if (topic.value) wanted.set("topic", topic.value);
    try {
      for await (const event of events(`/trace?${wanted}`, mine.signal)) take(event);
      state.textContent = "The node has ended it.";
    } catch (error) {
      if (mine.signal.aborted) state.textContent = `Stopped after ${count(steps)} steps.`;
      else put(state, fault(error));
    }
    if (following === mine) stop();
  }

  function stop() {
    following?.abort();
    following = null;
    button.textContent = "Follow";
  }

  put(host, head("Trace", "Where did my message go? Nothing is noted while nobody asks."),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); following ? stop() : follow(); } },
      h("div", { class: "grow" }, field("Client", client)), h("div", { class: "grow" }, field("Topic filter", topic)), button),
    h("section", { class: "card", "aria-label": "Trace" }, state, nothing, log));
  if (client.value || topic.value) follow();
  return stop;
}

function line(step) {
  const time = new Date(step.time * 1000).toISOString().slice(11, 23);
  const kind = step.step === "dropped" ? "pill bad" : step.step === "acknowledged" ? "pill good" : "pill";
  return h("li", {},
    h("span", { class: "mono muted" }, time), " ", h("span", { class: kind }, WORDS[step.step] ?? step.step), " ",
    h("b", {}, step.client), step.detail ? h("span", { class: "bad" }, ` ${step.detail}`) : null,
    h("div", { class: "small muted" }, `${step.topic} · message ${step.message} · QoS ${step.qos} · ${bytes(step.size)}${step.node ? ` · ${step.node}` : ""}`));
}
