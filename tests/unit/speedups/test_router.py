"""Batches of other nodes: a batch that can't be read is refused."""

import pytest

from tests.harness.inprocess import Node

WHOLE = b"\x30\x05\0\x01ahi"


@pytest.mark.parametrize("batch", [WHOLE[:end] for end in range(1, len(WHOLE))] + [WHOLE + WHOLE[:-1]])
def test_a_batch_that_is_cut_short(batch: bytes) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        Node().router.deliver(batch)


@pytest.mark.parametrize("first_byte", [0x36, 0x06, 0x10, 0xE0])
def test_a_batch_of_something_else(first_byte: int) -> None:
    """QoS 3, with properties and without; other types of packets."""
    with pytest.raises(ValueError, match="can't be read"):
        Node().router.deliver(bytes([first_byte]) + b"\x07\0\x01a\0\x01\0x")


def test_a_whole_batch() -> None:
    assert Node().router.deliver(WHOLE * 3) == 3
