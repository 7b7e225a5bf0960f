"""Sockets of addresses to listen on; and trusted peers, by networks."""

import errno
import socket

import pytest

from flockmq.broker.errors import ListenError
from flockmq.broker.listeners import bind as binding
from flockmq.broker.listeners.bind import address_of, bind, truster


def fail(monkeypatch: pytest.MonkeyPatch, host: str, number: int, times: int) -> None:
    """Let binding to a host fail, that often."""
    real = binding._bind
    left = [times]

    def failing(there: str, port: int, shared: bool) -> socket.socket:
        if there == host and left[0]:
            left[0] -= 1
            raise OSError(number, "no")
        return real(there, port, shared)

    monkeypatch.setattr(binding, "_bind", failing)


def hosts(address: str) -> list[str]:
    """The hosts that are bound for an address, which have one port."""
    sockets = bind(address)
    found = [address_of(each).rpartition(":") for each in sockets]
    for each in sockets:
        each.close()
    assert len({port for _, _, port in found}) == 1
    return [host for host, _, _ in found]


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_a_family(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, "::1", number, 9)
    assert hosts("localhost:0") == ["127.0.0.1"]
    with pytest.raises(ListenError):
        bind("[::1]:0")
    fail(monkeypatch, "0.0.0.0", number, 9)
    assert hosts(":0") == ["[::]"]


def test_a_machine_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("0.0.0.0", "::"):
        fail(monkeypatch, host, errno.EADDRNOTAVAIL, 9)
    with pytest.raises(ListenError):
        bind(":0")


def test_a_port_that_one_family_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, "::1", errno.EADDRINUSE, 3)
    assert hosts("localhost:0") == ["127.0.0.1", "[::1]"]
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"can't listen on localhost:{port}: Address already in use; another"):
            bind(f"localhost:{port}")
        socket.create_server(("127.0.0.1", port)).close()  # it is free


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.1.2.3:5000", True),
        ("10.255.255.255:1", True),
        ("11.0.0.0:1", False),
        ("[::1]:7", True),
        ("[::2]:7", False),
        ("[::ffff:10.0.0.1]:7", True),
        ("[::ffff:11.0.0.1]:7", False),
        ("192.0.2.7:80", True),
    ],
)
def test_truster(address: str, trusted: bool) -> None:
    trusts = truster(["10.0.0.0/8", "::1/128", "192.0.2.7"])
    assert trusts(address) is trusted
    assert trusts(address) is trusted


def test_nobody() -> None:
    assert not truster([])("127.0.0.1:1")
