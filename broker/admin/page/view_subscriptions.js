// Subscriptions: which client has which filter.

import { field, h, head, put } from "./dom.js";
import { List } from "./list.js";
import { SUBSCRIPTION } from "./view_clients.js";
import { scope } from "./sign_in.js";

const [FILTER, ...OPTIONS] = SUBSCRIPTION;

export function show(host, query) {
  const search = h("input", { type: "search", name: "search", value: query.get("search") ?? "", autocomplete: "off", spellcheck: "false" });
  const list = new List("Subscriptions", "/subscriptions", [FILTER, ["Client", (s) => s.client_id], ...OPTIONS], {
    nothing: "No subscription fits.",
    onopen: (found) => { location.hash = `#/clients?${new URLSearchParams({ client: found.client_id })}`; },
  });
  const ask = () => list.ask({ ...scope(), search: search.value });
  put(host, head("Subscriptions"),
    h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); ask(); } },
      h("div", { class: "grow" }, field("Topic filter has", search)), h("button", { type: "submit", class: "quiet" }, "Refresh")),
    h("div", { class: "card" }, list.element));
  ask();
}
