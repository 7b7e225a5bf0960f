// Messages to $delayed/SECONDS/TOPIC that wait until they are due, and transactions that wait for their commit.

import { remove } from "./api.js";
import { sure } from "./dialogs.js";
import { h, head, put, tell } from "./dom.js";
import { List } from "./list.js";
import { mayChange, scope, who } from "./sign_in.js";
import { bytes, span } from "./format.js";

export function show(host) {
  const list = new List("Delayed messages", "/delayed", [
    ["Topic", (message) => message.topic], ["Due in", (message) => span(message.due_in), "number"], ["From", (message) => message.client_id || "–"],
    ["QoS", (message) => `${message.qos}${message.retain ? ", retained" : ""}`, "number"], ["Size", (message) => bytes(message.bytes), "number"],
    ...(mayChange() ? [["Action", (message) => h("button", { type: "button", class: "quiet", "aria-label": `Cancel the message to ${message.topic}`, onclick: () => cancel(message) }, "Cancel")]] : []),
  ], { nothing: "No message waits." });
  const parts = new List("Transactions", "/transactions", [
    ["Transaction", (part) => part.name], ["Number", (part) => part.number, "number"], ["Part", (part) => part.part],
    ["From", (part) => [part.tenant, part.user].filter(Boolean).join(": ") || "–"], ["Chunks", (part) => part.chunks, "number"],
    ["Size", (part) => bytes(part.bytes), "number"], ["Dropped in", (part) => span(part.expires_in), "number"],
  ], { nothing: "No transaction waits for its commit." });
  const ask = () => {
    list.ask(scope());
    if (!who.tenant) parts.ask();
  };

  async function cancel(message) {
    if (!(await sure("Cancel the message?", `${message.topic} does not get it.`, "Drop"))) return;
    await remove("/delayed", { id: message.id }).catch((error) => tell(error.message));
    ask();
  }

  put(host, head("Delayed messages", "They are published when their delay is over, the earliest first."),
    h("div", { class: "bar" }, h("span", { class: "grow" }), h("button", { type: "button", class: "quiet", onclick: ask }, "Refresh")),
    h("div", { class: "card" }, list.element),
    ...(who.tenant ? [] : [h("div", { class: "card" }, h("h2", {}, "Transactions"), parts.element)]));
  ask();
}
