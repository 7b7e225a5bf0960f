// Retained messages: a tree that is read level by level; a message is shown, and cleared, with all below it if asked for.

import { get, remove } from "./api.js";
import { sure } from "./dialogs.js";
import { empty, facts, fault, field, h, head, put, tell } from "./dom.js";
import { bytesOf, shown } from "./payload.js";
import { SHOWN_MOST, Tree } from "./tree.js";
import { mayChange } from "./sign_in.js";
import { bytes, count, some } from "./format.js";

const AT_ONCE = 100;

export function show(host) {
  const detail = h("section", { class: "card", "aria-label": "Message" }, h("p", { class: "muted" }, "Choose a topic."));
  const place = h("section", { class: "card" });
  const tree = new Tree("Retained messages", { onselect: open, onexpand: (branch) => load(branch) });
  const filter = h("input", { name: "filter", placeholder: "site/+/status", required: true, spellcheck: "false", autocomplete: "off" });

  async function load(parent, after) {
    const asked = { limit: AT_ONCE, after, ...(parent ? { parent: parent.topic } : {}) };
    try {
      const found = await get("/retained", asked);
      if (!parent && !after) put(place, found.items.length ? tree.element : empty("Nothing is retained."));
      for (const item of found.items) {
        const branch = tree.child(parent, item.level, item.topic);
        if (!branch) {
          tree.note(parent, `There are more than these ${SHOWN_MOST}.`);
          return;
        }
        Object.assign(branch, { bytes: item.bytes, below: item.below });
        if (item.below) branch.mayExpand();
        branch.detail.textContent = item.below ? `${count(item.below)}${item.below_is_least ? " or more" : ""}` : bytes(item.bytes ?? 0);
      }
      if (found.next !== null) {
        await load(parent, found.next);
        return;
      }
    } catch (error) {
      put(parent ? detail : place, fault(error));
    }
  }

  async function open(branch) {
    const clear = branch.below
      ? [`${branch.topic}/#`, `Clear ${branch.topic} and all below`]
      : [branch.topic, "Clear"];
    const buttons = h("div", { class: "bar" }, h("span", { class: "grow" }),
      mayChange() && h("button", { type: "button", class: "danger", disabled: branch.topic.split("/")[0] === "$SYS", onclick: () => clearing(clear[0]) }, clear[1]));
    if (branch.bytes === null) {
      put(detail, h("h2", {}, branch.topic), h("p", { class: "muted" }, "No message of its own."), buttons);
      return;
    }
    try {
      const message = await get("/retained/message", { topic: branch.topic });
      put(detail, h("h2", {}, branch.topic), facts([["QoS", String(message.qos)], ["Size", bytes(message.bytes)]]),
        h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" }, shown(bytesOf(message))), buttons);
    } catch (error) {
      put(detail, fault(error));
    }
  }

  async function clearing(topic) {
    if (!(await sure("Clear retained messages?", `What is retained for ${topic} goes, on all nodes, for good. Who is subscribed is told by an empty message.`, "Clear"))) return;
    try {
      const found = await remove("/retained", { filter: topic });
      tell(`${some(found.cleared, "message")} cleared.`);
    } catch (error) {
      tell(error.message);
    }
    put(detail, h("p", { class: "muted" }, "Choose a topic."));
    again();
  }

  function again() {
    tree.clear();
    return load(null);
  }

  const form = h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); clearing(filter.value); } },
    mayChange() && [h("div", { class: "grow" }, field("Topic filter", filter)), h("button", { type: "submit", class: "danger" }, "Clear what matches")],
    h("button", { type: "button", class: "quiet", onclick: again }, "Refresh"));
  put(host, head("Retained messages"), form, h("div", { class: "split" }, place, detail));
  put(place, empty("Loading…"));
  load(null);
}
