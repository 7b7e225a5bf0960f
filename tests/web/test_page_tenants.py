"""The page with a token of a tenant, which shows what is its own and nothing else, and with one of an operator."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flockmq.broker.admin.http.tokens import add
from tests.clients.packages import node_modules
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import until
from tests.harness.chromium import Chromium
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.security.test_tenant_isolation import client, messages, publish
from tests.web.http_client import HttpClient
from tests.web.test_page import VIEWS, click, fill, says, visit

RULES = [
    {"name": "acme", "user": "acme-*", "max_connections": 40, "messages_per_second": 5000},
    {"name": "*", "user": "*-device"},
]
MENU = [
    "Overview",
    "Clients",
    "Subscriptions",
    "Groups",
    "Retained",
    "Wills",
    "Delayed",
    "Publish",
    "Trace",
    "Bans",
    "Audit",
]
BROKER_VIEWS = ("topics", "doctor", "links", "console", "analytics", "log", "tenants")
WILL: dict[str, Any] = {"will_topic": "gone", "will_payload": b"w", "will_properties": {"will_delay_interval": 600}}
STAYS: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
TILE = "return [...document.querySelectorAll('.tile')].find((t) => t.innerText.startsWith(arguments[0]))?.innerText"
# All that the page has got or asked for: its content, its address and title, and each answer of the node.
RECORD = """
window.got = [];
const real = window.fetch;
window.fetch = async (url, given) => {
  const response = await real(url, given);
  const kind = response.headers.get('Content-Type') ?? '';
  const text = kind.startsWith('text/event-stream') ? '' : await response.clone().text();
  window.got.push([given.method, String(url), response.status, text]);
  return response;
};
"""


class World(NamedTuple):
    """A broker with two tenants, each with the same things under other names, and tokens of both and the operator."""

    broker: Broker
    url: str
    tokens: dict[str, str]
    clients: dict[str, SocketClient]

    def api(self, tenant: str) -> HttpClient:
        """The API as a tenant has it; `""`: the operator."""
        found = HttpClient(self.broker)  # type: ignore[arg-type]
        found.token = self.tokens[tenant]
        return found


@pytest.fixture
def store() -> str:
    return "memory"


@pytest.fixture
def world(start_broker: StartBroker, tmp_path: Path) -> Iterator[World]:
    """Two tenants: acme has acme-*, globex globex-*, and a client without a tenant has free-*."""
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    clients = {}
    for tenant in ("acme", "globex", ""):
        name = tenant or "free"
        client(broker, tenant, f"{name}-away", 5, **STAYS, **WILL).socket.close()
        clients[tenant] = here = client(broker, tenant, f"{name}-here", 5, **STAYS)
        here.subscribe((f"{name}-in/#", 1), (f"$share/{name}-group/jobs", 1))
        publish(here, f"{name}-kept/1", f"{name}-payload".encode(), retain=True)
    yield World(broker, HttpClient(broker).url, tokens, clients)  # type: ignore[arg-type]
    for each in clients.values():
        each.socket.close()


def settings(tmp_path: Path, **more: object) -> tuple[dict[str, object], dict[str, str]]:
    """Settings of a node, and a token of each by its name; `""`: of the operator."""
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    path = tmp_path / "tokens"
    tokens = {tenant: add(path, f"{tenant or 'operator'}-token", "admin", tenant) for tenant in ("acme", "globex", "")}
    tokens["reader"] = add(path, "reader-token", "viewer", "acme")
    found = files.settings(tenants=json.dumps(RULES), http__tokens_file=path, auth__allow_anonymous=True, **more)
    return {"http.listen": "127.0.0.1:0", **found}, tokens


def sign_in(browser: Chromium, url: str, token: str, view: str = "overview") -> None:
    """Open a view with a token, and record from then on what the page gets."""
    browser.open("about:blank")
    browser.open(f"{url}/#/{view}")
    browser.until("return document.querySelector('dialog[open]') !== null")
    browser.run(RECORD)
    browser.type(token)
    browser.press("Enter")
    browser.until("return document.querySelector('nav a') !== null && document.querySelector('[data-view]') !== null")


def go(browser: Chromium, view: str) -> None:
    """Go to a view within the page, which stays: its requests are still recorded."""
    browser.run("location.hash = '#/' + arguments[0]", view)
    browser.until("return document.querySelector('[data-view]')?.dataset.view === arguments[0]", view.partition("?")[0])
    browser.until("return !document.querySelector('main').innerText.includes('Loading')")


def menu(browser: Chromium) -> list[str]:
    found: list[str] = browser.run("return [...document.querySelectorAll('nav a')].map((a) => a.innerText)")
    return found


def all_seen(browser: Chromium) -> str:
    """All that the page shows, and all that it got of the node."""
    return str(browser.run("return document.documentElement.outerHTML + JSON.stringify(window.got)"))


def refused(browser: Chromium) -> list[Any]:
    """The requests of the page that were refused."""
    return [got for got in browser.run("return window.got") if got[2] >= 400]


@pytest.mark.parametrize("own", ["acme", "globex"])
def test_a_tenant_sees_its_own(browser: Chromium, world: World, own: str) -> None:
    """Every view; no request is refused, and the neighbour, other clients, nodes and versions are nowhere."""
    nodes = world.api("").get("/nodes")["nodes"]
    sign_in(browser, world.url, world.tokens[own])
    assert menu(browser) == MENU
    assert browser.run("return document.querySelector('header').innerText").split("\n")[:2] == ["FlockMQ", own]
    for name, figure in (("Clients", "1"), ("Sessions", "2"), ("Subscriptions", "2"), ("Retained", "1")):
        browser.until(f"{TILE}.endsWith('\\n' + arguments[1])", name, figure)
    browser.until("return document.getElementById('link').innerText === 'live'")
    says(browser, "5,000 /s" if own == "acme" else "None of its own.")
    assert browser.run("return document.title") == f"Overview · {own} · FlockMQ"
    seen = all_seen(browser)
    for view, texts in {
        "clients": [f"{own}-here"],
        f"clients?client={own}-here": [f"{own}-in/#", f"$share/{own}-group/jobs", "MQTT 5.0"],
        "subscriptions": [f"{own}-in/#", f"$share/{own}-group/jobs", f"{own}-here"],
        "groups": [f"$share/{own}-group/jobs"],
        "retained": [f"{own}-kept"],
        "wills": [f"{own}-away", "gone"],
        "publish": ["Topic name"],
        "bans": ["Nobody is banned."],
    }.items():
        go(browser, view)
        for text in texts:
            says(browser, text)
        seen += all_seen(browser)
    go(browser, "groups")
    click(browser, f"$share/{own}-group/jobs", "td")
    says(browser, f"{own}-here")
    go(browser, "retained")
    browser.until("return document.querySelector('.tree .name') !== null")
    browser.run("document.querySelector('.tree .name').click()")
    browser.until("return document.querySelectorAll('.tree .name').length === 2")
    browser.run("document.querySelectorAll('.tree .name')[1].click()")
    says(browser, f"{own}-payload")
    for view in BROKER_VIEWS:  # by the address alone
        browser.run("location.hash = '#/' + arguments[0]", view)
        browser.until("return document.querySelector('[data-view]')?.dataset.view === 'overview'")
    seen += all_seen(browser)
    assert refused(browser) == []
    others = {"acme", "globex", "free"} - {own}
    version = next(iter(nodes.values()))["version"]
    for trace in (*others, "$tenant", "operator-token", version, f":{world.broker.port}", "resident"):
        assert trace not in seen, (trace, seen[max(0, seen.index(trace) - 200) : seen.index(trace) + 100])
    assert "follow its messages" in seen.lower()


def test_a_tenant_acts_on_its_own(browser: Chromium, world: World) -> None:
    """Publish, ban, kick, clear, discard, end: within the tenant, while the neighbour notices nothing."""
    sign_in(browser, world.url, world.tokens["acme"], "publish")
    acme, globex = world.clients["acme"], world.clients["globex"]
    fill(browser, "topic", "acme-in/x")
    fill(browser, "payload", "päylöad")
    click(browser, "Publish", "main")
    browser.until("return document.getElementById('told').innerText.includes('Published to acme-in/x')")
    until(lambda: ("acme-in/x", "päylöad".encode()) in messages(acme))
    go(browser, "bans")
    assert browser.run("return [...document.querySelectorAll('[name=kind] option')].map((o) => o.value)") == [
        "client_id",
        "username",
    ]
    fill(browser, "value", "globex-here")  # of acme: the neighbour's is another
    click(browser, "Ban", "main")
    click(browser, "Ban", "dialog")
    says(browser, "acme-token")
    go(browser, "wills")
    click(browser, "Discard", "main")
    click(browser, "Discard", "dialog")
    says(browser, "No will waits.")
    go(browser, "retained")
    fill(browser, "filter", "#")
    click(browser, "Clear what matches")
    click(browser, "Clear", "dialog")
    browser.until("return document.getElementById('told').innerText.includes('1 message cleared')")
    go(browser, "clients?client=acme-here")
    click(browser, "Kick", "main")
    click(browser, "Kick", "dialog")
    until(lambda: acme.receive() is None)
    assert refused(browser) == []
    assert messages(globex) == []
    api = world.api("globex")
    assert len(api.get("/wills")["items"]) == len(api.get("/retained")["items"]) == 1
    assert api.get("/bans")["items"] == []


def test_a_tenant_cancels_delayed_messages(browser: Chromium, world: World) -> None:
    """It sees the messages to its own topics, the earliest first; an operator sees all, or one tenant's."""
    for name, each in world.clients.items():
        for seconds in (7200, 90000):
            publish(each, f"$delayed/{seconds}/{name or 'free'}-later/{seconds}", b"x" * 2048, retain=True)
    rows = "return [...document.querySelectorAll('main tbody tr')].map((r) => [...r.cells].map((c) => c.innerText))"
    sign_in(browser, world.url, world.tokens["acme"], "delayed")
    browser.until(f"{rows.replace('return', 'const found =')}; return found.length === 2")
    early, late = browser.run(rows)
    assert early == ["acme-later/7200", early[1], "acme-here", "1, retained", "2.0 KiB", "Cancel"]
    assert (late[0], early[1][:2], late[1][:3]) == ("acme-later/90000", "1 ", "1 d")
    click(browser, "Cancel", "main")
    click(browser, "Drop", "dialog")
    browser.until(f"{rows.replace('return', 'const found =')}; return found.length === 1")
    assert browser.run(rows)[0][0] == "acme-later/90000"
    assert "globex" not in all_seen(browser)
    assert [item["topic"] for item in world.api("acme").get("/delayed")["items"]] == ["acme-later/90000"]
    assert refused(browser) == []
    click(browser, "Sign out")
    sign_in(browser, world.url, world.tokens[""], "delayed")
    for value, shown in (("", 5), ("globex", 2), ("/", 2)):
        browser.run(
            "const s = document.querySelector('[name=tenant]'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('change'))",
            value,
        )
        browser.until("return document.querySelectorAll('main tbody tr').length === arguments[0]", shown)


