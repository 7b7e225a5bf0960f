"""connect.md and lake.md: their files load, and their tables have the options that there are."""

import re
from pathlib import Path

import pytest

from flockmq.cluster.connect import metrics
from flockmq.cluster.connect.dead_letters import DeadLetters
from flockmq.cluster.connect.pipe import CONNECTORS, ConnectConfig, connector_of, load
from flockmq.cluster.lake import config as lake

DOCS = Path(__file__).resolve().parents[2] / "deploy" / "docs"
HEADINGS = {
    "postgresql": "PostgreSQL, TimescaleDB",
    "kafka": "Kafka",
    "influxdb": "InfluxDB",
    "clickhouse": "ClickHouse",
    "webhook": "Webhook",
    "mqtt": "MQTT",
}
INFLUXDB = 'url = "http://h"\n'
# The options that each connector needs; more than one text if options exclude one another.
LEAST = {
    "postgresql": ('url = "postgresql://h"\ntable = "t"',),
    "kafka": ('brokers = "h"\ntopic = "t"',),
    "influxdb": (
        INFLUXDB + 'org = "o"\nbucket = "b"',
        INFLUXDB + 'version = "1"\ndatabase = "d"\nuser = "u"\npassword = "p"',
    ),
    "clickhouse": ('url = "http://h"\ntable = "t"',),
    "webhook": ('url = "http://h"',),
    "mqtt": ('url = "mqtt://h"',),
}


def blocks(page: str) -> list[str]:
    """The TOML files of a page."""
    return re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.S)


def named(text: str) -> set[str]:
    """The names in the first column of tables."""
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    return {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}


def section_of(heading: str) -> str:
    """The text below a heading of connect.md."""
    text = (DOCS / "connect.md").read_text()
    return re.split(r"^## ", text.split(f"## {heading}\n", 1)[1], flags=re.M)[0]


def loaded(directory: Path, text: str) -> ConnectConfig:
    path = directory / "pipes.toml"
    path.write_text(text)
    return load(path)


def test_the_example_of_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGPASSWORD", "ALARM_SECRET"):
        monkeypatch.setenv(name, "secret")
    (example,) = blocks("connect.md")
    config = loaded(tmp_path, example)
    assert [pipe.kind for pipe in config.pipes] == ["postgresql", "webhook"]
    for pipe in config.pipes:
        connector_of(pipe, config.log, DeadLetters(pipe.name, pipe.dead_letters))


def test_the_example_of_tables(tmp_path: Path) -> None:
    (tmp_path / "reading.json").write_text('{"type": "object", "properties": {"temp": {"type": "number"}}}')
    for example in blocks("lake.md"):
        path = tmp_path / "lake.toml"
        path.write_text(example)
        assert lake.load(path).tables


@pytest.mark.parametrize("kind", CONNECTORS)
def test_options(kind: str, tmp_path: Path) -> None:
    known: set[str] = set()
    for options in LEAST[kind]:
        config = loaded(tmp_path, f'log = "http://h"\n[[pipes]]\nname = "p"\n[pipes.{kind}]\n{options}\n')
        (pipe,) = config.pipes
        connector_of(pipe, config.log, DeadLetters("p", tmp_path / "dead"))
        known |= pipe.options.known
    assert named(section_of(HEADINGS[kind])) >= known


def test_keys_and_figures() -> None:
    text = (DOCS / "connect.md").read_text()
    figures = {f"flockmq_pipe_{name}" for name, *_ in metrics.FIGURES}
    assert set(re.findall(r"^\| `(flockmq_pipe_\w+)`", text, re.M)) == figures
