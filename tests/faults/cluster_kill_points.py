"""Runs a node of a cluster that kills itself: `python -m tests.faults.cluster_kill_points POINT:COUNT serve ...`.

The points are put around the calls to Redis from outside. They count from the moment that a commit with ARM in it was
made, so that a test can first set everything up.

================  ==================================================================================================
before-commit     the loop has made a block and is about to give it to the store
commit-sent       the block is on its way to Redis, which may have it or not
commit-answered   Redis has it, and has replied; no part of the node has the reply yet
half-sent         Redis has the blocks before this one, and gets no other; each has one entry for a queue
acknowledged      the waiting parts have been called; their packets to clients may have left or not
claimed           Redis has given a session to a connection, whose client has no CONNACK yet
loaded            a session's queue was read, and CONNACK is about to be made
released          the release of a session has been recorded, and nothing of it was sent
buried            Redis has handed over the wills of a dead node; none is published
due-taken         Redis has ended expired sessions and handed over due wills; none is published
due-published     they are published, and nothing of it is committed
assigned            Redis has assigned messages of a group to the node, which has done nothing with them
assignment-given       the node has given them to subscribers, and has recorded nothing of it
before-given      a block in which assignments end is about to go to the store
given             Redis has that block: the messages are in queues of sessions, or waiting again, or dead letters
filled            Redis has put messages of a group into a queue of the node's sessions, which does not have them yet
filled-given      they are passed to the session, and nothing was sent
settled           Redis has the assignments' ends by acknowledgements, and no part of the node has the reply yet
returned          Redis has the release of a session, with which messages went back to their groups
grace-asked       the node has asked for due messages, among them messages of absent subscribers
grace-due         they went back; the node has the reply, and has done no more
buried-given     a dead node's assignments went back to their groups; this node has its messages of them
given-asked       after a gap of its link, the node has got its assignments again
given-recovered   they are given to subscribers
================  ==================================================================================================
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq.broker import cli
from flockmq.cluster.life import ClusterLife
from flockmq.cluster.membership.dead_nodes import DeadNodes
from flockmq.cluster.redis.store import RedisStore
from flockmq.cluster.sessions.assignments import Assignments
from flockmq.cluster.sessions.loading import Loading
from flockmq.cluster.sessions.takeover import TakeOver
from tests.faults.kill_points import ARM

COMMIT_POINTS = ("before-commit", "commit-sent", "commit-answered", "acknowledged")
CLAIM_POINTS = ("claimed", "loaded", "released")
DUE_POINTS = ("due-taken", "due-published")
LEASE_POINTS = ("assigned", "assignment-given", "before-given", "given", "settled")
DIRECT_POINTS = ("filled", "filled-given")
SHARED_POINTS = (*LEASE_POINTS, *DIRECT_POINTS, "commit-sent", "acknowledged")
RETURN_POINTS = (
    "returned",
    "grace-asked",
    "grace-due",
    "buried-given",
    "given-asked",
    "given-recovered",
)


class Killer:
    def __init__(self, point: str, count: int) -> None:
        self.point = point
        self.left = count
        self.armed = False

    def here(self, point: str) -> None:
        """The process is at this point."""
        if self.armed and point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def around(owner: type, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Have a method do more."""
    method = getattr(owner, name)

    def replaced(self: Any, *arguments: Any, **named: Any) -> Any:
        before(*arguments)
        result = method(self, *arguments, **named)
        after(*arguments)
        return result

    setattr(owner, name, replaced)


def nothing(*_: Any) -> None:
    pass


