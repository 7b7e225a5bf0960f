"""Who is trusted, by networks."""

import pytest

from broker.listeners.bind import truster


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
