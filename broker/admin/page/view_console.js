// Console: subscribe and publish as a client of the broker.

import { Client } from "./client.js";
import { NOBODY } from "./packets.js";
import { empty, field, h, head, put, tell } from "./dom.js";
import { linked } from "./link.js";
import { shown } from "./payload.js";
import { told } from "./properties.js";
import { bytes } from "./format.js";

const KEPT = 200; // messages that are shown
const LINES_A_DRAW = 50;

const qosChoice = () => h("select", { name: "qos" }, ...[0, 1, 2].map((qos) => h("option", { value: qos }, `QoS ${qos}`)));

// Fields for the properties of MQTT 5.0, and what they hold as a list of [identifier, value].
function propertyFields() {
  const input = (name, more = {}) => h("input", { name, spellcheck: "false", autocomplete: "off", ...more });
  const contentType = input("content-type", { placeholder: "application/json" });
  const responseTopic = input("response-topic", { placeholder: "site/answers" });
  const correlation = input("correlation-data");
  const expiry = input("expiry", { type: "number", min: "1", max: "4294967295", placeholder: "never" });
  const own = h("textarea", { name: "user-properties", spellcheck: "false", placeholder: "name: value" });
  const element = h("details", {}, h("summary", {}, "Properties"), field("Content type", contentType), field("Response topic", responseTopic),
    field("Correlation data, as text", correlation), field("Expires after, in seconds", expiry), field("User properties, one a line", own));
  const read = () => {
    const found = [[0x03, contentType.value], [0x08, responseTopic.value], [0x09, correlation.value]].filter(([, text]) => text);
    if (expiry.value) found.unshift([0x02, Number(expiry.value)]);
    for (const line of own.value.split("\n").filter((line) => line.trim())) {
      const [, name, value] = /^([^:]*):\s*(.*)$/.exec(line) ?? [];
      if (name === undefined) throw new Error(`A user property is "name: value", not "${line}".`);
      found.push([0x26, [name.trim(), value]]);
    }
    return found;
  };
  return { element, read };
}

export function show(host) {
  const client = new Client();
  const filters = h("ul", { class: "legend", "aria-label": "Subscriptions" });
  const nothing = empty("Messages appear here.");
  const log = h("ul", { class: "log", "aria-label": "Messages", tabindex: "0" });
  const missed = h("p", { class: "small muted" });
  let waiting = [], skipped = 0, timer = null;

  function draw() {
    timer = null;
    const lines = waiting.slice(-LINES_A_DRAW);
    skipped += waiting.length - lines.length;
    waiting = [];
    log.prepend(...lines.map(line).reverse());
    while (log.children.length > KEPT) log.lastChild.remove();
    nothing.hidden = log.children.length > 0;
    missed.textContent = skipped ? `${skipped} more came too fast to be shown` : "";
  }

  client.addEventListener("message", ({ detail }) => {
    waiting.push({ ...detail, when: new Date() });
    timer ??= setTimeout(draw, 100);
  });

  async function subscribe(filter, qos) {
    const { reason } = await client.subscribe(filter, qos).catch((error) => ({ reason: error.message }));
    if (reason) {
      client.filters.delete(filter);
      tell(`${filter}: ${reason}.`);
      return;
    }
    const drop = () => {
      client.unsubscribe(filter);
      item.remove();
    };
    const item = h("li", { class: "s0" }, `${filter} `, h("button", { type: "button", class: "quiet", "aria-label": `Unsubscribe from ${filter}`, onclick: drop }, "×"));
    filters.append(item);
  }

  const topicFilter = h("input", { name: "filter", required: true, placeholder: "site/#", spellcheck: "false", autocomplete: "off" });
  const subscribeQos = qosChoice();
  const subscribing = h("form", { class: "bar", "aria-label": "Subscribe", onsubmit: (event) => { event.preventDefault(); subscribe(topicFilter.value, Number(subscribeQos.value)); } },
    h("div", { class: "grow" }, field("Topic filter", topicFilter)), field("at most", subscribeQos), h("button", { type: "submit" }, "Subscribe"));

  const topic = h("input", { name: "topic", required: true, placeholder: "site/lamp", spellcheck: "false", autocomplete: "off" });
  const payload = h("textarea", { name: "payload", spellcheck: "false" });
  const publishQos = qosChoice();
  const retain = h("input", { type: "checkbox", name: "retain" });
  const properties = propertyFields();
  const publish = async (event) => {
    event.preventDefault();
    try {
      const done = await client.publish(topic.value, payload.value, Number(publishQos.value), retain.checked, properties.read());
      tell(!done ? "Sent." : done.code === NOBODY ? "Acknowledged by the broker; nobody has subscribed to it." : "Acknowledged by the broker.");
    } catch (error) {
      tell(error.message);
    }
  };
  const publishing = h("form", { class: "stack", "aria-label": "Publish", onsubmit: publish }, field("Topic name", topic), field("Payload", payload), properties.element,
    h("div", { class: "bar" }, field("with", publishQos), field("retain", retain, "check"), h("span", { class: "grow" }), h("button", { type: "submit" }, "Publish")));

  const clear = () => {
    log.replaceChildren();
    skipped = 0;
    draw();
  };
  put(host, head("Console", "A client in this page, over WebSocket."), linked(client),
    h("div", { class: "split" },
      h("section", { class: "card" }, h("h2", {}, "Publish"), publishing),
      h("section", { class: "card" }, h("h2", {}, "Subscribe"), subscribing, filters,
        h("div", { class: "bar" }, missed, h("span", { class: "grow" }), h("button", { type: "button", class: "quiet", onclick: clear }, "Clear")), nothing, log)));
  return () => {
    clearTimeout(timer);
    client.close();
  };
}

function line(message) {
  const about = `${message.when.toLocaleTimeString()} · QoS ${message.qos}${message.retain ? " · retained" : ""} · ${bytes(message.payload.length)}`;
  const properties = told(message.properties).map(([name, text]) => `${name}: ${text}`).join(" · ");
  return h("li", {}, h("div", {}, h("span", { class: "topic" }, message.topic), " ", h("span", { class: "small muted" }, about)),
    properties ? h("div", { class: "small muted" }, properties) : null,
    h("div", { class: "mono" }, shown(message.payload, { pretty: false, most: 600 })));
}
