"""The store of a cluster: each block is one call of a function in Redis, atomic and applied once.

Blocks are numbered. Redis applies number n only after n - 1, and reports a block that it has already. So after a broken
link the node sends all unconfirmed blocks again. If Redis refuses a block for now (no memory, disk full, no replica),
the node retries until Redis accepts it. No block is confirmed until then: publishers wait for acknowledgements, then
the node stops reading from them. A block that meets damaged keys of clients or groups is applied without them, and the
reply names them; a damaged key of this node makes it rejoin, with other keys.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ..._speedups.cluster.commit_block import Block
from ..._speedups.log.message_log import MessageLog
from ..._speedups.session.session import Session
from ...broker import logs
from ...broker.core.loop_monitor import Maximum
from ...broker.storage.store import LogStore
from .keys import Keys
from .link import GONE, LOST_DATA, Link, LinkLost, Reply, ReplyError, ignore
from .log_bounds import LogBounds

RETRY_SECONDS = 0.3
WAIT_MILLISECONDS = 1000  # for replicas, per WAIT
COMPLAIN_SECONDS = 30.0  # between log lines about a refusal

log = logs.get("flockmq.cluster")


@dataclass(eq=False, slots=True)
class Unconfirmed:
    """A block that Redis has not confirmed."""

    seq: int  # 0 = no commit
    block: Block | None  # None = an entry of the log of messages without a commit
    entry: tuple[bytes, bytes] | None  # of the log of messages: id, block
    kept: bool = False
    replicated: bool = True
    unacked: set[int] = field(default_factory=set)  # acknowledgements that Redis may not have, by number of their text
    riding: int | None = None  # the number of those that are in the commit as it was sent last
    since: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> bool:
        """Whether Redis has all of it."""
        return self.kept and self.replicated and not self.unacked

    @property
    def entry_size(self) -> int:
        """Bytes for the log of messages."""
        return len(self.entry[1]) if self.entry is not None else 0


class CommitListener(Protocol):
    """Gets what Redis replies to blocks."""

    def changed(self, number: int, records: list[tuple[Any, ...]], /) -> object:
        """A block has made the change with this number, and these records."""
        ...

    def dropped(self, count: int, by_client: dict[bytes, int], expired: int, /) -> object:
        """Full queues have dropped messages, and messages that had expired."""
        ...

    def assigned(self, assignments: list[Any], totals: list[Any], /) -> object:
        """Redis has assigned messages of groups to this node: see `Assignments.receive`."""
        ...

    def given(self, items: list[list[Any]], /) -> object:
        """Redis has put messages of groups into queues of this node's sessions: see `Assignments.receive_given`."""
        ...

    def damaged(self, steps: list[bytes], /) -> object:
        """Redis could not apply some steps of a block that is not confirmed yet: see `DamagedKeys.report`."""
        ...

    def unnumbered(self, sessions: list[Session], /) -> object:
        """The queues of these sessions may have messages of a repeated block, whose numbers are unknown."""
        ...


