// Links to other brokers.

import { get } from "./api.js";
import { empty, fault, h, head, put, silent } from "./dom.js";
import { table } from "./list.js";
import { count, moment } from "./format.js";

const COLUMNS = [
  ["Link", (link) => link.name],
  ["State", (link) => [h("span", { class: "pill" }, link.state), link.reason ? ` ${link.reason}` : ""]],
  ["Since", (link) => moment(link.since)],
  ["Broker", (link) => link.address],
  ["Node", (link) => link.node],
  ["Waiting", (link) => count(link.waiting), "number"],
  ["Out", (link) => count(link.out.messages), "number"],
  ["In", (link) => count(link.in.messages), "number"],
  ["Wanted there", (link) => (link.wanted ? count(link.wanted.there) : ""), "number"],
  ["Wanted here", (link) => (link.wanted ? count(link.wanted.here) : ""), "number"],
];

export function show(host) {
  const place = h("section", { class: "card", "aria-label": "Links" }, empty("Loading…"));
  put(host, head("Links", "Topics that other brokers have, too: [links.NAME] in the configuration."), place);

  async function look() {
    try {
      const { items, failures } = await get("/links");
      put(place, silent(failures), items.length ? table("Links", COLUMNS, items) : empty("There are no links."));
    } catch (error) {
      put(place, fault(error));
    }
  }

  look();
  const timer = setInterval(look, 5000);
  return () => clearInterval(timer);
}
