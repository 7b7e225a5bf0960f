// What the forms of users and of roles share: texts of several lines, and a check of a right.

import { get } from "./api.js";
import { fault, field, h, put } from "./dom.js";

export const lines = (control) => control.value.split("\n").map((line) => line.trim()).filter(Boolean);
export const several = (name, value = []) => h("textarea", { name, spellcheck: "false", autocomplete: "off", rows: "4" }, value.join("\n"));
export const input = (name, properties = {}) => h("input", { name, spellcheck: "false", autocomplete: "off", ...properties });
export const tick = (name, label, checked = false) => {
  const control = h("input", { type: "checkbox", name, checked });
  return [control, field(label, control, "check")];
};

// A question whether a client may do something, and by which rule.
export function check() {
  const by = h("select", { name: "by" }, h("option", { value: "username" }, "clients of the user"), h("option", { value: "client_id" }, "the connected client"));
  const who = input("who", { required: true });
  const action = h("select", { name: "action" }, ...["publish", "subscribe", "read"].map((value) => h("option", { value }, value)));
  const topic = input("topic", { required: true });
  const answer = h("p", { role: "status" });

  async function ask(event) {
    event.preventDefault();
    try {
      const found = await get("/rules/check", { [by.value]: who.value, action: action.value, topic: topic.value });
      const { kind, name, line } = found.source ?? {};
      const place = found.source && (line ? `line ${line} of ${name}` : `${kind} ${name}`);
      put(answer, h("span", { class: `pill ${found.allowed ? "good" : "bad"}` }, found.allowed ? "yes" : "no"), ` ${found.reason}`,
        place && [": ", h("code", {}, found.rule), ` (${place})`]);
    } catch (error) {
      put(answer, fault(error));
    }
  }

  return h("form", { class: "card", "aria-label": "Check a right", onsubmit: ask }, h("h2", {}, "May a client do this, and by which rule?"),
    h("div", { class: "bar" }, field("May", by), h("div", { class: "grow" }, field("Name", who)), field("Action", action),
      h("div", { class: "grow" }, field("Topic", topic)), h("button", { type: "submit" }, "Check")), answer);
}