class RedisStore(LogStore):
    """Writes the blocks of the journal and of the log of messages to Redis.

    Args:
        keys, node: of the cluster, and the id of this node in it.
        bounds: of the log of batches.
        replicas: number that must have a block before it counts as kept.
        on_fenced: called with the reason when this node is no longer a member of the cluster.
    """

    durable = True
    listener: CommitListener  # is set before `start`

    def __init__(
        self,
        keys: Keys,
        node: bytes,
        *,
        bounds: LogBounds,
        replicas: int,
        on_fenced: Callable[[str], object],
    ) -> None:
        self._keys = keys
        self._node = node
        self._call_acks, self._call_commit, self._call_logged = (
            (*keys.function(name), node) for name in ("acks", "commit", "logged")
        )
        self._queue_limits = (0, 0, 0)  # of a session: messages, bytes, and whether the oldest message is dropped
        self._bounds = bounds
        self._replicas = replicas
        self._on_fenced = on_fenced
        self._confirm: Callable[[int], None] = lambda blocks: None
        self._waiting: deque[Unconfirmed] = deque()
        self._link: Link | None = None
        self._round = 0  # of sending: replies to an earlier one don't count
        self._refused = False  # Redis has refused a commit, and has taken none since
        self._probing = False  # only the oldest block is sent, to test whether Redis accepts it
        self._complained = 0.0
        self._closed = False
        self._message_log: MessageLog | None = None
        self._log_key = keys.message_log(node)
        self._message_bounds = LogBounds(0, 0)
        self._max_unlogged = 0  # bytes that may wait
        self._unlogged = 0  # bytes of the log of messages that wait
        self.seq = 0  # of the newest block
        self.confirmed_seq = 0  # of the newest block that Redis has had; its replicas may lack it
        self.acks_executed = 0  # calls with acknowledgements to which Redis has replied
        self._latency = Maximum()

    # ---- the interface of stores ----

    def open(self) -> Iterator[bytes]:
        return iter(())

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm

    def limit_queues(self, messages: int, size: int, *, drop_oldest: bool) -> None:
        """Set the limits of a session's queue, in messages and bytes; a full one drops its oldest or its newest."""
        self._queue_limits = (messages, size, int(drop_oldest))

    def commit(self, block: Any) -> None:
        if self._closed:
            return
        if block.commit:
            self.seq += 1
        if block.batch:
            self._bounds.add(b"%d-0" % self.seq, len(block.batch))
        kept = not block.commit and block.entry is None
        self._append(
            Unconfirmed(
                self.seq if block.commit else 0,
                block,
                block.entry,
                kept=kept,
                replicated=kept or not self._replicas,
                unacked=set(range(len(block.acks))),
            )
        )

    def _append(self, waiting: Unconfirmed) -> None:
        self._waiting.append(waiting)
        if waiting.entry is not None:
            self._message_bounds.add(waiting.entry[0], waiting.entry_size)
            self._weigh(waiting.entry_size)
        if self._link is not None and not self._probing:
            self._send(waiting)

    @property
    def position(self) -> int:
        return self.seq + 1

    @property
    def size(self) -> int:
        return sum(len(waiting.block or b"") for waiting in self._waiting)

    @property
    def waiting(self) -> int:
        """The blocks that Redis has not confirmed."""
        return len(self._waiting)

    @property
    def latency(self) -> float:
        """The longest that Redis took to confirm a block, of the last 15 seconds; or takes, if that is longer."""
        now = time.monotonic() - self._waiting[0].since if self._waiting else 0.0
        return max(now, self._latency.read())

    def forget_before(self, position: int) -> None:
        """Redis drops finished blocks itself."""

    def close(self) -> None:
        self._closed = True
        self._link = None
        self._waiting.clear()

    def describe(self) -> str:
        return "Redis keeps the state"

    def ended_assignments(self) -> Iterator[tuple[bytes, int]]:
        """Group and place of the assignments that end with blocks that Redis may not have."""
        for waiting in self._waiting:
            if waiting.block is not None and not (waiting.kept and not waiting.unacked):
                yield from waiting.block.ended_assignments

    # ---- the log of messages ----

    def follow(self, log: MessageLog) -> None:
        self._message_log = log
        self._weigh(0)

    def bound_log(self, max_bytes: int, max_seconds: float, max_waiting: int) -> None:
        self._message_bounds.max_bytes = max_bytes
        self._message_bounds.max_seconds = max_seconds
        self._max_unlogged = max_waiting
        self._weigh(0)

    @property
    def log_size(self) -> int:
        return self._message_bounds.size

    @property
    def log_waiting(self) -> int:
        return self._unlogged

    def log(self, entry_id: bytes, block: bytes) -> None:
        if not self._closed:
            self._append(Unconfirmed(0, None, (entry_id, block)))

    def _weigh(self, change: int) -> None:
        self._unlogged += change
        if self._message_log is not None:
            self._message_log.suspended = self._link is None or self._unlogged > self._max_unlogged

    # ---- the link ----

    def flow(self, link: Link, applied: int) -> None:
        """Send over this link, the unconfirmed blocks first. `applied` is the last block that Redis has."""
        self._round += 1
        self._bounds.renew()
        # Calls that read queues come first, and may add a block: it must not be sent before its predecessors.
        for waiting in list(self._waiting):
            if waiting.block is not None and waiting.seq and waiting.seq <= applied and not waiting.kept:
                waiting.kept = True
                if waiting.riding is not None:
                    waiting.unacked.discard(waiting.riding)
                self.confirmed_seq = waiting.seq
                self.listener.unnumbered(waiting.block.unnumbered())
        self._link = link
        self._probing = False
        if self._message_log is not None:
            link.call(ignore, *self._keys.function("log_from"), self._node, self._log_from())
        self._resend()
        self._advance(self._round)
        self._weigh(0)

    def _log_from(self) -> int:
        """The bytes of the log of messages before its oldest unconfirmed entry."""
        assert self._message_log is not None
        for waiting in self._waiting:
            if waiting.entry is not None and not waiting.kept:
                return int(waiting.entry[0].rpartition(b"-")[2]) - len(waiting.entry[1])
        return self._message_log.bytes_before

    def stop_flowing(self) -> None:
        """The link is lost: keep the blocks until `flow`."""
        self._link = None
        self._round += 1
        self._weigh(0)

    def _resend(self, after: int = 0) -> None:
        for waiting in list(self._waiting)[after:]:
            if not waiting.done:
                self._send(waiting)

    def _send(self, waiting: Unconfirmed) -> None:
        link, block, current = self._link, waiting.block, self._round
        if link is None:
            return
        entry = waiting.entry
        commits = block is not None and bool(block.commit) and not waiting.kept
        # Acknowledgements first: if the commit releases their session, its next node must see them. The last ones ride
        # in the commit, unless Redis refuses commits: it takes acknowledgements even when it has no memory left.
        waiting.riding = max(waiting.unacked) if commits and waiting.unacked and not self._refused else None
        if block is not None and waiting.unacked:
            self._send_acks(link, waiting, block)
        if block is not None and commits:
            call = link.call_alone if block.is_part else link.call
            riding = waiting.riding
            call(
                partial(self._committed, waiting, riding, current),
                *self._call_commit,
                waiting.seq,
                block.commit,
                *self._queue_limits,
                self._bounds.oldest(),
                *(entry or (b"", b"")),
                self._message_bounds.oldest() if entry is not None else b"",
                block.batch,
                *((b"", b"") if riding is None else self._acks_of(block, riding)),
                *block.texts,
            )
        elif entry is not None and not waiting.kept:
            # Redis checks the id: it ignores an entry that it has, and refuses one whose predecessor it lacks.
            link.call(
                partial(self._logged, waiting, current),
                *self._call_logged,
                *entry,
                self._message_bounds.oldest(),
            )
        if not waiting.replicated:
            link.call(partial(self._copied, waiting, current), b"WAIT", self._replicas, WAIT_MILLISECONDS)

    def _send_acks(self, link: Link, waiting: Unconfirmed, block: Block) -> None:
        for number in sorted(waiting.unacked):
            if number != waiting.riding:
                then = partial(self._taken, waiting, number, self._round)
                link.call(then, *self._call_acks, *self._acks_of(block, number))

    @staticmethod
    def _acks_of(block: Block, number: int) -> tuple[bytes, bytes]:
        """A text with acknowledgements, and what the node settles with groups, which goes with the last one."""
        return block.acks[number], block.settled if number == len(block.acks) - 1 else b""

    def _logged(self, waiting: Unconfirmed, current: int, reply: Reply) -> None:
        if self._fits(current, reply):
            self._end_complaint()
            waiting.kept = True
            self._advance(current)

    def _fits(self, current: int, reply: Reply) -> bool:
        """Whether Redis has executed the call; this also holds for a reply to an earlier round of sending."""
        if isinstance(reply, LinkLost):
            return False
        if isinstance(reply, ReplyError):
            if current == self._round and str(reply).startswith("DAMAGED ") and self._node.decode() in str(reply):
                self._on_fenced(f"a key of this node is damaged: {str(reply).removeprefix('DAMAGED ')}")
            elif current == self._round:
                self._pause(str(reply))
            return False
        if isinstance(reply, list) and reply and reply[0] in (b"gone", b"gap"):
            if reply[0] == b"gone":
                self._on_fenced(GONE)
            elif current == self._round:  # else it followed a refused block
                self._on_fenced(LOST_DATA)
            return False
        return True

    def _committed(self, waiting: Unconfirmed, riding: int | None, current: int, reply: Reply) -> None:
        if not self._fits(current, reply):
            return
        self._end_complaint()
        self._refused = False
        if riding is not None:
            waiting.unacked.discard(riding)
        if not waiting.kept:  # else it was sent twice
            waiting.kept = True
            self.confirmed_seq = waiting.seq
            assert waiting.block is not None
            self._number(waiting.block, reply)
        self._advance(current)

    def _number(self, block: Block, reply: Reply) -> None:
        if reply[0] == b"again":
            # Redis read it from an ended connection, after `flow` had its position (where CLIENT KILL is not allowed).
            # Changes of other nodes may have been applied here in between, so the order of its changes is lost.
            if block.changes:
                self._on_fenced("Redis applied a change late")
            else:
                self.listener.unnumbered(block.unnumbered())
        else:
            _, change, dropped, expired, numbers, full, known, assignments, totals, given, damaged = reply
            if assignments or totals:
                self.listener.assigned(assignments, totals)
            if damaged:
                self.listener.damaged(damaged)
            if change:
                self.listener.changed(change, block.changes_without(known) if known else block.changes)
            if dropped or expired:
                self.listener.dropped(dropped, dict(zip(full[::2], full[1::2], strict=True)), expired)
            block.numbered(numbers)
            if given:  # its numbers follow the numbers of the block
                self.listener.given(given)

    def _copied(self, waiting: Unconfirmed, current: int, reply: Reply) -> None:
        if not self._fits(current, reply) or self._link is None:
            return
        if reply >= self._replicas:
            waiting.replicated = True
            self._advance(current)
        elif current == self._round:
            self._complain(f"only {reply} of {self._replicas} replicas have the data")
            self._link.call(partial(self._copied, waiting, current), b"WAIT", self._replicas, WAIT_MILLISECONDS)

    def _taken(self, waiting: Unconfirmed, number: int, current: int, reply: Reply) -> None:
        if self._fits(current, reply):
            self.acks_executed += 1
            waiting.unacked.discard(number)
            _, assignments, totals, given, damaged = reply
            if assignments or totals:
                self.listener.assigned(assignments, totals)
            if damaged:
                self.listener.damaged(damaged)
            if given:
                self.listener.given(given)
            self._advance(current)

    def _advance(self, current: int) -> None:
        if self._probing and current == self._round:
            self._probing = False
            self._resend(after=1)
        count = 0
        if self._waiting and self._waiting[0].done:
            self._latency.add(time.monotonic() - self._waiting[0].since)
        while self._waiting and self._waiting[0].done:
            done = self._waiting.popleft()
            count += done.block is not None
            if done.entry is not None:
                self._weigh(-done.entry_size)
        if count:
            self._confirm(count)

    # ---- when Redis refuses ----

    def _pause(self, reason: str) -> None:
        """Redis refuses a block and all later blocks of the pipeline: send them again after a pause."""
        self._complain(reason)
        self._refused = True
        self._round += 1
        link, self._link = self._link, None
        # Entries that still wait use no memory of Redis. They must stay: their messages will be acknowledged.
        if link is not None and reason.startswith("OOM") and self._message_bounds.halve(self._unlogged):
            log.warning("Redis is out of memory: trimming the older half of the log of messages")
            link.call(ignore, b"XTRIM", self._log_key, b"MINID", self._message_bounds.oldest())
        if link is not None:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._again, link, self._round)

    def _again(self, link: Link, current: int) -> None:
        if current == self._round and link.open and not self._closed and self._waiting:
            self._link = link
            self._probing = True
            self._send(self._waiting[0])
            for waiting in list(self._waiting)[1:]:  # acknowledgements free memory
                waiting.riding = None
                if waiting.block is not None:
                    self._send_acks(link, waiting, waiting.block)

    def _end_complaint(self) -> None:
        if self._complained:
            log.info("Redis accepts data again")
            self._complained = 0.0

    def _complain(self, reason: str) -> None:
        if time.monotonic() >= self._complained:
            log.error("Redis refuses data; messages are not acknowledged until it accepts them", reason=reason)
            self._complained = time.monotonic() + COMPLAIN_SECONDS
