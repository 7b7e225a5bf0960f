"""The arguments of `flockmq_commit`, in the form in which a node sends them."""

from collections.abc import Sequence
from typing import Any

from flockmq._speedups.base.msgpack import pack

FIRST_MESSAGE = 9  # place of the first message among the arguments in Lua


def commit_arguments(
    sequence: int,
    *,
    messages: Sequence[bytes] = (),
    limits: tuple[int, int, bool] = (100, 1 << 20, False),
    share_limits: tuple[int, int, int] = (100, 1 << 20, 0),
    entry: Sequence[bytes] = (),
    header: bytes = b"",
    batch: bytes = b"",
    changes: bytes = b"",
    tenants: Sequence[Any] = (),
    **parts: Sequence[Any],
) -> list[Any]:
    """The arguments behind the node.

    Args:
        sequence: number of the commit.
        messages: those that the parts name by their numbers, from 1 on.
        limits: messages and bytes of a queue, and whether it drops its oldest.
        share_limits: the same of a group.
        entry: of the log of messages: id, block, oldest entry to keep.
        header: of the batch.
        batch: packets for other nodes.
        changes: packed.
        tenants: prefix and most bytes of each, in turn.
        parts: pushes, targets, awaiting, released, wills, releases, shares, moves, later: as deploy/docs/CLUSTER.md has
            them, but for the numbers of messages; `shares` has groups and their lists of messages in turn. Without
            `shares` the reply has no leases, and `moves`, `later` and `tenants` are left out.
    """
    shares = [
        part if n % 2 == 0 else [_at(number) for number in part] for n, part in enumerate(parts.get("shares", ()))
    ]
    block: list[Any] = [
        len(messages),
        [[cid, incarnation, *map(_at, numbers)] for cid, incarnation, *numbers in parts.get("pushes", ())],
        1 if batch else b"",
        header,
        list(parts.get("targets", ())),
        changes,
        [[*item[:3], _at(item[3]), *item[4:]] for item in parts.get("awaiting", ())],
        *(list(parts.get(name, ())) for name in ("released", "wills", "releases")),
    ]
    if "shares" in parts:
        later = [_at(part) if n % 3 == 0 else part for n, part in enumerate(parts.get("later", ()))]
        block += [[*share_limits, *shares], list(parts.get("moves", ())), later, list(tenants)]
    most, most_bytes, drops_oldest = limits
    batches = [header + batch] if batch else []
    return [sequence, pack(block), most, most_bytes, int(drops_oldest), "0-0", *messages, *entry, *batches]


def _at(number: int) -> int:
    return FIRST_MESSAGE - 1 + number
