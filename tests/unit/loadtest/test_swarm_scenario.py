"""Scenario files and addresses: the files that come with FlockMQ are right, mistakes are reported with their place."""

import pytest

from flockmq.loadtest.swarm import hosts
from flockmq.loadtest.swarm.scenario import Scenario, ScenarioError, names, parse, read

SMALL = "[sensor]\nclients = 1\ntopic = 'a'\n"


@pytest.mark.parametrize("name", names())
def test_scenarios_that_come_along_are_right(name: str) -> None:
    scenario = parse(read(name), name)
    assert scenario.description
    assert scenario.clients >= (50_000 if name.endswith("-50k") else 1000)


def test_the_four_cases_are_there_in_both_sizes() -> None:
    cases = {f"{case}-{size}" for case in ("p2p", "fan-out", "fan-in", "connections") for size in ("1k", "50k")}
    assert cases | {"fleet", "storm"} <= set(names())


def test_values() -> None:
    scenario: Scenario = parse(
        """
        duration = "1.5 min"
        sites = 3
        [sensor]
        clients = 2
        topic = "{root}/{site}"
        interval = "250 ms"
        qos = { 1 = 0.75, 2 = 0.25 }
        payload = 100
        [thresholds]
        lost = "any"
        latency = { "deliver qos1 p99.9" = "0.5 s" }
        """,
        "x",
    )
    assert scenario.duration == 90 and scenario.clients == 2 and scenario.dashboard is None
    assert scenario.sensor is not None
    assert (scenario.sensor.interval, scenario.sensor.qos, scenario.sensor.payload) == (
        0.25,
        {1: 0.75, 2: 0.25},
        {100: 1},
    )
    assert scenario.thresholds.lost is None and scenario.thresholds.duplicates == 0
    assert scenario.thresholds.latency == {"deliver qos1 p99.9": 500.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no table has clients; expected one of sensor, dashboard"),
        ("[sensor]\nclients = 0", "no table has clients"),
        ("sensor = 3", "sensor is 3; expected a table"),
        ("[sensor", "is not TOML"),
        ("[sensors]\nclients = 1", "sensors: there is no such key; expected one of description, duration"),
        (SMALL + "colour = 1", "sensor.colour: there is no such key"),
        ("[sensor]\ntopic = 'a'", "sensor.clients is missing"),
        ("[sensor]\nclients = -1", "sensor.clients is -1; expected a whole number"),
        ("[sensor]\nclients = true", "sensor.clients is True; expected a whole number"),
        (SMALL + "interval = '3 weeks'", "sensor.interval is '3 weeks'; expected a duration such as"),
        (SMALL + "jitter = 2", "sensor.jitter is 2; expected a number from 0 to 1"),
        (SMALL + "qos = 3", "sensor.qos is 3; expected 0, 1 or 2, or a table"),
        (SMALL + "qos = { 0 = 0.5 }", "shares that add up to 1"),
        (SMALL + "payload = 8", "sensor.payload is 8; expected bytes, at least 16"),
        (SMALL + "persistent = 1", "sensor.persistent is 1; expected true or false"),
        (SMALL + "will = true", "will: expected also state"),
        ("[sensor]\nclients = 1\ntopic = 'a/{colour}'", "sensor.topic is 'a/{colour}'; expected a topic such as"),
        ("[sensor]\nclients = 1\ntopic = 'a/#'", "sensor.topic is 'a/#'; expected a topic"),
        ("[dashboard]\nclients = 1\nfilters = []", "dashboard.filters is []; expected a list, not empty"),
        ("[dashboard]\nclients = 1\nfilters = ['a#']", "dashboard.filters is ['a#']; expected a topic"),
        ("spawn_rate = 0\n" + SMALL, "spawn_rate is 0; expected a number above 0"),
        (SMALL + "[thresholds]\nlost = 'none'", "thresholds.lost is 'none'; expected a whole number, or \"any\""),
        (SMALL + "[thresholds]\nlatency = { p99 = 1 }", "thresholds.latency is {'p99': 1}; expected a table such as"),
        (SMALL + "[commander]\nclients = 1\ndevices = '+'", "commander: expected sensor.state and sensor.command"),
        (SMALL + "[storm]\nevery = 5", "storm.after is missing"),
    ],
)
def test_mistakes_are_told(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        parse(text, "mine.toml")
    assert str(error.value).startswith("mine.toml: ") and message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_scenario_that_is_not_there() -> None:
    with pytest.raises(ScenarioError, match="there is no scenario 'flood'; expected a file or one of connections-1k"):
        read("flood")
    with pytest.raises(ScenarioError, match=r"tests: can't be read"):
        read("tests")


def test_hosts() -> None:
    assert hosts.addresses("") == [("127.0.0.1", 1883)]
    assert hosts.addresses("mqtt://127.0.0.1:1, mqtt://127.0.0.2,127.0.0.3:3") == [
        ("127.0.0.1", 1),
        ("127.0.0.2", 1883),
        ("127.0.0.3", 3),
    ]
    assert hosts.addresses("mqtt://[::1]:5") == [("::1", 5)]
    for wrong in ("http://a", "mqtt://", "mqtt://a/b", "mqtt://127.0.0.1:x"):
        with pytest.raises(ValueError):
            hosts.addresses(wrong)


def test_sources() -> None:
    assert hosts.sources("") == []
    assert hosts.sources("127.0.0.5, 127.1.0.0/30") == ["127.0.0.5", "127.1.0.1", "127.1.0.2"]
    with pytest.raises(ValueError, match="'localhost' is not an address"):
        hosts.sources("localhost")
