// The page: finds the view that the address names, shows it, and asks for a token where one is needed.

import { get, post, token } from "./api.js";
import { forOperator } from "./dialogs.js";
import { fault, field, h, put } from "./dom.js";
import * as pulse from "./live_figures.js";
import * as theme from "./theme.js";
import { BY_TENANT, views } from "./views.js";
import { ask, who } from "./sign_in.js";

const main = document.getElementById("main");
let leave = () => {};
let turn = 0;
let asking = false;

function place() {
  const [name, query = ""] = location.hash.replace(/^#\//, "").split("?");
  return { name: views().some(([known]) => known === name) ? name : "overview", query: new URLSearchParams(query) };
}

async function show() {
  if (location.hash === "#main") return;
  const { name, query } = place();
  const [, title, load] = views().find(([known]) => known === name);
  const mine = ++turn;
  leave();
  leave = () => {};
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.name === name) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  document.title = [title, who.tenant, "FlockMQ"].filter(Boolean).join(" · ");
  try {
    const view = await load();
    if (mine !== turn) return;
    const host = h("div", { "data-view": name });
    put(main, choice(name), host);
    leave = view.show(host, query) ?? (() => {});
  } catch (error) {
    put(main, fault(error));
  }
}

// Of which tenant a list is, for operators; nothing where there is no choice.
function choice(name) {
  if (!who.tenants.length || !BY_TENANT.includes(name)) return null;
  const options = [["", "all"], ["/", "without a tenant"], ...who.tenants.map((tenant) => [tenant, tenant])];
  const select = h("select", { name: "tenant" }, ...options.map(([value, words]) => h("option", { value, selected: value === who.chosen }, words)));
  select.addEventListener("change", async () => {
    who.chosen = select.value;
    await show();
    main.querySelector("[name=tenant]")?.focus();
  });
  return h("div", { class: "bar" }, field("Tenant", select));
}

async function signIn(reason) {
  if (asking) return;
  asking = true;
  leave();
  leave = () => {};
  pulse.stop();
  pulse.forget();
  put(main);
  const ways = await get("/login").catch(() => ({ password: false }));
  for (let why = reason; ;) {
    const given = await forOperator(why, ways);
    if (!given) continue;
    try {
      if (given.token) token.set(given.token);
      else await post("/login", given);
      await ask();
      break;
    } catch (error) {
      token.clear();
      why = error.message;
    }
  }
  asking = false;
  begin();
}

function begin() {
  document.getElementById("sign-out").hidden = who.name === "this machine";
  const name = document.getElementById("of");
  name.textContent = name.title = who.tenant;
  put(document.getElementById("views"), views().map(([key, title]) => h("a", { href: `#/${key}`, "data-name": key }, title)));
  pulse.start();
  show();
}

theme.begin();
addEventListener("hashchange", () => {
  show();
  if (location.hash !== "#main") main.focus({ preventScroll: true });
});
// A hidden page must not keep connections: a browser has only six for a host.
addEventListener("pagehide", () => {
  leave();
  leave = () => {};
  pulse.stop();
});
document.addEventListener("visibilitychange", () => (document.hidden || asking || !who.role ? pulse.stop() : pulse.start()));
addEventListener("pageshow", (event) => event.persisted && begin());
addEventListener("token-needed", () => signIn("This node needs to know who you are."));
document.getElementById("sign-out").addEventListener("click", async () => {
  token.clear();
  await post("/logout").catch(() => {}); // of a login; with a token there is none
  location.reload();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
ask().then(begin, (error) => {
  if (error.status !== 401) put(main, fault(error));
});
