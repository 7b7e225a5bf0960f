"use strict";
// Tooltips and sorting; the page is complete without. Text comes from the tables and titles and stays text.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const hide = () => { tip.hidden = true; };
  const show = (parts, x, y) => {
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = document.documentElement.clientWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(x + 14, right - width))}px`;
    tip.style.top = `${y - height - 14 < 8 ? y + 18 : y - height - 14}px`;
  };

  // Marks that have a title: shown at once, and by touch.
  for (const title of document.querySelectorAll("svg.plot * > title")) {
    if (title.textContent) title.parentElement.dataset.tip = title.textContent;
    title.textContent = "";
  }
  const over = (event) => {
    const mark = event.target.closest?.("[data-tip]");
    if (mark) show([element("span", mark.dataset.tip)], event.clientX, event.clientY);
    else if (!event.target.closest?.("svg.over-time")) hide();
  };
  document.addEventListener("pointermove", over);
  document.addEventListener("pointerdown", over);
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // Values over time: a line at the pointer, or moved by the arrow keys, and all values of that moment.
  for (const plot of document.querySelectorAll("svg.over-time")) {
    const figure = plot.closest("figure");
    const heads = [...figure.querySelectorAll("thead th")].map((head) => head.textContent);
    const rows = [...figure.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
    const colours = [...figure.querySelectorAll(".legend i")].map((key) => key.className);
    if (!rows.length) continue;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", "18");
    cursor.setAttribute("y2", String(plot.height.baseVal.value - 22));
    let at = rows.length - 1;
    const move = (index, x, y) => {
      at = Math.max(0, Math.min(rows.length - 1, index));
      const place = rows.length > 1 ? `${(100 * at) / (rows.length - 1)}%` : "50%";
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      if (!cursor.parentNode) plot.append(cursor);
      const lines = heads.slice(1).map((name, number) => {
        const line = element("div");
        line.append(element("i", undefined, colours[number] ?? "cx"), element("span", name), element("b", rows[at][number + 1]));
        return line;
      });
      show([element("p", rows[at][0]), ...lines.reverse()], x, y);
    };
    const box = () => plot.getBoundingClientRect();
    const follow = (event) => {
      const { left, width } = box();
      move(Math.round(((event.clientX - left) / width) * (rows.length - 1)), event.clientX, event.clientY);
    };
    const leave = () => { cursor.remove(); hide(); };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.setAttribute("tabindex", "0");
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (!step) return;
      event.preventDefault();
      const { left, top, width } = box();
      const index = cursor.parentNode ? at + step : at;
      move(index, left + (width * Math.max(0, Math.min(rows.length - 1, index))) / Math.max(1, rows.length - 1), top + 60);
    });
  }

  // Tables that are sorted by their heads.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const key = (row, column) => {
      const cell = row.cells[column];
      if (!cell.classList.contains("n")) return cell.textContent;
      return "v" in cell.dataset ? Number(cell.dataset.v) : -Infinity;
    };
    const sort = (head) => {
      const column = head.cellIndex;
      const numeric = head.classList.contains("n");
      const falling = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const keyed = [...body.rows].map((row) => [key(row, column), row]);
      keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (falling ? -1 : 1));
      body.append(...keyed.map(([, row]) => row));
    };
    table.classList.add("ready");
    for (const head of heads) {
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(head));
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
    }
  }
})();
