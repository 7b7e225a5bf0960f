// Doctor: what may fail next at each node, the worst first, and its remedy.

import { get } from "./api.js";
import { empty, fault, h, head, put, silent } from "./dom.js";
import { table } from "./list.js";

const EVERY = 15_000;
const PILLS = { bad: "pill bad", weak: "pill warn", note: "pill", ok: "pill good" };

const COLUMNS = [
  ["Severity", (result) => h("span", { class: PILLS[result.severity] }, result.severity), "tight"],
  ["Node", (result) => result.node, "tight"],
  ["About", (result) => result.check, "tight"],
  ["Finding", (result) => result.finding],
  ["Remedy", (result) => result.remedy],
];

// The results of all nodes as one list, the worst first.
function results({ nodes, names, cluster }) {
  const worst = Object.keys(PILLS);
  const found = Object.entries(nodes).flatMap(([node, those]) => those.map((result) => ({ ...result, node: names[node] })));
  return [...cluster.map((result) => ({ ...result, node: "all" })), ...found].sort(
    (one, other) => worst.indexOf(one.severity) - worst.indexOf(other.severity),
  );
}

export function show(host) {
  const place = h("section", { class: "card", "aria-label": "Doctor" }, empty("Examining…"));
  put(host, head("Doctor", "What may fail next, the worst first. `flockmq doctor --json` has the same for a ticket."), place);

  async function look() {
    try {
      const found = await get("/doctor");
      put(place, silent(found.failures), table("Doctor", COLUMNS, results(found)));
    } catch (error) {
      put(place, fault(error));
    }
  }

  look();
  const timer = setInterval(look, EVERY);
  return () => clearInterval(timer);
}
