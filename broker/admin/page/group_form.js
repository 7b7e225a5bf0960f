// The form that declares a group, or gives a declared one other settings. Settings that stay empty are those of [shared].

import { put } from "./api.js";
import { field, h, tell } from "./dom.js";

const number = (name, label, min) => [name, label, h("input", { type: "number", name, min: String(min) }), Number];
const choice = (name, label, ...options) => [name, label,
  h("select", { name }, ...["", ...options].map((value) => h("option", { value }, value || "as configured"))), String];
const yes = (name, label) => [name, label, choice(name, label, "yes", "no")[2], (value) => value === "yes"];

// `changed`: called when a group has been declared.
export function form(changed) {
  const name = h("input", { name: "name", required: true, spellcheck: "false", autocomplete: "off", pattern: "[^\\/+#]+" });
  const filter = h("input", { name: "filter", required: true, spellcheck: "false", autocomplete: "off" });
  const settings = [
    number("window", "Window", 1), number("max_queued_messages", "Most messages that wait", 1), number("max_queued_bytes", "Most bytes that wait", 1024),
    choice("when_full", "When full", "drop-old", "drop-new"), number("expiry", "Seconds to wait at most", 0), yes("last_value", "Only the newest of each topic"),
    choice("strategy", "Strategy", "rotation", "topic", "publisher"), number("max_deliveries", "Attempts to deliver", 0),
    ["dead_letter_topic", "Topic of dead letters", h("input", { name: "dead_letter_topic", spellcheck: "false", autocomplete: "off" }), String],
  ];
  let paused = {};
  const element = h("form", { class: "stack card", "aria-label": "Declare a group", onsubmit: declare },
    h("h2", {}, "Declare a group"),
    h("div", { class: "bar" }, field("Share name", name), h("div", { class: "grow" }, field("Topic filter", filter))),
    h("div", { class: "bar" }, ...settings.map(([, label, control]) => field(label, control)), h("span", { class: "grow" }), h("button", { type: "submit" }, "Declare")));

  async function declare(event) {
    event.preventDefault();
    const group = `$share/${name.value}/${filter.value}`;
    const given = settings.filter(([, , control]) => control.value !== "").map(([key, , control, read]) => [key, read(control.value)]);
    try {
      await put(`/group?${new URLSearchParams({ group })}`, { ...paused, ...Object.fromEntries(given) });
      element.reset();
      paused = {};
      tell(`${group} is declared.`);
      changed(group);
    } catch (error) {
      tell(error.message);
    }
  }

  // Show the settings of a group's own, to be changed. The others stay empty: they follow [shared].
  function fill(group) {
    const shown = (value) => (typeof value === "boolean" ? (value ? "yes" : "no") : value);
    for (const [key, , control] of settings) control.value = group.own.includes(key) ? shown(group.settings[key]) : "";
    [name.value, filter.value] = [group.name, group.filter];
    paused = group.own.includes("paused") ? { paused: group.settings.paused } : {};
    element.scrollIntoView({ block: "nearest" });
    name.focus();
  }

  return { element, fill };
}
