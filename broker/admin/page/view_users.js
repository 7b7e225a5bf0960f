// Users of the store: passwords, rules and roles, and the check of a right.

import { check, input, lines, several, tick } from "./access_form.js";
import { get, patch, post, remove } from "./api.js";
import { sure } from "./dialogs.js";
import { empty, facts, fault, field, h, head, put, tell } from "./dom.js";
import { List } from "./list.js";
import { mayChange } from "./sign_in.js";

const rights = (user) => [...user.roles.map((role) => `role ${role}`), ...(user.rules ?? [])].join("; ")
  || (user.rules === null ? "all that general rules allow" : "nothing");
const COLUMNS = [
  ["User", (user) => user.name],
  ["State", (user) => h("span", { class: `pill ${user.disabled ? "bad" : "good"}` }, user.disabled ? "disabled" : "enabled")],
  ["Rights", rights],
  ["Password", (user) => user.credentials || "unreadable"],
];

export function show(host, query) {
  const search = input("search", { type: "search", value: query.get("search") ?? "" });
  const list = new List("Users", "/users", COLUMNS, { nothing: "There are no such users.", onopen: (user) => open(user.name) });
  const detail = h("section", { class: "card", "aria-label": "User", hidden: true, tabindex: "-1" });
  const ask = () => list.ask({ search: search.value });

  async function done(work, text) {
    try {
      await work();
      tell(text);
    } catch (error) {
      tell(error.message);
      return;
    }
    ask();
  }

  async function end(user) {
    if (!(await sure(`Remove ${user.name}?`, "Its clients are closed, on all nodes.", "Remove"))) return;
    await done(() => remove("/user", { name: user.name, version: user.version }), `${user.name} is removed.`);
    detail.hidden = true;
  }

  function editor(user) {
    const roles = several("roles", user.roles);
    const rules = several("rules", user.rules ?? []);
    const [free, freeField] = tick("unrestricted", "no rules of its own: roles and general rules alone restrict it", user.rules === null);
    const [disabled, disabledField] = tick("disabled", "disabled: its clients are refused", user.disabled);
    const password = input("password", { type: "password", autocomplete: "new-password" });
    const [scram, scramField] = tick("scram", "for SCRAM-SHA-256, too");

    async function save(event) {
      event.preventDefault();
      const body = { roles: lines(roles), rules: free.checked ? null : lines(rules), disabled: disabled.checked };
      if (password.value) Object.assign(body, { password: password.value, scram: scram.checked });
      await done(() => patch("/user", { name: user.name, version: user.version }, body), `${user.name} is changed.`);
      open(user.name);
    }

    return h("form", { class: "stack", "aria-label": "Change the user", onsubmit: save },
      input("of", { autocomplete: "username", value: user.name, hidden: true }), // for password managers
      h("div", { class: "bar" }, h("div", { class: "grow" }, field("Roles, one on each line", roles)), h("div", { class: "grow" }, field("Rules, one on each line", rules))),
      freeField, disabledField,
      h("div", { class: "bar" }, h("div", { class: "grow" }, field("New password", password)), scramField),
      h("div", { class: "bar" }, h("button", { type: "submit" }, "Save"), h("span", { class: "grow" }),
        h("button", { type: "button", class: "danger", onclick: () => end(user) }, "Remove")));
  }

  async function open(name) {
    detail.hidden = false;
    put(detail, empty("Loading…"));
    try {
      const user = await get("/user", { name });
      put(detail, h("h2", {}, user.name), mayChange() ? editor(user)
        : facts([["State", user.disabled ? "disabled" : "enabled"], ["Rights", rights(user)], ["Password", user.credentials]]));
    } catch (error) {
      put(detail, fault(error));
    }
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }

  function adding() {
    const name = input("name", { required: true, maxlength: "1000", autocomplete: "username" });
    const password = input("new_password", { type: "password", autocomplete: "new-password", required: true });
    const roles = input("new_roles");
    const form = h("form", { class: "bar card", "aria-label": "Add a user", onsubmit: add },
      h("div", { class: "grow" }, field("New user", name)), h("div", { class: "grow" }, field("Password", password)),
      h("div", { class: "grow" }, field("Role", roles)), h("button", { type: "submit" }, "Add"));

    async function add(event) {
      event.preventDefault();
      const body = { name: name.value, password: password.value, roles: roles.value ? [roles.value] : [] };
      await done(async () => {
        await post("/users", body);
        form.reset();
        open(body.name);
      }, `${body.name} is added.`);
    }
    return form;
  }

  put(host, head("Users", "Of the store: nodes accept them with auth.users. A change takes effect at once, on all nodes."),
    mayChange() && adding(),
    h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); ask(); } },
      h("div", { class: "grow" }, field("Names that begin with", search)), h("button", { type: "submit", class: "quiet" }, "Search")),
    h("section", { class: "card", "aria-label": "List of users" }, list.element), detail, check());
  ask();
}
