// Users of the store: passwords, rules and roles, and the check of a right.

import { input, lines, several, show as showAll, tick, wide } from "./stored_access.js";
import { h } from "./dom.js";

const rights = (user) => [...user.roles.map((role) => `role ${role}`), ...(user.rules ?? [])].join("; ")
  || (user.rules === null ? "all that general rules allow" : "nothing");
const state = (user) => (user.disabled ? "disabled" : "enabled");

function editor(user) {
  const roles = several("roles", user.roles);
  const rules = several("rules", user.rules ?? []);
  const [free, freeField] = tick("unrestricted", "no rules of its own: roles and general rules alone restrict it", user.rules === null);
  const [disabled, disabledField] = tick("disabled", "disabled: its clients are refused", user.disabled);
  const password = input("password", { type: "password", autocomplete: "new-password" });
  const [scram, scramField] = tick("scram", "for SCRAM-SHA-256, too");
  const fields = [
    input("of", { autocomplete: "username", value: user.name, hidden: true }), // for password managers
    h("div", { class: "bar" }, wide("Roles, one on each line", roles), wide("Rules, one on each line", rules)),
    freeField, disabledField, h("div", { class: "bar" }, wide("New password", password), scramField),
  ];
  const body = () => ({
    roles: lines(roles), rules: free.checked ? null : lines(rules), disabled: disabled.checked,
    ...(password.value && { password: password.value, scram: scram.checked }),
  });
  return { fields, body };
}

function adding() {
  const name = input("name", { required: true, maxlength: "1000", autocomplete: "username" });
  const password = input("new_password", { type: "password", autocomplete: "new-password", required: true });
  const role = input("new_roles");
  const body = () => ({ name: name.value, password: password.value, roles: role.value ? [role.value] : [] });
  return { fields: [wide("New user", name), wide("Password", password), wide("Role", role)], body };
}

export const show = (host, query) => showAll(host, query, {
  name: "user",
  about: "Of the store: nodes accept them with auth.users. A change takes effect at once, on all nodes.",
  columns: [
    ["User", (user) => user.name],
    ["State", (user) => h("span", { class: `pill ${user.disabled ? "bad" : "good"}` }, state(user))],
    ["Rights", rights],
    ["Password", (user) => user.credentials || "unreadable"],
  ],
  removal: "Its clients are closed, on all nodes.",
  facts: (user) => [["State", state(user)], ["Rights", rights(user)], ["Password", user.credentials]],
  editor,
  adding,
});
