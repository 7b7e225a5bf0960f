"""The settings of a generator: which values are refused."""

from dataclasses import replace
from typing import Any

import pytest

from flockmq.loadtest.generator.settings import Settings
from flockmq.loadtest.generator.target import NO_MESSAGES, Target, Workload

TARGET = Target(port=1883)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": "ring"}, "unknown shape 'ring'"),
        ({"publishers": 3}, "as many publishers as subscribers"),
        ({"qos": 3}, "qos, window or batch"),
        ({"window": 0}, "qos, window or batch"),
        ({"batch": 65537}, "qos, window or batch"),
        ({"payload": 31}, "at least 32 bytes"),
        ({"rate": -1.0}, "rate is out of range"),
        ({"topic_prefix": "x" * 33}, "topic_prefix is longer than 32"),
        ({"publishers": 0, "subscribers": 0}, "number of connections"),
        ({"publishers": 500_001, "subscribers": 500_001}, "number of connections"),
    ],
)
def test_workloads_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(target=TARGET, workload=replace(Workload(), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": 0}, "port or publish_port"),
        ({"publish_port": 65536}, "port or publish_port"),
        ({"transport": "quic"}, "unknown transport 'quic'"),
        ({"password": "secret"}, "a password needs a user name"),
        ({"username": "x" * 257}, "longer than 256 bytes"),
        ({"host": "::1"}, "'::1' is not an IPv4 address"),
        ({"publish_host": "localhost"}, "'localhost' is not an IPv4 address"),
    ],
)
def test_targets_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(target=replace(TARGET, **changes), workload=Workload())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_alive": 0}, "keep_alive or parallel"),
        ({"parallel": 0}, "keep_alive or parallel"),
        ({"client_prefix": "x" * 17}, "client_prefix is longer than 16"),
    ],
)
def test_other_settings_that_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(target=TARGET, workload=Workload(), **values)


def test_connections_are_counted() -> None:
    settings = Settings(target=TARGET, workload=NO_MESSAGES, idle=1, take_over=2, reconnect=3)
    assert settings.connections == 1 + 2 * 2 + 3


def test_addresses() -> None:
    assert Settings(target=TARGET, idle=1).addresses == [0x7F000001, 0x7F000001]
    assert Settings(target=Target(port=1, publish_host="10.0.0.5"), idle=1).addresses == [0x7F000001, 0x0A000005]
