// Roles of the store: named rules. Two of them are general.

import { input, lines, several, show as showAll, wide } from "./stored_access.js";
import { sure } from "./dialogs.js";
import { field, h } from "./dom.js";

const GENERAL = { everyone: "all clients", anonymous: "clients without a user name" };
const rules = (role) => role.rules.join("; ") || "nothing";

function editor(role) {
  const text = several("rules", role.rules);
  const description = input("description", { maxlength: "1000", value: role.description });
  const body = () => ({ rules: lines(text), description: description.value });
  return { fields: [field("Rules, one on each line", text), field("Description", description)], body };
}

function adding() {
  const name = input("name", { required: true, maxlength: "1000" });
  const text = several("new_rules");
  const body = () => ({ name: name.value, rules: lines(text) });
  const agreed = (role) => !GENERAL[role.name]
    || sure(`Add the role ${role.name}?`, `It is a role of ${GENERAL[role.name]}: they may do only what rules allow then.`, "Add");
  return { fields: [wide("New role", name), wide("Its rules, one on each line", text)], body, agreed };
}

export const show = (host, query) => showAll(host, query, {
  name: "role",
  about: "Named rules, of users and of clients that other ways to authenticate give a role.",
  columns: [
    ["Role", (role) => (GENERAL[role.name] ? [role.name, " ", h("span", { class: "pill" }, "general")] : role.name)],
    ["Rules", rules],
    ["Description", (role) => role.description || "–"],
  ],
  removal: "Users keep its name, which gives them nothing then.",
  facts: (role) => [["Rules", rules(role)], ["Description", role.description]],
  note: (role) => GENERAL[role.name] && h("p", {}, `A role of ${GENERAL[role.name]}.`),
  editor,
  adding,
});