@pytest.mark.parametrize("own", ["acme", ""], ids=["tenant", "operator"])
def test_a_group_is_declared(browser: Chromium, world: World, own: str) -> None:
    """Declared, changed, paused, and ended. A setting without a value is as configured; a wrong value is reported."""
    api, group = world.api(own), "$share/workers/jobs/#"
    sign_in(browser, world.url, world.tokens[own], "groups")
    fill(browser, "name", "workers")
    fill(browser, "filter", "jobs/#")
    fill(browser, "window", "3")
    fill(browser, "expiry", "90")
    browser.run("document.querySelector('[name=when_full]').value = 'drop-new'")
    click(browser, "Declare", "main")
    says(browser, "yes: messages wait without subscribers")
    configured = api.get("/group", group=f"$share/{own or 'free'}-group/jobs")["settings"]
    expected = {**configured, "window": 3, "expiry": 90, "when_full": "drop-new"}
    assert api.get("/group", group=group)["settings"] == expected
    assert browser.run("return document.querySelector('[name=window]').value") == ""
    neighbour = world.api("globex").get("/groups")["items"]
    assert [item["group"] for item in neighbour] == ["$share/globex-group/jobs"]
    click(browser, "Pause", "main")
    says(browser, "subscribers get no new messages")
    click(browser, "Change", "main")
    assert browser.run("return document.querySelector('[name=expiry]').value") == "90"
    assert browser.run("return document.querySelector('[name=max_queued_messages]').value") == "", "it is as configured"
    assert browser.run("return document.querySelector('[name=strategy]').value") == ""
    fill(browser, "max_deliveries", "5")
    fill(browser, "dead_letter_topic", "dead/#")
    click(browser, "Declare", "main")
    browser.until("return document.getElementById('told').innerText.includes('a topic name without wildcards')")
    assert api.get("/group", group=group)["settings"] == {**expected, "paused": True}
    fill(browser, "dead_letter_topic", "dead")
    click(browser, "Declare", "main")
    says(browser, "after 5 attempts, to dead")
    changed = {**expected, "max_deliveries": 5, "dead_letter_topic": "dead"}
    assert api.get("/group", group=group)["settings"] == {**changed, "paused": True}
    own_settings = ["dead_letter_topic", "expiry", "max_deliveries", "paused", "when_full", "window"]
    assert api.get("/group", group=group)["own"] == own_settings, "the others still follow the configuration"
    click(browser, "Go on", "main")
    until(lambda: api.get("/group", group=group)["settings"] == changed)
    click(browser, "Declare no more", "main")
    click(browser, "End", "dialog")
    until(lambda: group not in [item["group"] for item in api.get("/groups")["items"]])
    assert [got[2] for got in refused(browser)] == [422]


