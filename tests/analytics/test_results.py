"""The job's results against plain Python, however the messages were cut into batches."""

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flockmq.cluster.analytics.job_options import Options
from flockmq.cluster.analytics.output.batches import Batches
from flockmq.cluster.analytics.schema import MESSAGES
from flockmq.cluster.analytics.tables import TABLES
from tests.analytics import job_model as model
from tests.analytics.job_model import Message

BEGIN = 1_780_000_000_000_000 // 60_000_000 * 60_000_000 + 17_000_000  # us: within a minute
MINUTE = 60_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = {b"21.5": 21.5, b" -3e2 ": -300.0, b"7": 7.0}
NO_NUMBERS = [b"", b"NaN", b"Infinity", b"1d", b"0x10", b"on", b"\xff\xfe", b"1e999", b"9" * 50]


def fleet() -> list[Message]:
    """Five minutes of devices with different habits; three fall silent, two of them come back."""
    chance = random.Random(7)
    messages = []
    for device in range(12):
        at = BEGIN + device * 137_000
        while at < BEGIN + 5 * MINUTE:
            second = (at - BEGIN) // 1_000_000
            away = {3: (100, 170), 4: (60, 61 + 25), 5: (180, 999)}.get(device, (0, 0))
            if not away[0] <= second < away[1]:
                topic = f"site/{device % 3}/{chance.choice(['temp', 'state'])}"
                payload = chance.choice([*NUMBERS, *NO_NUMBERS, b'{"value": %d}' % chance.randrange(9), b"x" * device])
                node = "b" if device == 6 and second > 150 else "ab"[device % 2]
                messages.append(Message(node, at, f"device {device}", topic, chance.randrange(3), payload))
                if device == 2:  # in bursts
                    messages.append(Message(node, at + 1000, f"device {device}", topic, 0, b"burst"))
            at += chance.randrange(900_000, 2_500_000)
    return sorted(messages, key=lambda message: message.at)


def rows(messages: list[Message]) -> list[tuple[Any, ...]]:
    return [
        (m.node, EPOCH + timedelta(microseconds=m.at), m.client_id, m.topic, m.qos, False, False, m.payload, None)
        for m in messages
    ]


def numbers(messages: list[Message]) -> Iterator[tuple[Message, str, float]]:
    for message in messages:
        if message.payload in NUMBERS:
            yield message, "", NUMBERS[message.payload]
        elif message.payload.startswith(b"{") and message.topic.endswith("/temp"):
            yield message, "$.value", float(json.loads(message.payload)["value"])
        elif message.payload.strip(b"x") == b"" or message.payload in NO_NUMBERS:
            continue


