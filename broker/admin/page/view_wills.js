// Wills that wait: of clients that have gone, until their delay is over.

import { remove } from "./api.js";
import { sure } from "./dialogs.js";
import { h, head, put, tell } from "./dom.js";
import { List } from "./list.js";
import { mayChange, scope } from "./sign_in.js";
import { bytes, span } from "./format.js";

export function show(host) {
  const list = new List("Wills", "/wills", [
    ["Client", (will) => will.client_id], ["Topic", (will) => will.topic], ["Due in", (will) => span(will.due_in), "number"],
    ["QoS", (will) => `${will.qos}${will.retain ? ", retained" : ""}`, "number"], ["Size", (will) => bytes(will.bytes), "number"],
    ...(mayChange() ? [["Action", (will) => h("button", { type: "button", class: "quiet", "aria-label": `Discard the will of ${will.client_id}`, onclick: () => discard(will) }, "Discard")]] : []),
  ], { nothing: "No will waits." });
  const ask = () => list.ask(scope());

  async function discard(will) {
    if (!(await sure("Discard the will?", `${will.topic} does not get the will of ${will.client_id}.`, "Discard"))) return;
    await remove("/will", { client_id: will.client_id }).catch((error) => tell(error.message));
    ask();
  }

  put(host, head("Wills", "They wait for their clients, and are published when the delay is over."),
    h("div", { class: "bar" }, h("span", { class: "grow" }), h("button", { type: "button", class: "quiet", onclick: ask }, "Refresh")),
    h("div", { class: "card" }, list.element));
  ask();
}
