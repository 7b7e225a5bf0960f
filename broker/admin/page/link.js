// A view's connection to the broker: what it is at, and who it is. The credentials are those of all views, in memory only.

import { forCredentials } from "./dialogs.js";
import { h } from "./dom.js";

let credentials = {};

// Open the client's connection; returns an element that says how that goes.
export function linked(client) {
  const state = h("span", { class: "link", role: "status" });
  const button = h("button", { type: "button", class: "quiet", onclick: () => enter(client) }, "Sign in as…");
  client.addEventListener("state", () => {
    const good = client.state === "open";
    state.className = `link ${good ? "good" : client.state === "refused" ? "bad" : ""}`;
    const who = credentials.username ? `connected as ${credentials.username}` : "connected";
    state.textContent = good ? who : client.reason ? `${client.state}: ${client.reason}` : client.state;
  });
  client.open(credentials);
  return h("div", { class: "bar middle" }, state, button);
}

async function enter(client) {
  const given = await forCredentials("As a client of this broker, like any other: what you may publish and read is what its rules say.");
  if (!given) return;
  credentials = given;
  client.become(credentials);
}