def test_a_reader_of_a_tenant_changes_nothing(browser: Chromium, world: World) -> None:
    sign_in(browser, world.url, world.tokens["reader"])
    assert menu(browser) == [title for title in MENU if title not in ("Publish", "Audit")]
    for view in ("clients?client=acme-here", "groups", "retained", "wills", "delayed", "bans"):
        go(browser, view)
        says(browser, {"bans": "Nobody is banned.", "delayed": "No message waits."}.get(view, "acme"))
        assert browser.run("return document.querySelectorAll('main form.stack').length") == 0
        assert browser.run("return document.querySelectorAll('main .danger, main td button:not(.plain)').length") == 0
    assert refused(browser) == []


def test_the_next_holder_finds_nothing_of_the_one_before(browser: Chromium, world: World, tmp_path: Path) -> None:
    """A token is revoked while its page is open, and a tenant signs in there."""
    sign_in(browser, world.url, world.tokens[""])
    browser.until("return document.querySelector('.chart').innerText.includes('highest')")
    path = tmp_path / "tokens"
    lines = [line for line in path.read_text().splitlines() if "operator" not in line]
    path.write_text("\n".join(lines) + "\n")
    browser.until("return document.querySelector('dialog[open]') !== null")
    assert browser.run("return document.querySelector('main').innerText") == ""
    browser.run("window.got = []")
    browser.type(world.tokens["acme"])
    browser.press("Enter")
    browser.until("return document.getElementById('of').innerText === 'acme'")
    browser.until(f"{TILE}.endsWith('\\n1')", "Clients")
    assert menu(browser) == MENU and "globex" not in all_seen(browser)
    assert refused(browser) == []


