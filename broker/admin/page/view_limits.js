// Limits: how full each is, and what happens when it is reached.

import { get } from "./api.js";
import { empty, fault, h, head, put, silent } from "./dom.js";
import { table } from "./list.js";
import { bytes, count } from "./format.js";

const EVERY = 5000;
const ALMOST_FULL = 0.8;

const amount = (n, unit) => (n === null ? "–" : unit === "bytes" ? bytes(n) : count(n));

function part(limit) {
  if (limit.full === null) return "–";
  const kind = limit.full >= 1 ? "pill bad" : limit.full >= ALMOST_FULL ? "pill warn" : "pill";
  return h("span", { class: kind }, `${Math.round(limit.full * 100)} %`);
}

const COLUMNS = [
  ["Limit", (limit) => limit.name, "tight"],
  ["Full", part, "number tight"],
  ["Used", (limit) => amount(limit.used, limit.unit), "number tight"],
  ["Of", (limit) => (limit.limit === null ? "no limit" : `${amount(limit.limit, limit.unit)}${limit.unit === "bytes" ? "" : ` ${limit.unit}`}`), "number tight"],
  ["Fullest", (limit) => (limit.whose ? `${limit.scope} ${limit.whose}` : "")],
  ["Node", (limit) => limit.node],
  ["When it is reached", (limit) => h("span", {}, limit.when_reached, " ", h("span", { class: "muted" }, limit.change))],
];

export function show(host) {
  const place = h("section", { class: "card", "aria-label": "Limits" }, empty("Loading…"));
  put(host, head("Limits", "The fullest first. A limit of each session, group, tenant and so on shows the fullest one."), place);

  async function look() {
    try {
      const { items, failures } = await get("/limits");
      put(place, silent(failures), table("Limits", COLUMNS, items));
    } catch (error) {
      put(place, fault(error));
    }
  }

  look();
  const timer = setInterval(look, EVERY);
  return () => clearInterval(timer);
}
