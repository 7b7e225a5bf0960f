"""Real locusts against real nodes: the work of each user class, the faults of a wrong broker, and the exit status."""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from flockmq.loadtest.swarm.scenario import read
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.harness.socket_client import SocketClient
from tests.loadtest.locust_process import LocustProcess
from tests.loadtest.wrong_relay import Fault, WrongRelay, double, lose, lose_all, swap
from tests.security.access_files import quick_hash

StartLocust = Callable[..., LocustProcess]
HEADLESS = ("--headless", "--only-summary")

EVERYBODY = """
duration = "6 s"
spawn_rate = 100
sites = 2
lost_after = "20 s"
[sensor]
clients = 20
interval = "500 ms"
topic = "{root}/site-{site}/{client}/temperature"
qos = { 0 = 0.4, 1 = 0.3, 2 = 0.3 }
payload = { 64 = 0.5, 1000 = 0.5 }
state = "{root}/site-{site}/{client}/state"
will = true
command = "{root}/site-{site}/{client}/command"
[dashboard]
clients = 4
filters = ["{root}/site-{site}/#"]
qos = 2
[commander]
clients = 2
devices = "{root}/site-{site}/+/state"
interval = "200 ms"
[churn]
clients = 4
state = "{root}/churn/{client}/state"
will = true
topic_filter = "{root}/site-{site}/#"
stay = "500 ms"
away = "200 ms"
[offline]
clients = 4
topic_filter = "{root}/site-{site}/+/temperature"
qos = 2
stay = "500 ms"
away = "500 ms"
[thresholds]
refused = 0
no_reply = 0
"""

PAIRS = """
duration = "3 s"
spawn_rate = 100
lost_after = "20 s"
[sensor]
clients = 5
interval = "100 ms"
jitter = 0
topic = "{root}/pair/{index}"
qos = 1
wait = true
[dashboard]
clients = 5
filters = ["{root}/pair/{index}"]
qos = 1
"""

WORKERS = """
duration = "4 s"
spawn_rate = 100
lost_after = "20 s"
[sensor]
clients = 10
interval = "50 ms"
topic = "{root}/work/{client}/2"
qos = QOS
persistent = true
wait = true
[worker]
clients = 8
filters = ["$share/one/{root}/work/#", "$share/two/{root}/work/+/2"]
qos = QOS
persistent = true
dies_every = "500 ms"
away = "200 ms"
"""

SOON_LOST = PAIRS.replace('"20 s"', '"2 s"')  # where messages are lost: messages that a busy machine delays are not


@pytest.fixture
def start_locust(tmp_path: Path) -> Iterator[StartLocust]:
    """Starts locusts: `start_locust(scenario, "mqtt://...", "--headless")`. All are ended."""
    started: list[LocustProcess] = []

    def start(scenario: str, hosts: str, *arguments: str, processes: int = 0) -> LocustProcess:
        directory = tmp_path / f"locust-{len(started)}"
        started.append(LocustProcess(directory, scenario, hosts, *arguments, processes=processes))
        return started[-1]

    yield start
    for locust in started:
        locust.close()


def url(port: int) -> str:
    return f"mqtt://127.0.0.1:{port}"


def came(events: dict[str, int], expected: int, first: int) -> bool:
    """Whether so many came; subscribers of a loaded machine may be too late for so many, the first of each."""
    return expected - first <= events["deliver qos1"] <= expected


def drain(client: SocketClient) -> list[Publish]:
    """The packets that a client has received so far."""
    return [packet for packet in client.ping() if isinstance(packet, Publish)]


