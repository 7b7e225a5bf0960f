// Dialogs: a confirmation, and a login.

import { field, h } from "./dom.js";

function shown(dialog) {
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(dialog.returnValue);
    });
  });
}

// Whether the operator confirms.
export async function sure(title, text, action) {
  const dialog = h(
    "dialog", { "aria-labelledby": "asked" },
    h("form", { method: "dialog" },
      h("h2", { id: "asked" }, title), h("p", {}, text),
      h("div", { class: "buttons" },
        h("button", { value: "", class: "quiet" }, "Cancel"), h("button", { value: "yes", class: "danger" }, action))),
  );
  return (await shown(dialog)) === "yes";
}

// Something to read.
export function forReading(title, content) {
  return shown(h(
    "dialog", { "aria-labelledby": "asked" },
    h("form", { method: "dialog" }, h("h2", { id: "asked" }, title), content, h("div", { class: "buttons" }, h("button", { value: "" }, "Close"))),
  ));
}

// A new password of an operator, or nothing.
export async function forNewPassword(name) {
  const password = h("input", { type: "password", autocomplete: "new-password", name: "password", required: true, minlength: "12" });
  const dialog = h(
    "dialog", { "aria-labelledby": "asked" },
    h("form", { method: "dialog", class: "stack" },
      h("h2", { id: "asked" }, `New password of ${name}`), field("Password, at least 12 characters", password),
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "quiet", onclick: () => dialog.close("") }, "Cancel"), h("button", { value: "yes" }, "Set"))),
  );
  return (await shown(dialog)) === "yes" ? password.value : "";
}

// { name, password } or { token } of an operator; null: nothing was given. `ways`: the credentials that the node takes.
export async function forOperator(reason, ways) {
  const name = h("input", { autocomplete: "username", name: "name", spellcheck: "false" });
  const password = h("input", { type: "password", autocomplete: "current-password", name: "password" });
  const token = h("input", { type: "password", autocomplete: "off", name: "token" });
  const byToken = [
    h("p", { class: "small muted" }, "The node's operator makes tokens with ", h("code", {}, "flockmq token FILE NAME"), "."),
    field("Token", token),
  ];
  const dialog = h(
    "dialog", { "aria-labelledby": "asked" },
    h("form", { method: "dialog", class: "stack" },
      h("h2", { id: "asked" }, "Sign in"), h("p", {}, reason),
      ...(ways.password ? [field("Name", name), field("Password", password), h("details", {}, h("summary", {}, "With a token or a key"), field("Token", token))] : byToken),
      ways.oidc && h("p", {}, h("a", { href: "api/v1/login/oidc" }, "Sign in at the identity provider")),
      h("div", { class: "buttons" }, h("button", { value: "yes" }, "Sign in"))),
  );
  if ((await shown(dialog)) !== "yes") return null;
  if (token.value.trim()) return { token: token.value.trim() };
  return name.value ? { name: name.value.trim(), password: password.value } : null;
}

// User name and password of an MQTT client, or null.
export async function forCredentials(reason) {
  const username = h("input", { autocomplete: "off", name: "username" });
  const password = h("input", { type: "password", autocomplete: "off", name: "password" });
  const dialog = h(
    "dialog", { "aria-labelledby": "asked" },
    h("form", { method: "dialog", class: "stack" },
      h("h2", { id: "asked" }, "Connect to the broker"), h("p", {}, reason),
      field("User name", username), field("Password", password),
      h("div", { class: "buttons" },
        // Not of the form: Enter in a field presses the first of those.
        h("button", { type: "button", class: "quiet", onclick: () => dialog.close("") }, "Cancel"),
        h("button", { value: "yes" }, "Connect"))),
  );
  return (await shown(dialog)) === "yes" ? { username: username.value, password: password.value } : null;
}