def withhold_blocks(killer: Killer) -> None:
    """Redis gets no block from that with the number of the point on. Blocks are as small as can be."""
    commit = RedisStore.commit
    left = killer.left
    killer.left = 1

    def die_if_confirmed(self: RedisStore) -> None:
        if left <= 0 and self.confirmed_seq == self.seq:
            killer.here("half-sent")

    def commit_some(self: RedisStore, block: Any) -> None:
        nonlocal left
        left -= killer.armed
        if left > 0:
            commit(self, block)
        else:
            die_if_confirmed(self)

    advance = RedisStore._advance

    def confirm(self: RedisStore, current: int) -> None:
        die_if_confirmed(self)
        advance(self, current)

    def small(*arguments: Any) -> ClusterJournal:
        journal = ClusterJournal(*arguments)
        journal.limit_pushes(1)
        return journal

    RedisStore.commit = commit_some  # type: ignore[method-assign]
    RedisStore._advance = confirm  # type: ignore[method-assign]
    patch("flockmq.cluster.primary.ClusterJournal", small).start()


def install(point: str, count: int) -> None:
    """Put the points into the modules of the node."""
    killer = Killer(point, count)

    def here(name: str) -> Callable[..., None]:
        return lambda *_: killer.here(name)

    def sent(*_: Any) -> None:  # it leaves when the loop comes to it
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, killer.here, "commit-sent")

    def arm(block: Any) -> None:
        if ARM in block.commit or ARM in block.batch:
            killer.armed = True

    def due(point: str) -> Callable[..., None]:
        def passed(reply: Any) -> None:
            if isinstance(reply, list) and (reply[0] or reply[1]):
                killer.here(point)

        return passed

    def handed_over(_node: bytes, reply: Any) -> None:
        if isinstance(reply, list) and reply[1:] != [[]] and len(reply) > 1:
            killer.here("buried")

    def soon(name: str) -> Callable[..., None]:
        return lambda *_: asyncio.get_running_loop().call_soon(killer.here, name)

    def given(name: str) -> Callable[..., None]:
        def ends_assignments(block: Any, *_: Any) -> None:
            if block.commit and block.ended_assignments:
                killer.here(name)

        return ends_assignments

    def settled(waiting: Any, *_: Any) -> None:
        if waiting.block is not None and waiting.block.ended_assignments:
            killer.here("settled")

    if point == "half-sent":
        withhold_blocks(killer)
    releasing = False

    def releases(*_: Any) -> None:
        nonlocal releasing
        releasing = True

    def released(*_: Any) -> None:
        if releasing:
            killer.here("returned")

    def receives(assignments: list[Any], _: list[Any]) -> None:
        if assignments:
            killer.here("assigned")

    def received(assignments: list[Any], _: list[Any]) -> None:
        if assignments:
            killer.here("assignment-given")

    around(Assignments, "receive", receives, received)
    around(Assignments, "receive_given", here("filled"), here("filled-given"))
    around(Assignments, "_recovered", here("given-asked"), here("given-recovered"))
    around(RedisStore, "_number", given("given"), nothing)
    around(RedisStore, "_taken", settled, nothing)
    around(DeadNodes, "take_due", nothing, soon("grace-asked"))
    around(DeadNodes, "_due_taken", here("grace-due"), nothing)
    around(DeadNodes, "_buried", here("buried-given"), nothing)
    around(RedisStore, "commit", given("before-given"), nothing)
    around(RedisStore, "commit", here("before-commit"), arm)
    around(RedisStore, "_send", nothing, sent)
    around(RedisStore, "_committed", here("commit-answered"), nothing)
    around(ClusterLife, "_confirm", nothing, here("acknowledged"))
    around(TakeOver, "_granted", here("claimed"), nothing)
    around(Loading, "_take", nothing, here("loaded"))
    around(TakeOver, "ended", nothing, here("released"))
    around(TakeOver, "ended", nothing, releases)
    around(RedisStore, "_number", released, nothing)
    around(DeadNodes, "_buried", handed_over, nothing)
    around(DeadNodes, "_due_taken", due("due-taken"), due("due-published"))


if __name__ == "__main__":
    name, _, number = sys.argv[1].partition(":")
    install(name, int(number))
    sys.exit(cli.main(sys.argv[2:]))
