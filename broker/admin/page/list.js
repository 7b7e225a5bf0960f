// A table of what the API lists, page by page.

import { get } from "./api.js";
import { empty, fault, h, put, silent } from "./dom.js";

// columns: [name, function of an item -> text or element, class].
export function table(name, columns, items, { onopen } = {}) {
  const titles = columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title));
  const rows = items.map((item) => {
    const cells = columns.map(([title, show, kind], n) => {
      const shown = show(item);
      const cell = n === 0 && onopen
        ? h("button", { type: "button", class: "plain", onclick: (event) => { event.stopPropagation(); onopen(item); } }, shown)
        : shown;
      return h("td", { "data-name": title, class: kind }, cell);
    });
    return h("tr", onopen ? { class: "row", onclick: () => onopen(item) } : {}, ...cells);
  });
  return h("table", { class: "cards", "aria-label": name }, h("thead", {}, h("tr", {}, ...titles)), h("tbody", {}, ...rows));
}

// A list that is asked for again with each query, and goes on with a button.
export class List {
  constructor(name, path, columns, { nothing, onopen } = {}) {
    Object.assign(this, { name, path, columns, nothing, onopen, items: [], query: {} });
    this.element = h("div", { "aria-busy": "true" }, empty("Loading…"));
  }

  async ask(query = this.query) {
    this.query = query;
    this.items = [];
    await this.#more(undefined);
  }

  async #more(after) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.element.setAttribute("aria-busy", "true");
    try {
      const found = await get(this.path, { ...this.query, after, limit: 50 }, asking.signal);
      this.items.push(...found.items);
      this.#draw(found);
    } catch (error) {
      if (error.name !== "AbortError") put(this.element, fault(error));
    }
    if (this.asking === asking) this.element.setAttribute("aria-busy", "false");
  }

  #draw({ next, total, failures }) {
    if (!this.items.length) {
      put(this.element, silent(failures), empty(this.nothing));
      return;
    }
    const said = total === undefined ? "" : `${this.items.length} of ${total}`;
    const more = next && h("button", { type: "button", class: "quiet", onclick: () => this.#more(next) }, "Show more");
    put(this.element, silent(failures), table(this.name, this.columns, this.items, this),
      h("div", { class: "bar" }, h("span", { class: "small muted grow" }, said), more));
  }
}
