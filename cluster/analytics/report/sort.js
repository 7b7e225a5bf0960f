"use strict";
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
