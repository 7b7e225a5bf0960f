"""The web page in a real browser, over a real node: each view, by mouse and keyboard, whatever clients are called."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Publish, Subscribe
from flockmq.broker.admin.http.tokens import add
from flockmq.broker.doctor import SEVERITIES
from tests.clients.packages import node_modules
from tests.harness.broker_process import BrokerProcess
from tests.harness.chromium import Chromium
from tests.harness.cluster_process import ClusterProcess
from tests.harness.command import flockmq
from tests.harness.socket_client import SocketClient
from tests.security.oidc_provider import SECRET, Provider
from tests.web.http_client import HttpClient

StartBroker = Callable[..., BrokerProcess]
StartCluster = Callable[..., ClusterProcess]
VIEWS = (
    "overview",
    "clients",
    "slow",
    "topics",
    "groups",
    "doctor",
    "limits",
    "links",
    "retained",
    "delayed",
    "console",
    "analytics",
    "trace",
    "users",
    "roles",
    "bans",
    "operators",
    "audit",
    "log",
)
EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}\u202e"
TILE = "[...document.querySelectorAll('.tile')].find((t) => t.innerText.startsWith(arguments[0])).innerText"
PAINTED = """
const colour = getComputedStyle(document.documentElement).getPropertyValue(arguments[0]);
const [red, green, blue] = colour.match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
const canvas = [...document.querySelectorAll(".chart canvas")].at(-1);
const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
copy.drawImage(canvas, 0, 0);
const pixels = new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
return pixels.includes(((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0);
"""  # whether the curve of the clients is there, in this colour
HAS = "return document.querySelector('main').innerText.includes(arguments[0])"


def visit(browser: Chromium, url: str, view: str) -> None:
    """Open a view and wait until it is there."""
    browser.open(f"{url}/#/{view}")
    browser.until("return document.querySelector('[data-view]')?.dataset.view === arguments[0]", view.partition("?")[0])


def click(browser: Chromium, name: str, within: str = "body") -> None:
    """Click the button or link with this text."""
    browser.until(
        "const found = [...document.querySelectorAll(arguments[0] + ' :is(button, a, .row)')]"
        ".find((e) => e.innerText.trim() === arguments[1] && !e.disabled && e.checkVisibility());"
        "found?.click(); return Boolean(found)",
        within,
        name,
    )


def fill(browser: Chromium, name: str, text: str) -> None:
    """Type into the field of this name."""
    browser.run("document.querySelector(`main [name=${arguments[0]}]`).select()", name)
    browser.type(text)


def says(browser: Chromium, text: str) -> None:
    """Wait for a text on the page."""
    browser.until(HAS, text)


@pytest.fixture(scope="module", autouse=True)
def messages(node: BrokerProcess) -> None:
    """The retained messages at the shared node."""
    with SocketClient(node.port, "setter") as client:
        for number in range(3):
            client.send(Publish(f"site/{number}/t", json.dumps({"value": number}).encode(), retain=True))
        client.send(Publish(f"evil/{EVIL}", EVIL.encode(), retain=True))
        client.ping()


def test_overview_counts_what_passes(browser: Chromium, node: BrokerProcess, url: str) -> None:
    visit(browser, url, "overview")
    browser.until("return document.getElementById('link').innerText === 'live'")
    says(browser, "ready")
    with SocketClient(node.port, "c") as client:
        browser.until(f"return {TILE}.endsWith('\\n1')", "Clients")
        for _ in range(50):
            client.send(Publish("a", b"x"))
        browser.until("return !document.querySelector('.chart').innerText.includes('minutes: 0 /s')")
        for theme in ("light", "dark"):
            assert browser.run("return document.documentElement.dataset.theme") == theme
            browser.until(PAINTED, "--s0")
            browser.run("document.getElementById('theme').click()")


def test_doctor_has_the_worst_finding_first(browser: Chromium, url: str) -> None:
    visit(browser, url, "doctor")
    says(browser, "FlockMQ 0.1.0")
    told = browser.run("return [...document.querySelectorAll('main .pill')].map((pill) => pill.innerText)")
    assert len(told) > 3 and told == sorted(told, key=SEVERITIES.index)


def test_the_library_of_the_charts_is_served_and_nothing_beside_it(url: str) -> None:
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        with urllib.request.urlopen(f"{url}/{name}") as reply:
            assert reply.read() == (files("flockmq.broker") / "uplot" / name).read_bytes()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/LICENSE")


def test_a_client_is_found_and_kicked(browser: Chromium, node: BrokerProcess, url: str) -> None:
    with SocketClient(node.port, "pump-17") as pump, SocketClient(node.port, "lamp-1"):
        pump.subscribe(("site/+/set", 1))
        visit(browser, url, "clients")
        says(browser, "lamp-1")
        fill(browser, "search", "pump")
        browser.until(f"{HAS} && !document.querySelector('main').innerText.includes('lamp-1')", "pump-17")
        click(browser, "pump-17", "td")
        says(browser, "site/+/set")
        click(browser, "Kick")
        click(browser, "Cancel", "dialog")
        assert pump.ping() == []
        click(browser, "Kick", "main")
        click(browser, "Kick", "dialog")
        assert pump.receive() is None
        says(browser, "No client fits.")


def test_topics_grow_as_messages_pass(browser: Chromium, node: BrokerProcess, url: str) -> None:
    visit(browser, url, "topics")
    says(browser, "site")
    with SocketClient(node.port, "talker") as client:
        client.send(Publish("new/topic/here", b'{"on": true}'))
        says(browser, "new")
        for level in ("new", "topic", "here"):
            browser.run(
                "[...document.querySelectorAll('.tree .row')]"
                ".find((r) => r.querySelector('.name').innerText === arguments[0]).click()",
                level,
            )
        says(browser, '"on": true')


def test_retained_messages_are_read_and_cleared(browser: Chromium, node: BrokerProcess, url: str) -> None:
    with SocketClient(node.port, "setter2") as client:
        client.send(Publish("gone/1", b"one", retain=True), Publish("gone/2", b"two", retain=True))
        client.ping()
        visit(browser, url, "retained")
        says(browser, "gone")
        browser.run("[...document.querySelectorAll('.tree .name')].find((n) => n.innerText === 'gone').click()")
        browser.until("return [...document.querySelectorAll('.tree .name')].some((n) => n.innerText === '2')")
        browser.run("document.querySelectorAll('.tree [aria-expanded=true] [role=treeitem] .name')[1].click()")
        says(browser, "two")
        fill(browser, "filter", "gone/#")
        click(browser, "Clear what matches")
        click(browser, "Clear", "dialog")
        browser.until("return document.getElementById('told').innerText.includes('2 messages cleared')")
    assert HttpClient(node).ask("GET", "/retained", parent="gone").status == 404


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_console_round_trip(browser: Chromium, node: BrokerProcess, url: str, qos: int) -> None:
    visit(browser, url, "console")
    browser.until("return document.querySelector('main .link').innerText === 'connected'")
    fill(browser, "filter", f"round/{qos}/+")
    browser.run("document.querySelectorAll('main select')[1].value = String(arguments[0])", qos)
    click(browser, "Subscribe", "main")
    browser.until("return document.querySelectorAll('main .legend li').length === 1")
    with SocketClient(node.port, "other") as other:
        other.subscribe((f"round/{qos}/+", qos))
        fill(browser, "topic", f"round/{qos}/x")
        fill(browser, "payload", "päylöad")
        browser.run("document.querySelectorAll('main select')[0].value = String(arguments[0])", qos)
        click(browser, "Publish", "main")
        browser.until(
            "return document.getElementById('told').innerText.includes(arguments[0])", "Acknowledged" if qos else "Sent"
        )
        got = other.receive()
        assert isinstance(got, Publish) and (got.payload, got.qos) == ("päylöad".encode(), qos)
        browser.until(
            "return document.querySelector('.log').innerText.includes(`round/${arguments[0]}/x`)"
            " && document.querySelector('.log').innerText.includes(`QoS ${arguments[0]}`)",
            qos,
        )


def test_the_console_speaks_mqtt_5(browser: Chromium, node: BrokerProcess, url: str) -> None:
    """Properties of messages, reasons of refusals, and the level of clients."""
    visit(browser, url, "console")
    browser.until("return document.querySelector('main .link').innerText === 'connected'")
    fill(browser, "filter", "five/+")
    click(browser, "Subscribe", "main")
    browser.until("return document.querySelectorAll('main .legend li').length === 1")
    with SocketClient(node.port, "five", level=5, properties={"receive_maximum": 12}) as five:
        properties = {
            "message_expiry_interval": 90,
            "content_type": "text/ü",
            "correlation_data": b"\x01\xff",
            "payload_format_indicator": 1,
            "user_property": [("reason", EVIL), ("b", "2")],
        }
        five.send(Publish("five/x", b"payload", properties=properties))
        for text in (
            "expires in: 90 s",
            "content type: text/ü",
            "data: 01 ff",
            "format: text",
            f"reason: {EVIL}",
            "b: 2",
        ):
            browser.until("return document.querySelector('.log').innerText.includes(arguments[0])", text)
        fill(browser, "topic", "$SYS/x")
        browser.run("document.querySelectorAll('main select')[0].value = '1'")
        click(browser, "Publish", "main")
        told = "return document.getElementById('told').innerText.includes(arguments[0])"
        browser.until(told, "It was refused: not authorized: ")
        fill(browser, "filter", "a/#/b")
        click(browser, "Subscribe", "main")
        browser.until(told, "a/#/b: invalid topic filter: ")
        five.send(Subscribe(1, [("s", 1 | 4)], {"subscription_identifier": 4711}))
        five.receive()
        visit(browser, url, "clients?client=five")
        for text in ("MQTT 5.0", "12 messages at a time", "no local", "4711"):
            says(browser, text)


def fill_properties(browser: Chromium) -> None:
    browser.run("document.querySelector('main details').open = true")
    for name, text in {
        "content-type": "text/ü",
        "response-topic": "answers",
        "correlation-data": "c 7",
        "expiry": "4000000000",
        "user-properties": f"a: {EVIL}\n\na:2",
    }.items():
        fill(browser, name, text)


def test_the_console_publishes_properties(browser: Chromium, node: BrokerProcess, url: str) -> None:
    visit(browser, url, "console")
    browser.until("return document.querySelector('main .link').innerText === 'connected'")
    told = "return document.getElementById('told').innerText.includes(arguments[0])"
    fill(browser, "topic", "published/x")
    fill_properties(browser)
    browser.run("document.querySelectorAll('main select')[0].value = '1'")
    with SocketClient(node.port, "reads", level=5) as reader:
        click(browser, "Publish", "main")
        browser.until(told, "nobody has subscribed to it")
        reader.subscribe(("published/x", 0))
        click(browser, "Publish", "main")
        got = reader.receive()
        assert isinstance(got, Publish) and got.properties == {
            "message_expiry_interval": 4_000_000_000,
            "content_type": "text/ü",
            "response_topic": "answers",
            "correlation_data": b"c 7",
            "user_property": [("a", EVIL), ("a", "2")],
        }
    fill(browser, "user-properties", "no colon")
    click(browser, "Publish", "main")
    browser.until(told, 'not "no colon"')
    fill(browser, "user-properties", "")
    fill(browser, "response-topic", "a/#")
    click(browser, "Publish", "main")
    browser.until("return document.querySelector('main .link').innerText.includes('invalid topic name: ')")


def test_a_ban_is_made_and_lifted(browser: Chromium, node: BrokerProcess, url: str) -> None:
    visit(browser, url, "bans")
    says(browser, "Nobody is banned.")
    with SocketClient(node.port, "eve") as eve:
        fill(browser, "value", "eve")
        click(browser, "Ban", "main")
        click(browser, "Ban", "dialog")
        assert eve.receive() is None
    says(browser, "for good")
    click(browser, "Lift", "main")
    click(browser, "Lift", "dialog")
    says(browser, "Nobody is banned.")


def test_the_log_level_is_set(browser: Chromium, node: BrokerProcess, url: str) -> None:
    visit(browser, url, "log")
    says(browser, f"127.0.0.1:{node.port}")
    browser.run("document.querySelector('main [name=level]').value = 'debug'")
    click(browser, "Set", "main")
    browser.until("return document.querySelector('main table').innerText.includes('debug')")
    HttpClient(node).ask("PUT", "/log-level", {"level": "info"})


def test_changes_are_on_record(browser: Chromium, node: BrokerProcess, url: str) -> None:
    ban = {"kind": "client_id", "value": EVIL, "reason": EVIL}
    api = HttpClient(node)
    assert api.ask("POST", "/bans", ban).status == 200
    assert api.ask("DELETE", "/bans", kind="client_id", value=EVIL).status == 204
    visit(browser, url, "audit")
    browser.until("return document.querySelectorAll('main tbody tr').length >= 2")
    click(browser, "ban", "main")
    browser.until(
        "return document.querySelector('dialog pre')?.innerText.includes(arguments[0])", json.dumps(EVIL)[1:9]
    )
    click(browser, "Close", "dialog")
    browser.run("document.querySelector('main [name=result]').value = 'failed'")
    click(browser, "Show", "main")
    says(browser, "No change is on record.")


def test_a_message_is_followed(browser: Chromium, node: BrokerProcess, url: str) -> None:
    visit(browser, url, "trace?topic=followed/%23")
    says(browser, "Following")
    with SocketClient(node.port, "getter") as getter, SocketClient(node.port, "giver") as giver:
        getter.subscribe(("followed/+", 0))
        giver.send(Publish("followed/1", b"x"))
        getter.receive()
        for word in ("received from", "sent to"):
            browser.until("return document.querySelector('.log').innerText.includes(arguments[0])", word)
    click(browser, "Stop", "main")
    says(browser, "Stopped")


def test_what_nodes_and_the_job_tell_is_shown(browser: Chromium, start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0"}, nodes="ab")
    results = {
        "silent/pump%2F7": {"since": "2026-11-21T09:00:00Z", "usual_interval": 10.0, "node": "a"},
        "rates/site": {"window_end": "2026-11-21T09:01:00Z", "messages": 600, "rate": 10.0, "bytes": 4800, "nodes": []},
        "top/clients": {"top": [{"client_id": EVIL, "messages": 9, "bytes": 90, "share": 0.5, "rank": 1}]},
        "lag": {"nodes": [{"node": "a", "p50": 0.5, "p99": 1.5, "max": 2.0, "messages": 600}]},
        "outliers/t": {"topic": "t", "field": "", "value": 99.0, "score": 12.5, "accepted_at": "2026-11-21T09:00:00Z"},
    }
    client = cluster.redis.client()
    for topic, result in results.items():
        client.fcall("flockmq_result", 0, "mq:", topic, json.dumps(result))
    visit(browser, HttpClient(cluster["a"]).url, "overview")
    browser.until("return [...document.querySelectorAll('main tbody tr')].map((r) => r.innerText[0]).join('') === 'ab'")
    visit(browser, HttpClient(cluster["b"]).url, "analytics")
    for text in ("pump/7", "10.0 s", "site", "600", EVIL.replace("\u202e", ""), "50.0 %", "1.5 s", "12.5"):
        says(browser, text)


def test_shards_are_shown_if_there_are_several(browser: Chromium, start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0", "cluster.shards": 2}, nodes="a")
    rows = "[...document.querySelectorAll('table[aria-label=Shards] tbody tr')].map((r) => r.innerText)"
    visit(browser, HttpClient(cluster["a"]).url, "overview")
    browser.until(f"const rows = {rows}; return rows.length === 2 && rows.every((row) => row.includes('connected'))")
    cluster.redis.kill()
    browser.until(f"return {rows}.every((row) => row.includes('away from 1 node'))")
    cluster.redis.start()
    browser.until(f"return {rows}.every((row) => row.includes('connected'))")


def test_what_clients_say_is_text(browser: Chromium, node: BrokerProcess, url: str) -> None:
    browser.requests()
    with SocketClient(node.port, EVIL) as client:
        client.subscribe((f"x/{EVIL}", 0))
        for view, path in (("clients", EVIL), ("topics", "evil"), ("retained", "evil"), ("console", "")):
            visit(browser, url, view)
            if view == "clients":
                browser.until("return document.querySelector('td button.plain') !== null")
                browser.run("document.querySelector('td button.plain').click()")
                says(browser, "x/<img")
            elif view == "console":
                fill(browser, "filter", "evil/#")
                click(browser, "Subscribe", "main")
                browser.until("return document.querySelector('.log').innerText.includes('<img')")
            else:
                says(browser, path)
                browser.run("[...document.querySelectorAll('.tree .name')].find((n) => n.innerText === 'evil').click()")
                browser.until("return document.querySelector('.tree').innerText.includes('<img')")
                browser.run("document.querySelector('.tree [aria-expanded=true] [role=treeitem] .name').click()")
                browser.until("return document.querySelector('pre.payload')?.innerText.includes('<img')")
            assert browser.run("return document.querySelectorAll('main img').length") == 0
    hosts = {request.split("/")[2] for request in browser.requests() if request.startswith(("http", "ws"))}
    assert hosts == {url.split("/")[2]}


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_token_is_asked_for(browser: Chromium, start_broker: StartBroker, tmp_path: Path) -> None:
    token = add(tmp_path / "tokens", "ann", "admin")
    broker = start_broker({"http.listen": "127.0.0.1:0", "http.tokens_file": tmp_path / "tokens"})
    url = HttpClient(broker).url
    browser.open(f"{url}/#/clients")
    browser.until("return document.querySelector('dialog[open]') !== null")
    browser.type("wrong")
    browser.press("Enter")
    browser.until("return document.querySelector('dialog[open]')?.innerText.includes('unknown token')")
    browser.type(token)
    browser.press("Enter")
    says(browser, "No client fits.")
    visit(browser, url, "console")
    browser.until("return document.querySelector('main .link').innerText === 'connected'")
    click(browser, "Sign out")
    browser.until("return document.querySelector('dialog[open]') !== null")


@pytest.mark.parametrize("store", ["memory"])
def test_operators_sign_in_and_manage_each_other(browser: Chromium, start_broker: StartBroker) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0"})
    url = HttpClient(broker).url
    visit(browser, url, "operators")
    says(browser, "There are no operators")
    fill(browser, "name", "ann")
    fill(browser, "password", "correct horse battery")
    browser.run("document.querySelector('main [name=role]').value = 'admin'")
    click(browser, "Add", "main")
    for password, said in (("wrong", "wrong name or password"), ("correct horse battery", "")):
        browser.until("return document.querySelector('dialog[open] [name=password]') !== null")
        browser.run("document.querySelector('dialog [name=name]').focus()")
        browser.type("ann")
        browser.press("Tab")
        browser.type(password)
        browser.press("Enter")
        if said:
            browser.until("return document.querySelector('dialog[open]')?.innerText.includes(arguments[0])", said)
    browser.until("return document.querySelector('dialog') === null")
    visit(browser, url, "operators")
    says(browser, "enabled")
    fill(browser, "key-name", "grafana")
    click(browser, "Make a key", "main")
    browser.until("return document.querySelector('dialog pre')?.innerText.startsWith('flockmq_')")
    key = str(browser.run("return document.querySelector('dialog pre').innerText"))
    assert HttpClient(broker, key).get("/me")["name"] == "grafana"
    click(browser, "Close", "dialog")
    says(browser, "grafana")
    click(browser, "Disable", "main")
    browser.until("return document.querySelector('.told')?.innerText.includes('the last administrator')")
    browser.run("location.reload()")  # the login is a cookie
    says(browser, "enabled")
    assert browser.run("return document.cookie") == ""  # which scripts can't read
    click(browser, "Sign out")
    browser.until("return document.querySelector('dialog[open] [name=password]') !== null")


@pytest.mark.parametrize("store", ["memory"])
def test_an_operator_signs_in_at_a_provider(browser: Chromium, start_broker: StartBroker, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with Provider() as provider:
        own = {"oidc.issuer": provider.issuer, "oidc.secret_file": tmp_path / "secret", "oidc.roles": "staff=admin"}
        url = HttpClient(start_broker({"http.listen": "127.0.0.1:0", **own})).url
        browser.open(url)
        click(browser, "Sign in at the identity provider", "dialog")
        browser.until("return document.querySelector('[data-view]') !== null")  # the cookie is there at once
    visit(browser, url, "operators")
    says(browser, "There are no operators")
    click(browser, "Sign out")
    browser.until("return document.querySelector('dialog[open]') !== null")


@pytest.mark.parametrize("store", ["memory"])
def test_the_console_signs_in_as_a_user(browser: Chromium, start_broker: StartBroker, tmp_path: Path) -> None:
    flockmq("passwd", tmp_path / "users", "ann", entered="secret\n")
    users = {"auth.password_file": tmp_path / "users", "auth.allow_anonymous": False, "auth.failure_delay": "0s"}
    broker = start_broker({"http.listen": "127.0.0.1:0", **users})
    visit(browser, HttpClient(broker).url, "console")
    link = "return document.querySelector('main .link').innerText"
    browser.until(f"{link}.startsWith('refused')")
    for password, outcome in (("wrong", "refused: wrong"), ("secret", "connected as ann")):
        click(browser, "Sign in as…")
        browser.type("ann")
        browser.press("Tab")
        browser.type(password)
        browser.press("Enter")
        browser.until("return document.querySelector('dialog') === null")
        browser.until(f"{link}.startsWith(arguments[0])", outcome)
    assert HttpClient(broker).get("/clients")["items"][0]["username"] == "ann"
    ban = {"kind": "username", "value": "ann"}
    assert HttpClient(broker).ask("POST", "/bans", ban).status == 200
    browser.until(f"{link}.startsWith('refused: banned')")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360], ids=["desk", "phone"])
def test_everybody_can_use_it(browser: Chromium, node: BrokerProcess, url: str, width: int, dark: bool) -> None:
    """Axe finds nothing wrong, and nothing is wider than the screen."""
    axe = (node_modules() / "axe-core" / "axe.min.js").read_text()
    browser.look(width, 800, dark)
    with SocketClient(node.port, "a-client-with-a-rather-long-identifier-" * 3):
        for view in VIEWS:
            visit(browser, url, view)
            browser.until("return !document.querySelector('main').innerText.includes('Loading')")
            if not browser.run("return Boolean(window.axe)"):  # the page stays from view to view
                browser.run(axe)
            found = browser.run(
                "return axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) =>"
                " `${v.id}: ${v.nodes.map((n) => n.html + ' ' + n.failureSummary).join(' | ')}`))"
            )
            assert not found, (view, found)
            wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], (view, wide)
            assert browser.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")


def focused(browser: Chromium) -> str:
    script = "const e = document.activeElement; return `${e.tagName} ${e.innerText.trim().split('\\n')[0]}`"
    return str(browser.run(script))


def test_links_show_why_they_are_down(browser: Chromium, tmp_path: Path) -> None:
    table = {"plant": {"url": "mqtt://127.0.0.1:1", "topics": ["a out 1"]}}
    node = BrokerProcess(tmp_path, settings={"http.listen": "127.0.0.1:0", "links": json.dumps(table)}).start()
    try:
        visit(browser, HttpClient(node).url, "links")
        for text in ("plant", "waiting", "mqtt://127.0.0.1:1", "connection refused"):
            says(browser, text)
    finally:
        node.stop()


def test_by_keyboard_alone(browser: Chromium, node: BrokerProcess, url: str) -> None:
    visit(browser, url, "overview")
    browser.press("Tab")
    assert focused(browser) == "A Skip to content"
    for _ in range(20):
        browser.press("Tab")
        if focused(browser) == "A Retained":
            break
    browser.press("Enter")
    says(browser, "site")
    for _ in range(30):
        browser.press("Tab")
        if focused(browser).startswith("LI"):
            break
    shown = "return document.querySelector('.tree [tabindex=\"0\"] .name').innerText"
    first = browser.run(shown)
    browser.press("ArrowDown")
    assert browser.run(shown) != first
    while browser.run(shown) != "site":
        browser.press("ArrowUp")
    browser.press("ArrowRight")
    browser.until("return document.querySelector('.tree [aria-expanded=true] [role=group]').children.length === 3")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    inner = "document.querySelectorAll('.tree [aria-expanded=true]')[1]?.querySelector('[role=group]').children.length"
    browser.until(f"return {inner} > 0")
    browser.press("ArrowRight")
    browser.press("Enter")
    says(browser, '"value": 0')
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    assert browser.run("return document.querySelectorAll('.tree [aria-expanded=true]').length") == 1


def test_the_theme_is_switched_and_kept(browser: Chromium, url: str) -> None:
    theme = "return document.documentElement.dataset.theme"
    visit(browser, url, "overview")
    assert browser.run(theme) == "light"
    click(browser, "Dark")
    assert browser.run(theme) == "dark"
    visit(browser, f"{url}/?again", "log")
    assert browser.run(theme) == "dark"
    click(browser, "Light")
    assert browser.run("return localStorage.length") == 0


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_node_that_stops_and_comes_back(browser: Chromium, start_broker: StartBroker) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{reserved.getsockname()[1]}"
    broker = start_broker({"http.listen": place})
    visit(browser, f"http://{place}", "overview")
    browser.until("return document.getElementById('link').innerText === 'live'")
    assert broker.stop() == 0
    browser.until("return document.getElementById('link').innerText === 'no answer'")
    says(browser, "The node does not answer.")
    broker.start()
    browser.until("return document.getElementById('link').innerText === 'live'")
    browser.until("return !document.querySelector('main').innerText.includes('does not answer')")
