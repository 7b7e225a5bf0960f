// A tree of topic levels, for eyes, mouse, keyboard and screen readers (WAI-ARIA's pattern for trees).

import { h } from "./dom.js";

export const SHOWN_MOST = 200; // children of a branch that are shown

export class Branch {
  constructor(tree, parent, name, topic) {
    Object.assign(this, { tree, parent, name, topic, children: new Map(), loaded: false, hidden: 0 });
    this.detail = h("span", { class: "detail" });
    this.group = h("ul", { role: "group", hidden: true });
    const label = name === "" ? "(empty)" : name;
    this.row = h("div", { class: "row", onclick: () => this.clicked() }, h("span", { class: "twist", "aria-hidden": "true" }),
      h("span", { class: "name" }, label), this.detail);
    this.element = h("li", { role: "treeitem", tabindex: "-1", "aria-selected": "false", "aria-level": this.level }, this.row, this.group);
    this.element.branch = this;
  }

  get level() {
    return this.parent ? this.parent.level + 1 : 1;
  }

  get expanded() {
    return this.element.getAttribute("aria-expanded") === "true";
  }

  mayExpand() {
    if (!this.element.hasAttribute("aria-expanded")) this.element.setAttribute("aria-expanded", "false");
  }

  async expand(open = true) {
    if (!this.element.hasAttribute("aria-expanded")) return;
    this.element.setAttribute("aria-expanded", String(open));
    this.group.hidden = !open;
    if (open && !this.loaded) {
      this.loaded = true;
      await this.tree.onexpand?.(this);
    }
  }

  clicked() {
    this.tree.select(this);
    this.expand(!this.expanded);
  }
}

export class Tree {
  // onselect and onexpand get a Branch.
  constructor(label, { onselect, onexpand } = {}) {
    Object.assign(this, { onselect, onexpand, roots: new Map(), current: null });
    this.element = h("ul", { class: "tree", role: "tree", "aria-label": label, onkeydown: (event) => this.#key(event) });
  }

  // The child of a branch (null: at the top), made if need be; null if there are too many.
  child(parent, name, topic) {
    const known = parent ? parent.children : this.roots;
    const found = known.get(name);
    if (found) return found;
    if (known.size >= SHOWN_MOST) return null;
    const branch = new Branch(this, parent, name, topic);
    known.set(name, branch);
    (parent ? parent.group : this.element).append(branch.element);
    parent?.mayExpand();
    if (!this.current) this.#become(branch);
    return branch;
  }

  // Words below a branch's children (null: at the end).
  note(parent, text) {
    (parent ? parent.group : this.element).append(h("li", { role: "none", class: "small muted" }, text));
  }

  clear() {
    this.roots.clear();
    this.element.replaceChildren();
    this.current = null;
  }

  select(branch) {
    this.element.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    branch.element.setAttribute("aria-selected", "true");
    this.#become(branch);
    this.onselect?.(branch);
  }

  #become(branch) {
    this.current?.element.setAttribute("tabindex", "-1");
    branch.element.setAttribute("tabindex", "0");
    this.current = branch;
  }

  #focus(branch) {
    if (!branch) return;
    this.#become(branch);
    branch.element.focus();
  }

  #visible() {
    return [...this.element.querySelectorAll("[role=treeitem]")].filter((item) => !item.parentElement.closest("[hidden]"));
  }

  #step(by) {
    const items = this.#visible();
    this.#focus(items[items.indexOf(this.current.element) + by]?.branch);
  }

  #key(event) {
    const branch = this.current;
    const act = {
      ArrowDown: () => this.#step(1),
      ArrowUp: () => this.#step(-1),
      ArrowRight: () => (branch.expanded ? this.#step(1) : branch.expand()),
      ArrowLeft: () => (branch.expanded ? branch.expand(false) : this.#focus(branch.parent)),
      Home: () => this.#focus(this.#visible()[0]?.branch),
      End: () => this.#focus(this.#visible().at(-1)?.branch),
      Enter: () => branch.clicked(),
      " ": () => branch.clicked(),
    }[event.key];
    if (!act || !branch || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }
}
