// Publish a message by the API: the console, a client of its own, is not for tenants.

import { post } from "./api.js";
import { field, h, head, put, tell } from "./dom.js";

export function show(host) {
  const topic = h("input", { name: "topic", required: true, spellcheck: "false", autocomplete: "off" });
  const payload = h("textarea", { name: "payload", spellcheck: "false" });
  const qos = h("select", { name: "qos" }, ...[0, 1, 2].map((n) => h("option", { value: String(n) }, `QoS ${n}`)));
  const retain = h("input", { type: "checkbox", name: "retain" });

  async function publish(event) {
    event.preventDefault();
    try {
      await post("/messages", { topic: topic.value, payload: payload.value, qos: Number(qos.value), retain: retain.checked });
      tell(`Published to ${topic.value}.`);
    } catch (error) {
      tell(error.message);
    }
  }

  put(host, head("Publish"),
    h("form", { class: "stack card", "aria-label": "Publish", onsubmit: publish }, field("Topic name", topic), field("Payload", payload),
      h("div", { class: "bar" }, field("with", qos), field("retain", retain, "check"), h("span", { class: "grow" }), h("button", { type: "submit" }, "Publish"))));
}