Read = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.soak), 3], ids="{} batches".format)
def read(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Tables of a job that has read the fleet's messages in some batches, and then its clock."""
    output = tmp_path_factory.mktemp("output")
    options = Options(
        output=str(output), archive=request.param != 1, depth=2, top=3, live=False, fields=(("+/+/temp", "$.value"),)
    )
    batches = Batches(spark, options)
    messages = fleet()
    for number in range(request.param):
        part = messages[len(messages) * number // request.param : len(messages) * (number + 1) // request.param]
        batches(spark.createDataFrame(rows(part), MESSAGES), number)
    assert batches.look_at_clock(BEGIN / 1e6 + 400)
    assert not batches.look_at_clock(BEGIN / 1e6 + 401), "nothing more is due"
    return lambda name: table(spark, output, name)


def test_nothing_is_over_while_logs_may_lack_messages(spark: SparkSession, tmp_path: Path) -> None:
    """Nodes that have lost Redis log the messages of their clients later."""
    complete = BEGIN / 1e6 + 30
    options = Options(output=str(tmp_path), results=frozenset(("silence", "rates")), live=False)
    batches = Batches(spark, options, complete_until=lambda: complete)

    def fallen() -> list[str]:
        """Devices that fell silent after that time, and are not back."""
        found = sorted(table(spark, tmp_path, "silence"), key=lambda row: row["at"])
        last = {row["client_id"]: row for row in found}.values()
        return [row["client_id"] for row in last if row["event"] == "silent" and row["at"] > BEGIN + 30_000_000]

    batches(spark.createDataFrame(rows(fleet()), MESSAGES), 0)
    assert not batches.look_at_clock(BEGIN / 1e6 + 400)
    assert not fallen() and not (tmp_path / "rates").exists()
    complete = float("inf")
    assert batches.look_at_clock(BEGIN / 1e6 + 400)
    assert fallen() and (tmp_path / "rates").exists()


def table(spark: SparkSession, output: Path, name: str) -> list[dict[str, Any]]:
    """A table's rows, times as microseconds; date and hour checked and left out."""
    found = []
    for row in spark.read.schema(f"{TABLES[name]}, date string, hour int").parquet(str(output / name)).collect():
        values = {key: micros(value) if isinstance(value, datetime) else value for key, value in row.asDict().items()}
        time = values[{"silence": "at", "messages": "accepted_at"}.get(name, "window_start")]
        moment = EPOCH + timedelta(microseconds=time)
        assert (values.pop("date"), values.pop("hour")) == (f"{moment:%Y-%m-%d}", moment.hour)
        if "window_end" in values:
            assert values.pop("window_end") == values["window_start"] + MINUTE
        found.append(values)
    return found


def micros(time: datetime) -> int:
    return round((time.astimezone(UTC) - EPOCH) / timedelta(microseconds=1))


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]], *keys: str) -> None:
    """The same rows, numbers but for rounding."""

    def order(row: dict[str, Any]) -> list[Any]:
        return [row[key] for key in keys]

    assert len(found) == len(expected)
    for left, right in zip(sorted(found, key=order), sorted(expected, key=order), strict=True):
        assert left.keys() == right.keys()
        assert left == {
            name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for name, value in right.items()
        }


def test_archive_has_every_message_once(read: Read, request: pytest.FixtureRequest) -> None:
    if "1 batches" in request.node.name:
        with pytest.raises(Exception, match="PATH_NOT_FOUND"):
            read("messages")
        return
    found = [
        Message(r["node"], r["accepted_at"], r["client_id"], r["topic"], r["qos"], bytes(r["payload"]))
        for r in read("messages")
    ]
    assert sorted(found) == sorted(fleet())


def test_rates(read: Read) -> None:
    assert_same(read("rates"), model.rates(fleet(), MINUTE, 2), "window_start", "prefix", "node")


def test_clients(read: Read) -> None:
    assert_same(read("clients"), model.clients(fleet(), MINUTE), "window_start", "client_id")


@pytest.mark.parametrize(("name", "what"), [("top_clients", "client_id"), ("top_topics", "topic")])
def test_top(read: Read, name: str, what: str) -> None:
    assert_same(read(name), model.top(fleet(), MINUTE, what, 3), "window_start", "rank")


def test_values(read: Read) -> None:
    expected = model.values(list(numbers(fleet())), MINUTE)
    assert_same(read("numbers"), expected, "window_start", "topic", "field")


def test_lag_counts_every_message(read: Read) -> None:
    found = {(row["window_start"], row["node"]): row for row in read("lag")}
    groups = model.by(fleet(), model.window_of(MINUTE), lambda message: message.node)
    assert {key: row["messages"] for key, row in found.items()} == {key: len(of) for key, of in groups.items()}
    for row in found.values():
        assert 0 <= row["p50"] <= row["p99"] <= row["max"]


def test_silence(read: Read) -> None:
    expected = model.silence(fleet(), 3.0, 10_000_000, BEGIN + 390_000_000)
    events = [(row["at"], row["client_id"], row["event"], row["since"]) for row in read("silence")]
    assert sorted(events) == expected
    assert [event[1:3] for event in expected[:5]] == [
        ("device 4", "silent"),
        ("device 4", "back"),
        ("device 3", "silent"),
        ("device 3", "back"),
        ("device 5", "silent"),
    ]
    for row in read("silence"):
        assert row["usual_interval"] > 0.5
        away = None if row["event"] == "silent" else pytest.approx((row["at"] - row["since"]) / 1e6)
        assert row["silent_for"] == away
