"""Server references that name the node itself: it does not send its clients to itself."""

import socket
from collections.abc import Iterator

import pytest

from flockmq.broker.config.load import load
from flockmq.broker.listeners.bind import host_name, is_own_address
from flockmq.broker.listeners.listeners import Listeners


@pytest.fixture(params=["127.0.0.1:0", "0.0.0.0:0", "localhost:0", ":0"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[Listeners, int]]:
    """The listeners of a node that listens on one address, on two or on all; and its port."""
    listeners = Listeners()
    listeners.bind(load({"listen": request.param, "auth.allow_anonymous": "true"}, env={}))
    url, *_ = listeners.urls()
    yield listeners, int(url.rpartition(":")[2])
    listeners.close()


@pytest.mark.parametrize(
    ("reference", "own"),
    [
        ("127.0.0.1:{port}", True),
        ("node-2:{port}", True),
        ("NODE-2.example.org:{port}", True),
        ("node-2", True),
        (f"{host_name()}:{{port}}", True),
        ("node-2:{other}", False),
        ("127.0.0.1:{other}", False),
        ("node-20:{port}", False),
        ("x.node-2:{port}", False),
        ("192.0.2.1:{port}", False),
        ("[2001:db8::1]:{port}", False),
        ("not an address", False),
    ],
)
def test_which_references_are_own(listening: tuple[Listeners, int], reference: str, own: bool) -> None:
    listeners, port = listening
    assert listeners.are_named(reference.format(port=port, other=port ^ 1), "node-2") is own


def test_addresses_of_this_machine() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1") and not is_own_address(socket.gethostname()) and not is_own_address("")