@pytest.mark.parametrize("level", ["4", "5"])
def test_every_user_class_does_what_it_is_for(node: BrokerProcess, start_locust: StartLocust, level: str) -> None:
    with SocketClient(node.port, "witness") as witness:
        witness.subscribe(("load/#", 0))
        locust = start_locust(EVERYBODY, url(node.port), *HEADLESS, "--level", level)
        assert locust.wait() == 0, locust.output
        seen = drain(witness)
    events = locust.events()
    for name in ("publish", "deliver"):
        assert all(events[f"{name} qos{qos}"] > 20 for qos in range(3)), events
    assert events["request/reply"] > 20 and events["deliver qos2 queued"] > 0, events
    assert events["connect"] > 34 + 4 * 3, "clients that vanish and clients that go away connect again"
    readings = [packet for packet in seen if packet.topic_name.endswith("/temperature")]
    assert sum(events[f"publish qos{qos}"] for qos in range(3)) == len(readings)
    assert {len(packet.payload) for packet in readings} == {64, 1000}
    assert len({packet.topic_name for packet in readings}) == 20
    states = [packet for packet in seen if packet.topic_name.endswith("/state")]
    online = {packet.topic_name for packet in states if packet.payload == b"online"}
    assert len(online) == 20 + 4
    offline = [packet for packet in states if packet.payload == b"offline"]
    assert {packet.topic_name.split("/")[2] for packet in offline} == {"churn"}, "only who vanishes leaves a will"
    assert any("/reply/commander-" in packet.topic_name for packet in seen)
    assert locust.failures() == {}


def test_processes_share_one_scenario_and_files_name_the_events(tmp_path: Path, start_locust: StartLocust) -> None:
    """Clients send the credentials of their command line: the broker requires them."""
    (tmp_path / "passwords").write_text(f"fleet:{quick_hash('secret')}\n")
    (tmp_path / "password").write_text("secret\n")
    login = ["--username", "fleet", "--password-file", str(tmp_path / "password")]
    node = BrokerProcess(tmp_path, settings={"auth.password_file": tmp_path / "passwords"}).start()
    try:
        locust = start_locust(PAIRS, url(node.port), *HEADLESS, *login, "--html", "report.html", processes=2)
        assert locust.wait() == 0, locust.output
    finally:
        assert node.stop() == 0
    assert "secret" not in locust.output
    events = locust.events()
    assert events["connect"] == 10
    # Publisher and subscriber of a pair may be in different processes; each pair meets all the same.
    # The other process may subscribe late; locust's exit status shows that nothing was lost after that.
    published = events["publish qos1"]
    assert published > 5 * 10 and published / 2 < events["deliver qos1"] <= published, events
    report = (locust.directory / "report.html").read_text()
    assert "deliver qos1" in report and "publish qos1" in report


@pytest.mark.parametrize(("qos", "processes"), [(1, 0), (1, 2), (2, 0)])
def test_workers_of_a_group_die_and_come_back(
    node: BrokerProcess, start_locust: StartLocust, qos: int, processes: int
) -> None:
    """Each group does all work, in whichever process its workers are."""
    locust = start_locust(WORKERS.replace("QOS", str(qos)), url(node.port), *HEADLESS, processes=processes)
    assert locust.wait() == 0, locust.output
    events = locust.events()
    assert events["death"] > 10 and events["connect"] >= 10 + events["death"], events
    assert events[f"publish qos{qos}"] > 200
    all_work = 2 * events[f"publish qos{qos}"] + events.get("done twice", 0)
    assert all_work - 2 * 10 <= events[f"work qos{qos}"] <= all_work, "the first of each may be before the group"
    assert "done twice" not in events or qos == 1
    assert locust.failures() == {}


@pytest.mark.parametrize(("fault", "processes"), [(lose, 0), (lose, 2), (lose_all, 0), (double, 0)])
def test_work_that_nobody_does_is_found(
    node: BrokerProcess, start_locust: StartLocust, fault: Fault, processes: int
) -> None:
    scenario = WORKERS.replace("QOS", "1").replace('"20 s"', '"2 s"').replace('dies_every = "500 ms"', "")
    with WrongRelay(node.port, fault, "/2") as relay:
        thresholds = ("--thresholds", "twice=0")
        locust = start_locust(scenario, url(relay.port), *HEADLESS, *thresholds, processes=processes)
        assert locust.wait() == 1, locust.output
    events = locust.events()
    if fault is double:
        assert locust.failures() == {} and events["done twice"] > 20
        assert f"- done twice: {events['done twice']} (at most 0)" in locust.output
    else:
        assert locust.failures().keys() == {("work qos1", "lost")}
        lost = locust.failures()["work qos1", "lost"]
        assert lost > 20 and f"- lost: {lost} (at most 0)" in locust.output
        assert "lost: " in locust.output and "to $share/one/" in locust.output


