// Roles of the store: named rules. Two of them are general.

import { check, input, lines, several } from "./access_form.js";
import { get, patch, post, remove } from "./api.js";
import { sure } from "./dialogs.js";
import { empty, facts, fault, field, h, head, put, tell } from "./dom.js";
import { List } from "./list.js";
import { mayChange } from "./sign_in.js";

const GENERAL = { everyone: "all clients", anonymous: "clients without a user name" };
const rules = (role) => role.rules.join("; ") || "nothing";
const COLUMNS = [
  ["Role", (role) => (GENERAL[role.name] ? [role.name, " ", h("span", { class: "pill" }, "general")] : role.name)],
  ["Rules", rules],
  ["Description", (role) => role.description || "–"],
];

export function show(host, query) {
  const search = input("search", { type: "search", value: query.get("search") ?? "" });
  const list = new List("Roles", "/roles", COLUMNS, { nothing: "There are no such roles.", onopen: (role) => open(role.name) });
  const detail = h("section", { class: "card", "aria-label": "Role", hidden: true, tabindex: "-1" });
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

  async function end(role) {
    if (!(await sure(`Remove ${role.name}?`, "Users keep its name, which gives them nothing then.", "Remove"))) return;
    await done(() => remove("/role", { name: role.name, version: role.version }), `${role.name} is removed.`);
    detail.hidden = true;
  }

  function editor(role) {
    const text = several("rules", role.rules);
    const description = input("description", { maxlength: "1000", value: role.description });

    async function save(event) {
      event.preventDefault();
      const body = { rules: lines(text), description: description.value };
      await done(() => patch("/role", { name: role.name, version: role.version }, body), `${role.name} is changed.`);
      open(role.name);
    }

    return h("form", { class: "stack", "aria-label": "Change the role", onsubmit: save },
      field("Rules, one on each line", text), field("Description", description),
      h("div", { class: "bar" }, h("button", { type: "submit" }, "Save"), h("span", { class: "grow" }),
        h("button", { type: "button", class: "danger", onclick: () => end(role) }, "Remove")));
  }

  async function open(name) {
    detail.hidden = false;
    put(detail, empty("Loading…"));
    try {
      const role = await get("/role", { name });
      put(detail, h("h2", {}, role.name), GENERAL[role.name] && h("p", {}, `A role of ${GENERAL[role.name]}.`),
        mayChange() ? editor(role) : facts([["Rules", rules(role)], ["Description", role.description]]));
    } catch (error) {
      put(detail, fault(error));
    }
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }

  function adding() {
    const name = input("name", { required: true, maxlength: "1000" });
    const text = several("new_rules");
    const form = h("form", { class: "bar card", "aria-label": "Add a role", onsubmit: add },
      h("div", { class: "grow" }, field("New role", name)), h("div", { class: "grow" }, field("Its rules, one on each line", text)),
      h("button", { type: "submit" }, "Add"));

    async function add(event) {
      event.preventDefault();
      const body = { name: name.value, rules: lines(text) };
      if (GENERAL[body.name] && !(await sure(`Add the role ${body.name}?`, `It is a role of ${GENERAL[body.name]}: they may do only what rules allow then.`, "Add"))) return;
      await done(async () => {
        await post("/roles", body);
        form.reset();
        open(body.name);
      }, `${body.name} is added.`);
    }
    return form;
  }

  put(host, head("Roles", "Named rules, of users and of clients that other ways to authenticate give a role."),
    mayChange() && adding(),
    h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); ask(); } },
      h("div", { class: "grow" }, field("Names that begin with", search)), h("button", { type: "submit", class: "quiet" }, "Search")),
    h("section", { class: "card", "aria-label": "List of roles" }, list.element), detail, check());
  ask();
}
