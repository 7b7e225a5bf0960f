"""Options of the source: their forms, and one clear sentence for a wrong one."""

import pytest

from flockmq.cluster.analytics.errors import OptionError
from flockmq.cluster.analytics.log.properties import PropertyColumn
from flockmq.cluster.analytics.options import MIB, parse_options, parse_size
from flockmq.cluster.analytics.position import Position
from flockmq.cluster.analytics.times import format_time, parse_time

REDIS = {"redis": "redis://:sesame@h:1"}


def test_defaults() -> None:
    options = parse_options(REDIS)
    assert str(options.redis) == "redis://:***@h:1/0"
    assert (options.prefix, options.starting_offsets, options.max_bytes_per_trigger) == ("mq:", "earliest", 256 * MIB)
    assert (options.fail_on_data_loss, options.trim_committed, options.job) == (True, False, "")
    assert "sesame" not in repr(options)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"MAXBYTESPERTRIGGER": "8m"}, "max_bytes_per_trigger", 8 * MIB),
        ({"bytesPerPartition": "1 MiB"}, "bytes_per_partition", MIB),
        ({"minPartitions": "4"}, "min_partitions", 4),
        ({"failOnDataLoss": "False"}, "fail_on_data_loss", False),
        ({"trimCommitted": "true", "job": "x"}, "trim_committed", True),
        ({"since": "10 min ago"}, "since", 400_000_000),
        ({"until": "now"}, "until", 1_000_000_000),
        ({"startingOffsets": "Latest"}, "starting_offsets", "latest"),
        ({"startingOffsets": "1970-01-01T00:00:01Z"}, "starting_offsets", 1_000_000),
        ({"startingOffsets": '{"n1": "5-6"}'}, "starting_offsets", {"n1": Position(5, 6)}),
        ({"node": "a, b"}, "nodes", ("a", "b")),
        ({"topicFilter": "a,b/#"}, "topic_filters", ("a,b/#",)),
        ({"topicFilter": '["a/#", "+/b"]'}, "topic_filters", ("a/#", "+/b")),
        ({"prefix": "other:"}, "prefix", "other:"),
        ({"properties": "user.a"}, "properties", (PropertyColumn("user_a", 0x26, "a"),)),
    ],
)
def test_forms(given: dict[str, str], field: str, value: object) -> None:
    assert getattr(parse_options(REDIS | given, now=1000.0), field) == value


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option redis is missing"),
        ({"redis": "http://:sesame@h"}, "option redis: expected redis://"),
        ({"redis": "redis://u:sesame@h:x"}, "option redis: expected a port"),
        (REDIS | {"startingOffset": "latest"}, r"no option startingoffset; did you mean startingOffsets\?"),
        (REDIS | {"zzz": "1"}, "no option zzz; known are archive, bytesPerPartition, failOnDataLoss"),
        (REDIS | {"startingOffsets": "soon"}, "startingOffsets: expected earliest, latest, a time such as"),
        (REDIS | {"startingOffsets": '{"n1": "5"}'}, "startingOffsets: expected positions by node id as JSON"),
        (REDIS | {"startingOffsets": "{"}, "startingOffsets: expected positions by node id as JSON"),
        (REDIS | {"maxBytesPerTrigger": "lots"}, "maxBytesPerTrigger: expected a size such as 64m"),
        (REDIS | {"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger: expected a size such as 64m"),
        (REDIS | {"minPartitions": "0"}, "minPartitions: expected a number from 1"),
        (REDIS | {"failOnDataLoss": "maybe"}, "failOnDataLoss: expected true or false, not 'maybe'"),
        (REDIS | {"trimCommitted": "true"}, "trimCommitted needs a name"),
        (REDIS | {"since": "one day"}, "since: expected a time such as"),
        (REDIS | {"since": "1 h ago", "until": "2 h ago"}, "since is not before until"),
        (REDIS | {"node": " ,"}, "node: expected names"),
        (REDIS | {"topicFilter": "a/#/b"}, "topicFilter: expected # alone in the last level"),
        (REDIS | {"topicFilter": "a/b+"}, r"topicFilter: expected \+ alone"),
        (REDIS | {"topicFilter": ""}, "topicFilter: expected a topic filter"),
        (REDIS | {"topicFilter": "[1]"}, "topicFilter: expected a topic filter, or several"),
        (REDIS | {"properties": "color"}, "properties: expected names of properties with commas"),
        (REDIS | {"redisPatience": "-1"}, "redisPatience: expected seconds"),
    ],
)
def test_wrong_options_are_told_in_one_line(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        parse_options(given)
    assert "sesame" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("5b", 5), ("2k", 2048), ("2 KiB", 2048), ("1M", MIB), ("1mb", MIB), ("2g", 2 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 1e6),
        ("90 s ago", 1e6 - 90),
        ("1.5 min ago", 1e6 - 90),
        ("2 hours ago", 1e6 - 7200),
        ("3d", 1e6 - 3 * 86_400),
        ("1 week ago", 1e6 - 604_800),
        ("1970-01-02", 86_400),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:00.000001", 1e-6),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text, now=1e6) == round(seconds * 1e6)


@pytest.mark.parametrize("text", ["", "10", "10 parsecs ago", "min ago", "2026-13-01", "-5 min ago"])
def test_wrong_times(text: str) -> None:
    with pytest.raises(ValueError, match="10 min ago"):
        parse_time(text, now=0.0)


def test_times_are_shown_to_the_millisecond() -> None:
    assert format_time(1_770_000_000_123_456) == "2026-02-02T02:40:00.123Z"