@pytest.mark.parametrize("case", ["p2p", "fan-out", "fan-in", "connections"])
def test_cases_of_the_open_benchmark_with_fewer_clients(
    node: BrokerProcess, start_locust: StartLocust, case: str
) -> None:
    locust = start_locust(read(f"{case}-1k"), url(node.port), *HEADLESS, "--users", "30", "--run-time", "3s")
    assert locust.wait() == 0, locust.output
    events = locust.events()
    assert events["connect"] == 30
    published, delivered = events.get("publish qos1", 0), events.get("deliver qos1", 0)
    if case == "connections":
        assert published == 0
    elif case == "fan-in":
        assert 0 < delivered < published, "one of its subscribers is there"
    else:
        receivers, first = (29, 29) if case == "fan-out" else (1, 15)
        assert published and came(events, published * receivers, first), events


@pytest.mark.parametrize(
    ("fault", "words", "processes"),
    [(lose, "lost", 0), (lose_all, "lost", 2), (double, "duplicate", 0), (swap, "out of order", 0)],
)
def test_a_wrong_broker_is_found_and_named(
    node: BrokerProcess, start_locust: StartLocust, fault: Fault, words: str, processes: int
) -> None:
    with WrongRelay(node.port, fault, "/2") as relay:
        scenario = SOON_LOST if words == "lost" else PAIRS
        locust = start_locust(scenario, url(relay.port), *HEADLESS, processes=processes)
        assert locust.wait() == 1, locust.output
    found = locust.failures()
    if fault is swap:  # a message that was to come after the next, and was the last
        assert found.pop(("deliver qos1", "lost"), 0) <= 1
    assert set(found) == {("deliver qos1", words)}
    assert f"FAILED: {locust.events()['connect']} connect" in locust.output
    label = {"lost": "lost", "duplicate": "duplicates", "out of order": "out of order"}[words]
    assert f"- {label}: {locust.failures()['deliver qos1', words]} (at most 0)" in locust.output


def test_thresholds_of_the_command_line_decide(node: BrokerProcess, start_locust: StartLocust) -> None:
    with WrongRelay(node.port, lose, "/2") as relay:
        locust = start_locust(SOON_LOST, url(relay.port), *HEADLESS, "--thresholds", "lost=any")
        assert locust.wait() == 0, locust.output
    assert locust.failures().keys() == {("deliver qos1", "lost")}


def test_a_slow_broker_fails_by_a_quantile_of_its_latency(node: BrokerProcess, start_locust: StartLocust) -> None:
    with TcpProxy(node.port) as proxy:
        proxy.slow(0.1)
        locust = start_locust(PAIRS, url(proxy.port), *HEADLESS, "--thresholds", "deliver qos1 p50=150ms")
        assert locust.wait() == 1, locust.output
    assert re.search(r"- deliver qos1 p50: 2\d\d ms \(at most 150 ms\)", locust.output), locust.output
    assert locust.failures() == {}


def test_clients_that_find_no_broker_are_refused(start_locust: StartLocust) -> None:
    locust = start_locust(PAIRS.replace('"3 s"', '"2 s"'), "mqtt://127.0.0.1:1", *HEADLESS)
    assert locust.wait() == 1
    assert locust.failures().keys() == {("connect", "refused: connection refused")}
    assert "- no client ever connected" in locust.output


