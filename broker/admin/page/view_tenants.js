// Tenants: the figures and the limits of each.

import { h, head, put } from "./dom.js";
import { told } from "./limits.js";
import { List } from "./list.js";
import { who } from "./sign_in.js";
import { bytes, count } from "./format.js";

const COLUMNS = [
  ["Tenant", (t) => t.tenant],
  ["Clients", (t) => count(t.figures.connections), "number"],
  ["Sessions", (t) => count(t.figures.sessions), "number"],
  ["Subscriptions", (t) => count(t.figures.subscriptions), "number"],
  ["In", (t) => `${count(t.figures.received)}, ${bytes(t.figures.received_bytes)}`, "number"],
  ["Out", (t) => `${count(t.figures.sent)}, ${bytes(t.figures.sent_bytes)}`, "number"],
  ["Dropped", (t) => count(t.figures.dropped), "number"],
  ["Retained", (t) => `${count(t.figures.retained)}, ${bytes(t.figures.retained_bytes)}`, "number"],
  ["Limits of a node", (t) => told(t.limits).map(([name, words]) => `${name} ${words}`).join(", ") || "–"],
];

export function show(host) {
  const list = new List("Tenants", "/tenants", COLUMNS, {
    nothing: "There are no tenants.",
    onopen: ({ tenant }) => {
      if (!who.tenants.includes(tenant)) who.tenants = [...who.tenants, tenant].sort();
      who.chosen = tenant;
      location.hash = "#/clients";
    },
  });
  put(host, head("Tenants", "Over all nodes; messages since the nodes began."),
    h("div", { class: "bar" }, h("span", { class: "grow" }), h("button", { type: "button", class: "quiet", onclick: () => list.ask() }, "Refresh")),
    h("div", { class: "card" }, list.element));
  list.ask();
}
