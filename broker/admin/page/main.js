// The page: finds the view that the address names, shows it, and asks for a token where one is needed.

import { get, token } from "./api.js";
import { forToken } from "./ask.js";
import { fault, h, put } from "./dom.js";
import * as pulse from "./pulse.js";
import * as theme from "./theme.js";
import { VIEWS } from "./views.js";

const main = document.getElementById("main");
let leave = () => {};
let turn = 0;
let asking = false;

function place() {
  const [name, query = ""] = location.hash.replace(/^#\//, "").split("?");
  return { name: VIEWS.some(([known]) => known === name) ? name : "overview", query: new URLSearchParams(query) };
}

async function show() {
  if (location.hash === "#main") return;
  const { name, query } = place();
  const [, title, load] = VIEWS.find(([known]) => known === name);
  const mine = ++turn;
  leave();
  leave = () => {};
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.name === name) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  document.title = `${title} · FlockMQ`;
  try {
    const view = await load();
    if (mine !== turn) return;
    const host = h("div", { "data-view": name });
    put(main, host);
    leave = view.show(host, query) ?? (() => {});
  } catch (error) {
    put(main, fault(error));
  }
}

async function signIn(reason) {
  if (asking) return;
  asking = true;
  pulse.stop();
  for (let why = reason; ;) {
    const given = await forToken(why);
    if (!given) continue;
    token.set(given);
    try {
      await get("/me");
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
  document.getElementById("sign-out").hidden = !token.get();
  pulse.start();
  show();
}

theme.begin();
put(document.getElementById("views"), VIEWS.map(([name, title]) => h("a", { href: `#/${name}`, "data-name": name }, title)));
addEventListener("hashchange", () => {
  show();
  if (location.hash !== "#main") main.focus({ preventScroll: true });
});
// A page that nobody looks at must not keep connections: a browser has only six for a host.
addEventListener("pagehide", () => {
  leave();
  leave = () => {};
  pulse.stop();
});
document.addEventListener("visibilitychange", () => (document.hidden || asking ? pulse.stop() : pulse.start()));
addEventListener("pageshow", (event) => event.persisted && begin());
addEventListener("token-needed", () => signIn("This node takes a token."));
document.getElementById("sign-out").addEventListener("click", () => {
  token.clear();
  location.reload();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
get("/me").then(begin, (error) => {
  if (error.status !== 401) put(main, fault(error));
});
