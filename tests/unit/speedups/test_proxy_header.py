"""The PROXY protocol header: every case, every truncation, any bytes."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.net.proxy_header import HEADER_MAX, read_proxy_header
from tests.cases.proxy_headers import BAD, GOOD, SIGNATURE, Client, Header, binary, line

PORTS = st.integers(0, 65535)
CLIENTS = st.one_of(
    st.tuples(st.just(int(socket.AF_INET)), st.ip_addresses(v=4).map(str), PORTS),
    st.tuples(st.just(int(socket.AF_INET6)), st.ip_addresses(v=6).map(str), PORTS),
)


def read(data: bytes) -> tuple[int, Client | None]:
    size, client = read_proxy_header(data)
    if client is None:
        return size, None
    family, address, port = client
    return size, (family, socket.inet_ntop(family, address), port)


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_good(case: Header) -> None:
    assert read(case.data) == (len(case.data), case.client)
    assert read(case.data + b"\x10\x0c\x00\x04MQTT") == (len(case.data), case.client)
    for size in range(len(case.data)):
        assert read(case.data[:size]) == (0, None)


@pytest.mark.parametrize(("name", "data", "words"), BAD, ids=[name for name, _, _ in BAD])
def test_bad(name: str, data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_proxy_header(data)


@given(CLIENTS, st.sampled_from((line, binary)), st.binary(max_size=50))
def test_whatever_is_written_is_read(client: Client, write: object, rest: bytes) -> None:
    family, address, port = client
    data = line(client) if write is line else binary(client)
    normal = socket.inet_ntop(family, socket.inet_pton(family, address))
    assert read(data + rest) == (len(data), (family, normal, port))


@given(
    st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=60).map(SIGNATURE.__add__),
        st.binary(max_size=120).map(b"PROXY ".__add__),
    )
)
def test_any_bytes(data: bytes) -> None:
    try:
        size, _ = read_proxy_header(data)
    except ValueError:
        return
    assert 0 <= size <= min(len(data), HEADER_MAX)
