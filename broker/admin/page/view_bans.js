// Bans: clients, users and addresses that are refused.

import { get, post, remove } from "./api.js";
import { sure } from "./dialogs.js";
import { empty, fault, field, h, head, put, tell } from "./dom.js";
import { table } from "./list.js";
import { mayChange, who } from "./sign_in.js";
import { moment } from "./format.js";

const KINDS = [["client_id", "client id"], ["username", "user name"], ["address", "address or network"]];
const SPANS = [["", "for good"], ["600", "10 minutes"], ["3600", "an hour"], ["86400", "a day"], ["604800", "a week"]];
const words = (kind) => KINDS.find(([value]) => value === kind)[1];
const choice = (name, options) => h("select", { name }, ...options.map(([value, text]) => h("option", { value }, text)));

export function show(host) {
  const place = h("section", { class: "card", "aria-label": "Bans" }, empty("Loading…"));
  const kind = choice("kind", KINDS.filter(([kind]) => !(who.tenant && kind === "address"))); // addresses are of all tenants
  const value = h("input", { name: "value", required: true, spellcheck: "false", autocomplete: "off" });
  const seconds = choice("seconds", SPANS);
  const reason = h("input", { name: "reason", autocomplete: "off", maxlength: "1000" });

  async function lift(ban) {
    if (!(await sure("Lift the ban?", `${ban.value} may come in again.`, "Lift"))) return;
    await remove("/bans", { kind: ban.kind, value: ban.value }).catch((error) => tell(error.message));
    look();
  }

  async function look() {
    try {
      const { items } = await get("/bans");
      put(place, items.length ? table("Bans", [
        ["Who", (ban) => ban.value], ["By", (ban) => words(ban.kind)], ["Until", (ban) => (ban.until === null ? "for good" : moment(ban.until))],
        ["Since", (ban) => moment(ban.since)], ["Said by", (ban) => ban.by], ["Reason", (ban) => ban.reason || "–"],
        ...(mayChange() ? [["", (ban) => h("button", { type: "button", class: "quiet", "aria-label": `Lift the ban of ${ban.value}`, onclick: () => lift(ban) }, "Lift")]] : []),
      ], items) : empty("Nobody is banned."));
    } catch (error) {
      put(place, fault(error));
    }
  }

  async function ban(event) {
    event.preventDefault();
    const body = { kind: kind.value, value: value.value, reason: reason.value };
    if (seconds.value) body.seconds = Number(seconds.value);
    if (!(await sure(`Ban ${body.value}?`, "Who is connected is closed, on all nodes.", "Ban"))) return;
    try {
      await post("/bans", body);
      value.value = reason.value = "";
    } catch (error) {
      tell(error.message);
    }
    look();
  }

  put(host, head("Bans", "They hold on all nodes, and survive restarts."),
    mayChange() && h("form", { class: "bar card", onsubmit: ban }, field("By", kind), h("div", { class: "grow" }, field("Who", value)), field("For", seconds),
      h("div", { class: "grow" }, field("Reason", reason)), h("button", { type: "submit", class: "danger" }, "Ban")),
    place);
  look();
}
