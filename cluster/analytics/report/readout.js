"use strict";
// The readout at the pointer: values of a moment, or the words of a mark. All text stays text.

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

const readout = (() => {
  const tip = element("div", undefined, "tip");
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  return {
    hide: () => { tip.hidden = true; },
    // parts: elements; x, y: a place on the screen.
    show(parts, x, y) {
      tip.replaceChildren(...parts);
      tip.hidden = false;
      const { width, height } = tip.getBoundingClientRect();
      const right = document.documentElement.clientWidth - 8;
      tip.style.left = `${Math.max(8, Math.min(x + 14, right - width))}px`;
      tip.style.top = `${y - height - 14 < 8 ? y + 18 : y - height - 14}px`;
    },
  };
})();

// Marks that have a title: shown at once, and by touch; the browser's own tooltip is not shown besides.
for (const title of document.querySelectorAll("svg.track title")) {
  title.parentElement.dataset.tip = title.textContent;
  title.textContent = "";
}
for (const kind of ["pointermove", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const mark = event.target.closest?.("[data-tip]");
    if (mark) readout.show([element("span", mark.dataset.tip)], event.clientX, event.clientY);
    else if (!event.target.closest?.(".plot")) readout.hide();
  });
}
document.addEventListener("scroll", readout.hide, { passive: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") readout.hide(); });
