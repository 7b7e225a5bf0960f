// Audit log: the changes of the broker, the newest first.

import { forReading } from "./dialogs.js";
import { field, h, head, put } from "./dom.js";
import { moment } from "./format.js";
import { List } from "./list.js";

const WAYS = { api: "API", page: "page", command: "command", agent: "agent", signal: "signal", file: "file" };
const RESULTS = [["", "all"], ["done", "done"], ["refused", "refused"], ["failed", "failed"], ["unknown", "unknown"]];
const DETAILS = [["Arguments", "arguments"], ["Before", "before"], ["After", "after"]];
const words = (operation) => operation.replaceAll("_", " ");
const author = (record) => record.by + (record.tenant ? ` of ${record.tenant}` : "") || "–";

function open(record) {
  const lines = [
    ["At", moment(record.time)], ["By", author(record)], ["By means of", record.credential], ["Role", record.role], ["Address", record.address], ["Way", WAYS[record.via]],
    ["Node", record.node], ["Result", record.result], ["Reason", record.detail],
  ].filter(([, value]) => value);
  const values = DETAILS.filter(([, name]) => record[name] !== null);
  forReading(words(record.operation), h("div", { class: "stack" },
    h("dl", {}, ...lines.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    ...values.map(([title, name]) => h("section", {}, h("h3", {}, title), h("pre", {}, JSON.stringify(record[name], null, 2))))));
}

export function show(host, query) {
  const by = h("input", { name: "by", value: query.get("by") ?? "", spellcheck: "false", autocomplete: "off" });
  const result = h("select", { name: "result" }, ...RESULTS.map(([value, text]) => h("option", { value }, text)));
  const list = new List("Changes", "/audit-log", [
    ["Change", (record) => words(record.operation)], ["At", (record) => moment(record.time)], ["By", author],
    ["Address", (record) => record.address || "–"], ["Way", (record) => WAYS[record.via]], ["Node", (record) => record.node || "–"],
    ["Result", (record) => record.result],
  ], { nothing: "No change is on record.", onopen: open });
  const ask = () => list.ask({ ...(by.value && { by: by.value }), ...(result.value && { result: result.value }) });

  put(host, head("Audit log", "Changes by API, page, commands and reloads. Nothing alters or deletes a record before its time."),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); ask(); } },
      h("div", { class: "grow" }, field("By", by)), field("Result", result), h("button", { type: "submit" }, "Show")),
    h("div", { class: "card" }, list.element));
  ask();
}