def test_an_operator_chooses_a_tenant(browser: Chromium, world: World) -> None:
    sign_in(browser, world.url, world.tokens[""], "clients")
    assert "Tenants" in menu(browser) and "Console" in menu(browser) and "Publish" not in menu(browser)
    assert browser.run("return document.getElementById('of').innerText") == ""
    chosen = "return [...document.querySelectorAll('[name=tenant] option')].map((o) => o.innerText)"
    assert browser.run(chosen) == ["all", "without a tenant", "acme", "globex"]
    names = {"": "free", "acme": "acme", "globex": "globex"}
    for view, suffix in (("clients", "-here"), ("subscriptions", "-in/#"), ("groups", "-group/"), ("wills", "-away")):
        go(browser, view)
        for value, shown in (("", [*names.values()]), ("/", ["free"]), ("acme", ["acme"]), ("globex", ["globex"])):
            browser.run(
                "const s = document.querySelector('[name=tenant]'); s.value = arguments[0];"
                "s.dispatchEvent(new Event('change'))",
                value,
            )
            browser.until(
                "const text = document.querySelector('[data-view]').innerText;"
                "return arguments[0].every(([name, there]) => text.includes(name) === there)",
                [(name + suffix if view != "groups" else f"{name}-group", name in shown) for name in names.values()],
            )
    go(browser, "retained")
    assert browser.run("return document.querySelector('[name=tenant]')") is None
    go(browser, "tenants")
    row = "[...document.querySelectorAll('main tbody tr')].find((r) => r.innerText.startsWith(arguments[0]))"
    browser.until(f"return {row}?.innerText.includes('Connections 40, Messages 5,000 /s')", "acme")
    cells = f"return [...{row}.querySelectorAll('td')].map((c) => c.innerText)"
    assert browser.run(cells, "globex") == ["globex", "1", "2", "2", "1, 14 B", "0, 0 B", "0", "1, 222 B", "\u2013"]
    click(browser, "globex", "td")
    says(browser, "$tenant/globex/globex-here")
    assert browser.run("return document.querySelector('[name=tenant]').value") == "globex"
    assert "acme-here" not in browser.run("return document.querySelector('[data-view]').innerText")
    assert refused(browser) == []