def test_a_flash_crowd_comes_back(node: BrokerProcess, start_locust: StartLocust) -> None:
    storm = PAIRS.replace("[sensor]", "[storm]\nafter = 2\n[sensor]\npersistent = true").replace(
        "[dashboard]", "[dashboard]\npersistent = true"
    )
    locust = start_locust(storm, url(node.port), *HEADLESS)
    assert locust.wait() == 0, locust.output
    assert locust.events()["connect"] == 2 * 10
    assert "all connections break" in locust.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "wrong.toml"], "error: argument --scenario: wrong.toml: dashboard.filters is missing"),
        (["--scenario", "clean.toml"], "clean.toml: worker.qos is 2; expected also persistent = true"),
        (["--scenario", "plain.toml"], "worker.filters is ['jobs/#']; expected a shared subscription such as $share/"),
        (["--thresholds", "lost=few"], "error: argument --thresholds: 'lost=few': expected a whole number, or \"any\""),
        (["--thresholds", "p99=5"], "error: argument --thresholds: 'p99=5': expected one of lost, "),
        (["--source", "home"], "error: argument --source: 'home' is not an address; expected for example 10.0.0.7"),
        (["--host", "http://a"], "--host: 'http://a' is not a host; expected mqtt://HOST[:PORT]"),
    ],
)
def test_mistakes_are_told_in_one_line(
    start_locust: StartLocust, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "locust-0").mkdir()
    (tmp_path / "locust-0" / "wrong.toml").write_text("[dashboard]\nclients = 1")
    worker = "[worker]\nclients = 1\nqos = 2\nfilters = ['%s']"
    (tmp_path / "locust-0" / "clean.toml").write_text(worker % "$share/a/jobs")
    (tmp_path / "locust-0" / "plain.toml").write_text(worker % "jobs/#")
    locust = start_locust(PAIRS, "mqtt://127.0.0.1:1", *HEADLESS, *arguments)
    assert locust.wait() == 2
    told = [line for line in locust.output.splitlines() if "INFO" not in line]
    assert len(told) == 1 and message in told[0], locust.output


def test_the_page_shows_our_events(node: BrokerProcess, start_locust: StartLocust) -> None:
    locust = start_locust(PAIRS, url(node.port), "--web-host", "127.0.0.1", "--web-port", str(port := free_port()))
    page = f"http://127.0.0.1:{port}"

    def get(path: str) -> str | None:
        try:
            with urllib.request.urlopen(page + path, timeout=DEADLINE) as answer:
                return str(answer.read().decode())
        except OSError:
            assert locust.process.poll() is None, locust.output
            return None

    html = until(lambda: get("/"))
    assert "scenario" in html
    form = "user_count=10&spawn_rate=100&scenario=%s&thresholds=&source=&host=" + url(node.port)
    assert "there is no scenario" in post(page + "/swarm", form % "nonsense")["message"]
    assert post(page + "/swarm", form % "scenario.toml")["success"]

    def events() -> dict[str, Any]:
        return {row["name"]: row for row in json.loads(get("/stats/requests") or "{}").get("stats", [])}

    until(lambda: events().get("deliver qos1", {}).get("num_requests", 0) > 10)
    shown = events()
    assert shown["connect"]["num_requests"] == 10 and shown["publish qos1"]["num_failures"] == 0
    assert post(page + "/stop", "")["success"]
    until(lambda: "scenario has passed" in locust.output)
    locust.process.send_signal(signal.SIGTERM)
    assert locust.wait() == 0


@pytest.mark.parametrize("processes", [0, 2])
def test_ctrl_c_ends_a_test_as_its_duration_would(
    node: BrokerProcess, start_locust: StartLocust, processes: int
) -> None:
    """A terminal interrupts all processes at once."""
    locust = start_locust(PAIRS.replace('"3 s"', '"1 h"'), url(node.port), *HEADLESS, processes=processes)
    until(lambda: locust.events().get("deliver qos1"))
    os.killpg(locust.process.pid, signal.SIGINT)
    assert locust.wait() == 0, locust.output
    events = locust.events()
    # With two processes, one may subscribe late.
    assert came(events, events["publish qos1"], first=5 if processes == 0 else events["publish qos1"] // 2), events


def post(address: str, form: str) -> Any:
    with urllib.request.urlopen(address, form.encode(), timeout=DEADLINE) as answer:
        return json.loads(answer.read())
