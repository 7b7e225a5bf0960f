// Shared subscriptions: who has room, what waits.

import { get, put as set, remove } from "./api.js";
import { sure } from "./dialogs.js";
import { empty, facts, fault, field, h, head, put, tell } from "./dom.js";
import { form } from "./group_form.js";
import { List, table } from "./list.js";
import { mayChange, scope } from "./sign_in.js";
import { bytes, count } from "./format.js";

const COLUMNS = [
  ["Group", (group) => (group.declared ? [group.group, " ", h("span", { class: "pill" }, "declared")] : group.group)],
  ["Connected", (group) => `${count(group.connected)} of ${count(group.subscribers)}`, "number"],
  ["Waiting", (group) => count(group.waiting), "number"],
  ["Unacknowledged", (group) => count(group.unacknowledged), "number"],
  ["Given", (group) => count(group.given), "number"],
  ["Returned", (group) => count(group.returned), "number"],
];
const SUBSCRIBERS = [
  ["Client", (subscriber) => subscriber.client_id],
  ["State", (subscriber) => h("span", { class: `pill ${subscriber.connected ? "good" : ""}` }, subscriber.connected ? "connected" : "away")],
  ["Session", (subscriber) => (subscriber.persistent ? "persistent" : "clean")],
  ["QoS", (subscriber) => subscriber.qos, "number"],
  ["Unacknowledged", (subscriber) => count(subscriber.unacknowledged), "number"],
];
const OLDEST = [["Place", (message) => message.place, "number"], ["Topic", (message) => message.topic], ["Size", (message) => bytes(message.bytes), "number"]];

function settings(values) {
  return [
    ["Window", count(values.window)],
    ["Limits", `${count(values.max_queued_messages)} messages, ${bytes(values.max_queued_bytes)}; ${values.when_full}`],
    ["Messages wait", values.expiry ? `at most ${count(values.expiry)} s` : "as long as they live"],
    ["Last value", values.last_value ? "only the newest message of each topic waits" : "no"],
    ["Strategy", values.strategy],
    ["Paused", values.paused ? "yes: subscribers get no new messages" : "no"],
    ["Dead letters", values.max_deliveries ? `after ${count(values.max_deliveries)} attempts, to ${values.dead_letter_topic || "nowhere"}` : "none"],
  ];
}

export function show(host, query) {
  const search = h("input", { type: "search", name: "search", value: query.get("search") ?? "", autocomplete: "off", spellcheck: "false" });
  const detail = h("section", { class: "card", "aria-label": "Group", hidden: true, tabindex: "-1" });
  const list = new List("Groups", "/groups", COLUMNS, { nothing: "There are no shared subscriptions.", onopen: (group) => open(group.group) });
  const ask = () => list.ask({ ...scope(), search: search.value });
  const declaring = form((group) => { open(group); ask(); });

  async function purge(group) {
    if (!(await sure("Drop the messages that wait?", `No subscriber gets the ${count(group.waiting)} messages of ${group.group}.`, "Drop"))) return;
    await remove("/group/messages", { group: group.group }).catch((error) => tell(error.message));
    open(group.group);
    ask();
  }

  async function end(group) {
    const what = group.subscribers ? "Its subscribers keep it, with the settings of [shared]." : `Nobody gets the ${count(group.waiting)} messages that wait.`;
    if (!(await sure("Declare the group no more?", what, "End"))) return;
    await remove("/group", { group: group.group }).catch((error) => tell(error.message));
    detail.hidden = true;
    ask();
  }

  async function pause(group) {
    await set(`/group/paused?${new URLSearchParams({ group: group.group })}`, { paused: !group.settings.paused }).catch((error) => tell(error.message));
    open(group.group);
  }

  const declared = (group) => group.declared && [
    h("button", { type: "button", class: "quiet", onclick: () => declaring.fill(group) }, "Change"),
    h("button", { type: "button", class: "quiet", onclick: () => pause(group) }, group.settings.paused ? "Go on" : "Pause"),
    h("button", { type: "button", class: "danger", onclick: () => end(group) }, "Declare no more"),
  ];

  async function open(name) {
    detail.hidden = false;
    put(detail, empty("Loading…"));
    try {
      const group = await get("/group", { group: name });
      put(detail, h("h2", {}, group.group),
        facts([["Share name", group.name], ["Topic filter", group.filter], ["Waiting", `${count(group.waiting)}, ${bytes(group.waiting_bytes)}`],
          ["Declared", group.declared ? "yes: messages wait without subscribers" : "no"], ...settings(group.settings)]),
        table("Subscribers", SUBSCRIBERS, group.sessions),
        group.oldest.length ? table("Oldest messages", OLDEST, group.oldest) : null,
        mayChange() && h("div", { class: "bar" }, declared(group),
          group.waiting ? h("button", { type: "button", class: "danger", onclick: () => purge(group) }, "Drop what waits") : null));
    } catch (error) {
      put(detail, fault(error));
    }
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }

  put(host, head("Shared subscriptions", "Each message goes to one of the subscribers."),
    h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); ask(); } },
      h("div", { class: "grow" }, field("Search", search)), h("button", { type: "submit", class: "quiet" }, "Refresh")),
    detail, h("div", { class: "card" }, list.element), mayChange() && declaring.element);
  ask();
}
