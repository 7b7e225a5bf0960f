// Operators: the people who manage the broker, and the keys of their programs.

import { get, post, put as change, remove } from "./api.js";
import { forNewPassword, forReading, sure } from "./dialogs.js";
import { empty, fault, field, h, head, put, tell } from "./dom.js";
import { moment } from "./format.js";
import { table } from "./list.js";
import { who } from "./sign_in.js";

const ROLES = [["viewer", "viewer: reads"], ["operator", "operator: acts on clients and messages"], ["admin", "admin: everything"]];
const SPANS = [["", "for good"], ["86400", "a day"], ["2592000", "30 days"], ["31536000", "a year"]];
const choice = (name, options, chosen) => h("select", { name, "aria-label": name }, ...options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
const button = (text, label, onclick, kind = "quiet") => h("button", { type: "button", class: kind, "aria-label": label, onclick }, text);

export function show(host) {
  const people = h("section", { class: "card", "aria-label": "Operators" }, empty("Loading…"));
  const programs = h("section", { class: "card", "aria-label": "API keys" }, empty("Loading…"));
  const input = (name, more = {}) => h("input", { name, required: true, spellcheck: "false", autocomplete: "off", ...more });
  const name = input("name"), password = input("password", { type: "password", autocomplete: "new-password", minlength: "12" });
  const role = choice("role", ROLES, "viewer"), tenant = input("tenant", { required: false });
  const keyName = input("key-name"), keyRole = choice("key-role", ROLES, "viewer"), span = choice("span", SPANS);
  const scopes = input("scopes", { required: false, placeholder: "clients kick" });

  // Do something, tell why it failed, and show the present state.
  async function act(work) {
    try {
      await work();
    } catch (error) {
      tell(error.message);
    }
    look();
  }

  const set = (operator, body) => act(() => change(`/operator?${new URLSearchParams({ name: operator.name })}`, body));

  async function renew(operator) {
    const given = await forNewPassword(operator.name);
    if (given) set(operator, { password: given });
  }

  async function drop(operator) {
    if (await sure("Remove the operator?", `${operator.name} is signed out at once.`, "Remove")) act(() => remove("/operator", { name: operator.name }));
  }

  async function end(key) {
    if (await sure("End the key?", `Programs with the key ${key.name} are refused at once.`, "End")) act(() => remove("/key", { id: key.id }));
  }

  async function look() {
    try {
      const operators = (await get("/operators")).items, keys = (await get("/keys")).items;
      put(people, operators.length ? table("Operators", [
        ["Name", (one) => one.name],
        ["Role", (one) => h("select", { "aria-label": `Role of ${one.name}`, onchange: (event) => set(one, { role: event.target.value }) },
          ...ROLES.map(([value]) => h("option", { value, selected: value === one.role }, value)))],
        ["Tenant", (one) => one.tenant || "–"], ["Since", (one) => moment(one.since)], ["State", (one) => (one.disabled ? "disabled" : "enabled")],
        ["", (one) => h("div", { class: "bar" },
          button("New password", `New password of ${one.name}`, () => renew(one)),
          button(one.disabled ? "Enable" : "Disable", `${one.disabled ? "Enable" : "Disable"} ${one.name}`, () => set(one, { disabled: !one.disabled })),
          button("Remove", `Remove ${one.name}`, () => drop(one)))],
      ], operators) : empty("There are no operators: this machine may do everything without a password."));
      put(programs, h("h2", {}, "API keys"), keys.length ? table("API keys", [
        ["Name", (key) => key.name], ["Role", (key) => key.role], ["Tenant", (key) => key.tenant || "–"],
        ["Operations", (key) => key.scopes.join(", ") || "all of its role"], ["Until", (key) => (key.until === null ? "for good" : moment(key.until))],
        ["By", (key) => key.by], ["", (key) => button("End", `End the key ${key.name}`, () => end(key))],
      ], keys) : empty("There are no keys."));
    } catch (error) {
      put(people, fault(error));
      put(programs);
    }
  }

  async function add(event) {
    event.preventDefault();
    await act(async () => {
      const made = await post("/operators", { name: name.value, role: role.value, password: password.value, ...(tenant.value && { tenant: tenant.value }) });
      name.value = password.value = tenant.value = "";
      if (who.name === "this machine") {
        tell(`${made.name} is there: sign in now.`);
        dispatchEvent(new Event("token-needed"));
      }
    });
  }

  async function makeKey(event) {
    event.preventDefault();
    await act(async () => {
      const body = { name: keyName.value, role: keyRole.value };
      if (scopes.value.trim()) body.scopes = scopes.value.trim().split(/[\s,]+/);
      if (span.value) body.seconds = Number(span.value);
      const made = await post("/keys", body);
      keyName.value = scopes.value = "";
      await forReading(`The key ${made.name}`, h("div", {}, h("p", {}, "Copy it now: it is not shown again. Programs send it as a bearer token."), h("pre", { class: "payload" }, made.key)));
    });
  }

  put(host, head("Operators", "They sign in to this page. A change takes effect at once, at all nodes."),
    h("form", { class: "bar card", onsubmit: add }, h("div", { class: "grow" }, field("Name", name)), h("div", { class: "grow" }, field("Password", password)),
      field("Role", role), field("Tenant", tenant), h("button", { type: "submit" }, "Add")),
    people,
    h("form", { class: "bar card", onsubmit: makeKey }, h("div", { class: "grow" }, field("Name of a key", keyName)), field("Role of the key", keyRole), field("For", span),
      h("div", { class: "grow" }, field("Operations (empty: all)", scopes)), h("button", { type: "submit" }, "Make a key")),
    programs);
  look();
}