def test_without_tenants_the_page_is_as_before(browser: Chromium, start_broker: StartBroker) -> None:
    url = HttpClient(start_broker({"http.listen": "127.0.0.1:0"})).url  # type: ignore[arg-type]
    visit(browser, url, "clients")
    assert browser.run("return document.querySelector('[name=tenant]')") is None
    assert [title.lower() for title in menu(browser)] == list(VIEWS)


@pytest.mark.parametrize("width", [1200, 360], ids=["desk", "phone"])
@pytest.mark.parametrize("own", ["acme", ""], ids=["tenant", "operator"])
def test_everybody_can_use_it(browser: Chromium, world: World, own: str, width: int) -> None:
    """Axe finds nothing wrong, nothing is wider than the screen, and the choice works by keyboard."""
    browser.look(width, 800)
    sign_in(browser, world.url, world.tokens[own])
    browser.run((node_modules() / "axe-core" / "axe.min.js").read_text())
    for view in (
        "overview",
        "clients",
        "subscriptions",
        "groups",
        "wills",
        "delayed",
        "publish" if own else "tenants",
        "bans",
    ):
        go(browser, view)
        found = browser.run(
            "return axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) =>"
            " `${v.id}: ${v.nodes.map((n) => n.html + ' ' + n.failureSummary).join(' | ')}`))"
        )
        assert not found, (view, found)
        wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], (view, wide)
    if not own:
        go(browser, "wills")
        browser.run("document.getElementById('main').focus()")
        browser.press("Tab")
        for _ in range(2):
            browser.press("ArrowDown")
            browser.until("return document.activeElement.name === 'tenant'")
        browser.until("return document.querySelector('[name=tenant]').value === 'acme'")
        browser.until("return !document.querySelector('main').innerText.includes('globex-away')")


def test_nodes_are_not_named(browser: Chromium, start_cluster: StartCluster, tmp_path: Path) -> None:
    """Figures are sums over the nodes; a node that does not answer is a part of the broker."""
    given, tokens = settings(tmp_path)
    cluster = start_cluster(given, nodes="ab")
    with client(cluster["a"], "acme", "one", 5) as one, client(cluster["b"], "acme", "two", 5) as two:
        publish(one, "a", b"12345")
        publish(two, "a", b"123")
        api = HttpClient(cluster["a"], tokens["acme"])
        until(lambda: api.get("/tenants")["items"][0]["figures"]["received"] == 2)
        found = api.get("/tenants")["items"][0]["figures"]
        assert (found["connections"], found["sessions"], found["received_bytes"]) == (2, 2, 8)
        sign_in(browser, api.url, tokens["acme"], "clients")
        for name in ("one", "two"):
            says(browser, name)
        nodes = list(HttpClient(cluster["a"], tokens[""]).get("/nodes")["nodes"])
        cluster["b"].signal(signal.SIGSTOP)
        try:
            go(browser, "subscriptions")
            says(browser, "a part of the broker did not answer")
            browser.until("return document.getElementById('link').innerText === 'incomplete'")
        finally:
            cluster["b"].signal(signal.SIGCONT)
        seen = all_seen(browser)
        assert [node for node in nodes if node in seen] == []
        assert refused(browser) == []
