"""The arguments of `flockmq_commit`, in the form in which a node sends them."""

from collections.abc import Sequence
from typing import Any

from flockmq._speedups.base.msgpack import pack
from flockmq.cluster.redis.calls import BLOCK, CALLS
from flockmq.cluster.redis.kinds import Packed, Text

FIRST_MESSAGE = 3 + len(CALLS["commit"].arguments)  # place of the first message among the arguments in Lua


def commit_arguments(
    sequence: int,
    *,
    messages: Sequence[bytes] = (),
    limits: tuple[int, int, bool] = (100, 1 << 20, False),
    group_limits: tuple[int, int, int] = (100, 1 << 20, 0),
    entry: tuple[bytes, bytes, bytes] = (b"", b"", b""),
    batch: bytes = b"",
    acks: tuple[bytes, bytes] = (b"", b""),
    **parts: Any,
) -> list[Any]:
    """The arguments behind the node.

    Args:
        sequence: number of the commit.
        messages: the parts name them by their numbers, from 1 on.
        limits: messages and bytes of a queue, and whether it drops its oldest.
        group_limits: the same of a group.
        entry: of the log of messages: id, block, oldest entry to keep.
        acks: acknowledgements and what is settled, packed.
        batch: packets for other nodes, without the header.
        parts: the other fields of `BLOCK`, but for the numbers of messages.
    """
    parts = {"group_limits": list(group_limits), **parts}
    parts["pushes"] = [[cid, incarnation, *map(_at, numbers)] for cid, incarnation, *numbers in parts.get("pushes", ())]
    parts["awaiting"] = [[*item[:3], _at(item[3]), *(item[4:] or [0])] for item in parts.get("awaiting", ())]
    parts["shares"] = [part if n % 2 == 0 else list(map(_at, part)) for n, part in enumerate(parts.get("shares", ()))]
    parts["delayed"] = [_at(part) if n % 3 == 0 else part for n, part in enumerate(parts.get("delayed", ()))]
    parts["releases"] = [[*release, *[b""] * (5 - len(release)), 0][:6] for release in parts.get("releases", ())]
    block = [parts.pop(name, b"" if isinstance(kind, (Text, Packed)) else []) for name, kind in BLOCK.fields.items()]
    assert not parts, f"a block has no {', '.join(parts)}"
    header = block[list(BLOCK.fields).index("batch_header")]
    return [sequence, pack(block), *map(int, limits), "0-0", *entry, batch and header + batch, *acks, *messages]


def _at(number: int) -> int:
    return FIRST_MESSAGE - 1 + number
