// Elements. All text comes in as text nodes, never as markup: names of clients can't become code.

export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function put(host, ...children) {
  host.replaceChildren(...children.flat().filter(Boolean));
}

let numbers = 0;

// A form's control with its label.
export function field(label, control, kind = "") {
  control.id ||= `field-${++numbers}`;
  const text = h("span", {}, label);
  return h("label", { for: control.id, class: kind }, ...(kind === "check" ? [control, text] : [text, control]));
}

export function head(title, about) {
  return h("div", { class: "head" }, h("h1", {}, title), about && h("p", {}, about));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export const empty = (text) => h("p", { class: "empty" }, text);
// The missing parts of a list: of each node, or of the broker for holders that are not to know its nodes.
export const silent = (failures = {}) => Object.entries(failures).map(([node, why]) => fault(node ? `${node}: ${why}` : why));
export const fault = (error) => h("p", { class: "fault", role: "alert" }, error.message ?? String(error));

// Show a sentence at the page's corner; screen readers read it, too.
export function tell(text) {
  const told = h("p", {}, text);
  document.getElementById("told").append(told);
  setTimeout(() => told.remove(), 6000);
}
