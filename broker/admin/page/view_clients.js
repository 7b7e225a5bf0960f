// Clients and sessions: found, looked at, kicked, ended.

import { get, remove } from "./api.js";
import { sure } from "./dialogs.js";
import { empty, facts, fault, field, h, head, put, tell } from "./dom.js";
import { List, table } from "./list.js";
import { mayChange, scope } from "./sign_in.js";
import { bytes, count, some, span } from "./format.js";

const COLUMNS = [
  ["Client", (s) => s.client_id],
  ["State", (s) => [h("span", { class: `pill ${s.connected ? "good" : ""}` }, s.connected ? "connected" : "away"),
    s.stuck && " ", s.stuck && h("span", { class: "pill warn", title: held(s.stuck) }, "stuck")]],
  ["User", (s) => s.username || "–"],
  ["Address", (s) => s.address || "–"],
  ["MQTT", (s) => s.protocol?.replace("MQTT ", "") || "–"],
  ["Subscriptions", (s) => count(s.subscriptions), "number"],
  ["Queued", (s) => count(s.queued_messages), "number"],
];

function held({ packet_id: id, topic, seconds, waiting }) {
  return `${some(waiting, "message")} behind packet ${id}${topic && ` of ${topic}`}, not acknowledged for ${span(seconds)}`;
}

export function show(host, query) {
  const search = h("input", { type: "search", name: "search", value: query.get("search") ?? "", autocomplete: "off", spellcheck: "false" });
  const by = h("select", {}, ...[["client_id", "client id"], ["username", "user name"], ["address", "address"]].map(
    ([value, words]) => h("option", { value }, words)));
  const offline = h("input", { type: "checkbox" });
  const detail = h("section", { class: "card", "aria-label": "Client", hidden: true, tabindex: "-1" });
  const options = { nothing: "No client fits.", onopen: (session) => open(session.client_id) };
  const lists = { "/clients": new List("Clients", "/clients", COLUMNS, options), "/sessions": new List("Sessions", "/sessions", COLUMNS, options) };
  const place = h("div", { class: "card" });

  const ask = () => {
    const list = lists[offline.checked ? "/sessions" : "/clients"];
    put(place, list.element);
    return list.ask({ ...scope(), search: search.value, by: by.value });
  };
  let typed;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(ask, 200);
  });
  by.addEventListener("change", ask);
  offline.addEventListener("change", ask);

  async function open(id) {
    detail.hidden = id === null;
    if (id === null) return;
    put(detail, empty("Loading…"));
    try {
      put(detail, about(await get("/client", { client_id: id }), ask, open));
    } catch (error) {
      put(detail, fault(error));
    }
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }

  const form = h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); ask(); } },
    h("div", { class: "grow" }, field("Search", search)), field("in", by), field("also those that are away", offline, "check"),
    h("button", { type: "submit", class: "quiet" }, "Refresh"));
  put(host, head("Clients & sessions"), form, detail, place);
  ask();
  if (query.get("client")) open(query.get("client"));
}

export const SUBSCRIPTION = [
  ["Topic filter", (s) => s.filter],
  ["Options", (s) => [s.no_local && "no local", s.retain_as_published && "retain as published"].filter(Boolean).join(", ") || "–"],
  ["Identifier", (s) => (s.identifier ? String(s.identifier) : "–"), "number"],
  ["QoS", (s) => String(s.qos), "number"],
];

function session(client) {
  if (!client.persistent) return "ends with its connection";
  if (client.expires_in != null) return `expires in ${span(client.expires_in)}`;
  return client.session_expiry && client.session_expiry < 0xffffffff ? `outlives its connection by ${span(client.session_expiry)}` : "persistent";
}

function about(client, changed, reopen) {
  const id = { client_id: client.client_id };
  const act = async (title, text, action, path, done) => {
    if (!(await sure(title, text, action))) return;
    try {
      await remove(path, id);
      tell(done);
    } catch (error) {
      tell(error.message);
    }
    changed();
    reopen(client.persistent && path !== "/session" ? client.client_id : null);
  };
  const kick = () => act(`Kick ${client.client_id}?`, "Its connection ends now; it may come back.", "Kick", "/client/connection", "The client was kicked.");
  const end = () => act(`End the session of ${client.client_id}?`,
    `Its subscriptions and ${some(client.queued_messages, "queued message")} are forgotten, for good.`, "End session", "/session", "The session has ended.");
  return [
    h("h2", {}, client.client_id),
    facts([
      ["State", client.connected ? (client.node ? `connected to ${client.node}` : "connected") : "away"], ["Address", client.address || "–"],
      ["User", client.username || "–"], ["Protocol", client.protocol || "–"],
      ["Session", session(client)],
      ...(client.receive_maximum ? [["Takes", `${some(client.receive_maximum, "message")} at a time`]] : []),
      ...(client.authentication_method ? [["Authenticated by", client.authentication_method]] : []),
      ...(client.maximum_packet_size ? [["Largest packet", bytes(client.maximum_packet_size)]] : []),
      ["Queued", `${some(client.queued_messages, "message")}, ${bytes(client.queued_bytes)}`],
      ...(client.stuck ? [["Stuck", held(client.stuck)]] : []),
    ]),
    h("div", { class: "bar middle" }, h("a", { href: `#/trace?${new URLSearchParams({ client: client.client_id })}` }, "Follow its messages"),
      h("span", { class: "grow" }), mayChange() && h("button", { type: "button", class: "danger", disabled: !client.connected, onclick: kick }, "Kick"),
      mayChange() && h("button", { type: "button", class: "danger", onclick: end }, "End session")),
    h("h3", {}, "Subscriptions"),
    client.filters.length
      ? table("Subscriptions", SUBSCRIPTION, client.filters)
      : empty("It has none."),
  ];
}
