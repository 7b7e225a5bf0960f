"""Connections from one address are limited: by their source, and by the source that a trusted proxy reports."""

import itertools
import socket
from collections.abc import Callable

import pytest

from tests.cases.proxy_headers import line
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.protocol.test_proxy import CONNACK, CONNECT, PROXIED, answer, connect

pytestmark = pytest.mark.one_process
StartBroker = Callable[..., Broker]
numbers = itertools.count()


def enter(broker: Broker, source: str = "127.0.0.1") -> socket.socket | None:
    """A client that comes from this address of loopback; None: it was closed."""
    client = socket.create_connection(("127.0.0.1", broker.port), 10, source_address=(source, 0))
    try:
        client.sendall(CONNECT.replace(b"lamp", b"%04d" % next(numbers)))
    except ConnectionError:
        return None
    return client if answer(client) == CONNACK else None


def test_an_address_may_have_so_many(start_broker: StartBroker) -> None:
    broker = start_broker({"quotas.max_connections_per_address": 2})
    first, second = enter(broker), enter(broker)
    assert first is not None
    assert second is not None
    assert enter(broker) is None
    assert enter(broker, "127.0.0.2") is not None
    broker.wait_for_log("connection ended before it was accepted", reason="too many connections from its address")
    first.close()
    until(lambda: enter(broker) is not None, "room for another")


def test_what_a_proxy_says_counts(start_broker: StartBroker) -> None:
    broker = start_broker({"quotas.max_connections_per_address": 1, **PROXIED})

    def come(host: str) -> socket.socket | None:
        client = connect(broker)
        client.sendall(line((socket.AF_INET, host, 5000)) + CONNECT.replace(b"lamp", host[-4:].encode()))
        return client if answer(client) == CONNACK else None

    kept = [come("203.0.113.7"), come("203.0.113.8")]
    assert all(kept)
    assert come("203.0.113.7") is None


def test_addresses_of_ipv4_that_a_proxy_tells_as_ipv6_are_not_one_network(start_broker: StartBroker) -> None:
    broker = start_broker({"quotas.max_connections_per_address": 1, **PROXIED})

    def come(host: str) -> socket.socket | None:
        client = connect(broker)
        client.sendall(line((socket.AF_INET6, f"::ffff:{host}", 5000)) + CONNECT.replace(b"lamp", host[-4:].encode()))
        return client if answer(client) == CONNACK else None

    kept = [come("203.0.113.7"), come("203.0.113.8")]
    assert all(kept)
    assert come("203.0.113.7") is None
