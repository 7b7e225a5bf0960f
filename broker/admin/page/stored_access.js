// The view of users and the view of roles: a list, the chosen item with its form, a form that adds one, the check of a right.

import { get, patch, post, remove } from "./api.js";
import { sure } from "./dialogs.js";
import { empty, facts, fault, field, h, head, put, tell } from "./dom.js";
import { List } from "./list.js";
import { mayChange } from "./sign_in.js";

export const lines = (control) => control.value.split("\n").map((line) => line.trim()).filter(Boolean);
export const several = (name, value = []) => h("textarea", { name, spellcheck: "false", autocomplete: "off", rows: "4" }, value.join("\n"));
export const input = (name, properties = {}) => h("input", { name, spellcheck: "false", autocomplete: "off", ...properties });
export const tick = (name, label, checked = false) => {
  const control = h("input", { type: "checkbox", name, checked });
  return [control, field(label, control, "check")];
};
export const wide = (label, control) => h("div", { class: "grow" }, field(label, control));

// Show the users or the roles. Of `kind`:
//   name: "user" or "role"; about: a sentence; columns: of the list; removal: the consequence, a sentence
//   facts(item): rows for viewers; note(item): an element above them, or nothing
//   editor(item), adding(): a form's `fields`, and `body()` of the request; adding() may have `agreed(body)`, a question
export function show(host, query, kind) {
  const { name } = kind;
  const title = name[0].toUpperCase() + name.slice(1);
  const search = input("search", { type: "search", value: query.get("search") ?? "" });
  const list = new List(`${title}s`, `/${name}s`, kind.columns, { nothing: `There are no such ${name}s.`, onopen: (item) => open(item.name) });
  const detail = h("section", { class: "card", "aria-label": title, hidden: true, tabindex: "-1" });
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

  async function end(item) {
    if (!(await sure(`Remove ${item.name}?`, kind.removal, "Remove"))) return;
    await done(() => remove(`/${name}`, { name: item.name, version: item.version }), `${item.name} is removed.`);
    detail.hidden = true;
  }

  function editor(item) {
    const { fields, body } = kind.editor(item);

    async function save(event) {
      event.preventDefault();
      await done(() => patch(`/${name}`, { name: item.name, version: item.version }, body()), `${item.name} is changed.`);
      open(item.name);
    }

    return h("form", { class: "stack", "aria-label": `Change the ${name}`, onsubmit: save }, ...fields,
      h("div", { class: "bar" }, h("button", { type: "submit" }, "Save"), h("span", { class: "grow" }),
        h("button", { type: "button", class: "danger", onclick: () => end(item) }, "Remove")));
  }

  async function open(chosen) {
    detail.hidden = false;
    put(detail, empty("Loading…"));
    try {
      const item = await get(`/${name}`, { name: chosen });
      put(detail, h("h2", {}, item.name), kind.note?.(item), mayChange() ? editor(item) : facts(kind.facts(item)));
    } catch (error) {
      put(detail, fault(error));
    }
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }

  function adding() {
    const { fields, body, agreed } = kind.adding();
    const form = h("form", { class: "bar card", "aria-label": `Add a ${name}`, onsubmit: add }, ...fields, h("button", { type: "submit" }, "Add"));

    async function add(event) {
      event.preventDefault();
      const given = body();
      if (agreed && !(await agreed(given))) return;
      await done(async () => {
        await post(`/${name}s`, given);
        form.reset();
        open(given.name);
      }, `${given.name} is added.`);
    }
    return form;
  }

  put(host, head(`${title}s`, kind.about), mayChange() && adding(),
    h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); ask(); } },
      wide("Names that begin with", search), h("button", { type: "submit", class: "quiet" }, "Search")),
    h("section", { class: "card", "aria-label": `List of ${name}s` }, list.element), detail, check());
  ask();
}

// A question whether a client may do something, and by which rule.
function check() {
  const by = h("select", { name: "by" }, h("option", { value: "username" }, "clients of the user"), h("option", { value: "client_id" }, "the connected client"));
  const who = input("who", { required: true });
  const action = h("select", { name: "action" }, ...["publish", "subscribe", "read"].map((value) => h("option", { value }, value)));
  const topic = input("topic", { required: true });
  const answer = h("p", { role: "status" });

  async function ask(event) {
    event.preventDefault();
    try {
      const found = await get("/rules/check", { [by.value]: who.value, action: action.value, topic: topic.value });
      const { kind, name, line } = found.source ?? {};
      const place = found.source && (line ? `line ${line} of ${name}` : `${kind} ${name}`);
      put(answer, h("span", { class: `pill ${found.allowed ? "good" : "bad"}` }, found.allowed ? "yes" : "no"), ` ${found.reason}`,
        place && [": ", h("code", {}, found.rule), ` (${place})`]);
    } catch (error) {
      put(answer, fault(error));
    }
  }

  return h("form", { class: "card", "aria-label": "Check a right", onsubmit: ask }, h("h2", {}, "May a client do this, and by which rule?"),
    h("div", { class: "bar" }, field("May", by), wide("Name", who), field("Action", action),
      wide("Topic", topic), h("button", { type: "submit" }, "Check")), answer);
}
