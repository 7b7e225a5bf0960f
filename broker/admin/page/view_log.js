// Log: how much the nodes write, and where they listen.

import { get, put as change } from "./api.js";
import { empty, fault, field, h, head, put, silent, tell } from "./dom.js";
import { table } from "./list.js";

const LEVELS = ["debug", "info", "warning", "error"];

export function show(host) {
  const levels = h("section", { class: "card", "aria-labelledby": "levels" });
  const listeners = h("section", { class: "card", "aria-labelledby": "listeners" });
  const level = h("select", { name: "level" }, ...LEVELS.map((name) => h("option", { value: name }, name)));

  function draw({ nodes, failures }) {
    const rows = Object.entries(nodes);
    if (rows.length) level.value = rows[0][1];
    put(levels, h("h2", { id: "levels" }, "Level"), silent(failures),
      table("Levels", [["Node", ([id]) => id], ["The least that it writes", ([, name]) => name]], rows));
  }

  async function set(event) {
    event.preventDefault();
    try {
      draw(await change("/log-level", { level: level.value }));
      tell(`All nodes write ${level.value} and above, until they are started again or read their configuration.`);
    } catch (error) {
      tell(error.message);
    }
  }

  async function look() {
    try {
      draw(await get("/log-level"));
      const { nodes } = await get("/listeners");
      const rows = Object.entries(nodes).flatMap(([id, found]) => found.map((listener) => ({ id, ...listener })));
      put(listeners, h("h2", { id: "listeners" }, "Listeners"),
        table("Listeners", [["Address", (row) => row.address], ["For", (row) => row.kind], ["Node", (row) => row.id]], rows));
    } catch (error) {
      put(levels, fault(error));
    }
  }

  put(levels, empty("Loading…"));
  put(host, head("Log & listeners"), h("form", { class: "bar", onsubmit: set }, field("Level of all nodes", level), h("button", { type: "submit" }, "Set")),
    levels, listeners);
  look();
}
