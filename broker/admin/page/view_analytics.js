// Analytics: what the Spark job has found last, which nodes publish below $SYS/analytics/.

import { get } from "./api.js";
import { empty, fault, h, head, put } from "./dom.js";
import { List, table } from "./list.js";
import { bytes, count, rate, seconds, span } from "./format.js";

const EVERY = 5000;
const ROOT = "$SYS/analytics/";
const LISTED = 200;

const since = (time) => (Date.now() - Date.parse(time)) / 1000;
const of = (found, prefix) => found.filter((item) => item.name.startsWith(prefix));
const section = (title, about, content) =>
  h("section", { class: "card", "aria-label": title }, h("h2", {}, title), h("p", { class: "small muted" }, about), content);
const ranking = (name, what, top) => table(name, [
  [what, (row) => row.client_id ?? row.topic ?? ""], ["Messages", (row) => count(row.messages), "number"],
  ["Bytes", (row) => bytes(row.bytes), "number"], ["Share", (row) => `${(row.share * 100).toFixed(1)} %`, "number"],
], top);

export function show(host) {
  const place = h("div", { "aria-busy": "true" }, empty("Loading…"));
  const readers = new List("Readers of the log", "/log/readers", [
    ["Name", (reader) => reader.name], ["Behind", (reader) => bytes(reader.behind), "number"], ["Lost", (reader) => bytes(reader.lost), "number"],
    ["Heard of", (reader) => `${span(reader.seconds)} ago`, "number"],
  ], { nothing: "No program has registered: see `flockmq lake`, `flockmq connect`, `flockmq analytics run`." });
  put(host, head("Analytics", "The last windows of the Spark job, and the programs that read the log of messages."), place,
    section("Readers of the log", "The log is kept until they have read it, as far as its bounds allow.", readers.element));
  const look = async () => {
    try {
      const answer = await get("/retained/messages", { filter: `${ROOT}#`, limit: 1000 });
      put(place, drawn(answer.items.flatMap(read)));
    } catch (error) {
      put(place, fault(error));
    }
    place.setAttribute("aria-busy", "false");
    readers.ask();
  };
  look();
  const timer = setInterval(look, EVERY);
  return () => clearInterval(timer);
}

function read(item) {
  try {
    return [{ name: item.topic.slice(ROOT.length), topic: item.topic, ...JSON.parse(item.payload) }];
  } catch {
    return []; // no result of the job's
  }
}

function drawn(found) {
  if (!found.length) {
    return empty("No job has told anything yet: set analytics.topics, and start `flockmq analytics run`.");
  }
  const rates = of(found, "rates/").sort((a, b) => b.messages - a.messages).slice(0, LISTED);
  const silent = of(found, "silent/").sort((a, b) => a.since.localeCompare(b.since)).slice(0, LISTED);
  const outliers = of(found, "outliers/").sort((a, b) => b.accepted_at.localeCompare(a.accepted_at)).slice(0, LISTED);
  const [clients, topics, lag] = ["top/clients", "top/topics", "lag"].map((name) => found.find((item) => item.name === name));
  return [
    section("Silent devices", "They sent at regular intervals, and have stopped.", silent.length
      ? table("Silent devices", [
        ["Device", (row) => decodeURIComponent(row.name.slice(7))], ["Node", (row) => row.node ?? "–"],
        ["Silent for", (row) => span(since(row.since)), "number"], ["Usual interval", (row) => seconds(row.usual_interval), "number"],
      ], silent)
      : empty("None is silent.")),
    section("Rates", rates.length ? `By topic prefix, in the window that ended ${new Date(rates[0].window_end).toLocaleTimeString()}.` : "By topic prefix.", rates.length
      ? table("Rates", [
        ["Prefix", (row) => row.name.slice(6)], ["Messages", (row) => count(row.messages), "number"],
        ["Rate", (row) => `${rate(row.rate)} /s`, "number"], ["Bytes", (row) => bytes(row.bytes), "number"],
      ], rates)
      : empty("No window has ended yet.")),
    clients && section("Top clients", "Those with most messages in the last window.", ranking("Top clients", "Client", clients.top)),
    topics && section("Top topics", "Those with most messages in the last window.", ranking("Top topics", "Topic", topics.top)),
    outliers.length ? section("Outliers", "Values that are far from what their topic usually has.", table("Outliers", [
      ["Topic", (row) => row.topic], ["Field", (row) => row.field || "–"], ["Value", (row) => String(row.value), "number"],
      ["Score", (row) => row.score.toFixed(1), "number"], ["When", (row) => new Date(row.accepted_at).toLocaleString()],
    ], outliers)) : null,
    lag && section("Lag", "From accepted to written, in the last window.", table("Lag", [
      ["Node", (row) => row.node], ["p50", (row) => seconds(row.p50), "number"], ["p99", (row) => seconds(row.p99), "number"],
      ["Most", (row) => seconds(row.max), "number"],
    ], lag.nodes)),
  ];
}
