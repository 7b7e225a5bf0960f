"""The store of a cluster: each block is one call of a function in Redis, atomic and applied once.

Blocks are numbered. Redis applies number n only after n - 1, and says so when it has one already; so after a broken
link those that are not confirmed are simply sent again. What Redis can't take for now (no memory, disk full, no
replica) is tried again until it can, and nothing is confirmed meanwhile: publishers wait, and are then not read.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import hiredis

from _speedups.cluster.journal import Block
from _speedups.cluster.message_log import MessageLog
from _speedups.session.session import Session
from broker import logs
from broker.storage.store import Store
from cluster.redis.keys import Keys
from cluster.redis.link import Link, LinkLost, Reply, ignore

RETRY_SECONDS = 0.3
WAIT_MILLISECONDS = 1000  # for replicas, until asked again
COMPLAIN_SECONDS = 30.0
STRETCHES = 512  # of a full log

log = logs.get("flockmq.cluster")


@dataclass(eq=False)
class Unconfirmed:
    """A block on its way."""

    seq: int  # 0 = it is no commit
    block: Block | None  # None = an entry of the log of messages that no commit takes
    entry: tuple[bytes, bytes] | None  # of the log of messages: id, block
    kept: bool = False
    replicated: bool = True
    acked: bool = False

    @property
    def done(self) -> bool:
        """Whether Redis has all of it."""
        return self.kept and self.replicated and self.acked

    @property
    def entry_size(self) -> int:
        """Bytes for the log of messages."""
        return len(self.entry[1]) if self.entry is not None else 0


@dataclass(eq=False, slots=True)
class Stretch:
    """Entries of a log that are given up together."""

    first: bytes  # id of the first
    size: int
    began: float
    ended: float


class LogBounds:
    """What of a log that the node writes is still to be kept, by bytes and by age.

    A log may have millions of entries, so what is known of them is by stretches.
    """

    def __init__(self, most_bytes: int, most_seconds: float) -> None:
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds
        self._stretches: deque[Stretch] = deque()
        self.size = 0

    def add(self, entry_id: bytes, size: int) -> None:
        """An entry will be written."""
        now = time.monotonic()
        self.size += size
        if self._stretches:
            last = self._stretches[-1]
            if last.size + size <= self.most_bytes / STRETCHES and now - last.began <= self.most_seconds / STRETCHES:
                last.size += size
                last.ended = now
                return
        self._stretches.append(Stretch(entry_id, size, now, now))

    def oldest(self) -> bytes:
        """The id of the oldest entry to keep."""
        now, known = time.monotonic(), self._stretches
        while len(known) > 1 and (self.size > self.most_bytes or now - known[0].ended > self.most_seconds):
            self.size -= known.popleft().size
        return known[0].first if known else b"0-0"

    def halve(self, waiting: int) -> bool:
        """Give up the older half of what is written, all but so many bytes; whether that is anything."""
        kept = self.size - (self.size - waiting) // 2
        before = self.size
        while len(self._stretches) > 1 and self.size - self._stretches[0].size >= kept:
            self.size -= self._stretches.popleft().size
        return self.size < before

    def renew(self) -> None:
        """Nobody could read for a while: the age of what there is begins anew."""
        now = time.monotonic()
        for stretch in self._stretches:
            stretch.ended = now


class RedisStore(Store):
    """Blocks of the ledger, and of the log of messages, into Redis.

    Args:
        keys, node: of the cluster, and the id of this node in it.
        limits: gives most queued messages, most queued bytes, and whether the oldest is dropped, of a session.
        bounds: of the log.
        replicas: that must have a block before it counts as kept.
        changed: called with the number of the change that a block made, and its records.
        dropped: called with the number of messages that found a full queue.
        unnumbered: called with sessions whose queues may have more than is known here.
        displaced: called with a reason when this node is no longer one of the cluster.
    """

    durable = True

    def __init__(
        self,
        keys: Keys,
        node: bytes,
        *,
        limits: Callable[[], tuple[int, int, bool]],
        bounds: LogBounds,
        replicas: int,
        changed: Callable[[int, list[tuple[Any, ...]]], object],
        dropped: Callable[[int], object],
        unnumbered: Callable[[list[Session]], object],
        displaced: Callable[[str], object],
    ) -> None:
        self._keys = keys
        self._node = node
        self._limits = limits
        self._bounds = bounds
        self._replicas = replicas
        self._changed = changed
        self._dropped = dropped
        self._unnumbered = unnumbered
        self._displaced = displaced
        self._confirm: Callable[[int], None] = lambda blocks: None
        self._waiting: deque[Unconfirmed] = deque()
        self._link: Link | None = None
        self._round = 0  # of sending: replies to an earlier one say nothing
        self._probing = False  # only the oldest is sent, to see whether Redis takes it
        self._complained = 0.0
        self._closed = False
        self._message_log: MessageLog | None = None
        self._log_key = keys.analytics_log(node)
        self._message_bounds = LogBounds(0, 0)
        self._most_unlogged = 0  # bytes that may wait
        self._unlogged = 0  # bytes of the log of messages that wait
        self.seq = 0  # of the newest block
        self.confirmed_seq = 0

    # ---- as every store ----

    def open(self) -> Iterator[bytes]:
        return iter(())

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm

    def commit(self, block: Any) -> None:
        if self._closed:
            return
        if block.commit:
            self.seq += 1
        if block.log_size:
            self._bounds.add(b"%d-0" % self.seq, block.log_size)
        kept = not block.commit and block.entry is None
        self._append(
            Unconfirmed(
                self.seq if block.commit else 0,
                block,
                block.entry,
                kept=kept,
                replicated=kept or not self._replicas,
                acked=not block.acks,
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

    def forget_before(self, position: int) -> None:
        """Redis forgets by itself what is done."""

    def close(self) -> None:
        self._closed = True
        self._link = None
        self._waiting.clear()

    def describe(self) -> str:
        return "what is kept is in Redis"

    # ---- the log of messages ----

    def follow(self, log: MessageLog) -> None:
        """Suspend this log while too much of it waits for Redis, or Redis is away."""
        self._message_log = log
        self._weigh(0)

    def bound_log(self, most_bytes: int, most_seconds: float, most_waiting: int) -> None:
        """How many bytes of the log of messages are kept, and for how long; how many may wait."""
        self._message_bounds.most_bytes = most_bytes
        self._message_bounds.most_seconds = most_seconds
        self._most_unlogged = most_waiting
        self._weigh(0)

    def log(self, entry_id: bytes, block: bytes) -> None:
        """Write a block that nobody waits for."""
        if not self._closed:
            self._append(Unconfirmed(0, None, (entry_id, block), acked=True))

    def _weigh(self, change: int) -> None:
        self._unlogged += change
        if self._message_log is not None:
            self._message_log.suspended = self._link is None or self._unlogged > self._most_unlogged

    # ---- the link ----

    def flow(self, link: Link, applied: int) -> None:
        """Send over this link, first what is not confirmed. `applied` is the last block that Redis has."""
        self._link = link
        self._round += 1
        self._bounds.renew()
        for waiting in self._waiting:
            if waiting.block is not None and waiting.seq and waiting.seq <= applied and not waiting.kept:
                waiting.kept = True
                self._unnumbered(waiting.block.unnumbered())
        self._probing = False
        if self._message_log is not None:
            link.call(ignore, b"FCALL", b"flockmq_log_from", b"0", self._keys.prefix, self._node, self._log_from())
        self._resend()
        self._advance(self._round)
        self._weigh(0)

    def _log_from(self) -> int:
        """The bytes of the log of messages before the oldest entry that is not confirmed."""
        assert self._message_log is not None
        for waiting in self._waiting:
            if waiting.entry is not None and not waiting.kept:
                return int(waiting.entry[0].rpartition(b"-")[2]) - len(waiting.entry[1])
        return self._message_log.bytes_before

    def stop_flowing(self) -> None:
        """The link is gone: keep what comes."""
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
        # Acknowledgements first: if the commit releases their session, who has it next is to know them.
        if block is not None and not waiting.acked:
            link.call(
                partial(self._taken, waiting, current),
                b"FCALL",
                b"flockmq_acks",
                b"0",
                self._keys.prefix,
                self._node,
                block.acks,
            )
        if block is not None and block.commit and not waiting.kept:
            messages, size, drop_oldest = self._limits()
            link.call(
                partial(self._committed, waiting, current),
                b"FCALL",
                b"flockmq_commit",
                b"0",
                self._keys.prefix,
                self._node,
                waiting.seq,
                block.commit,
                messages,
                size,
                int(drop_oldest),
                self._bounds.oldest(),
                *((*entry, self._message_bounds.oldest()) if entry is not None else ()),
            )
        elif entry is not None and not waiting.kept:
            # The id says which entry it is: a second time does no harm, and none overtakes one that was refused.
            link.call(
                partial(self._logged, waiting, current),
                b"FCALL",
                b"flockmq_logged",
                b"0",
                self._keys.prefix,
                self._node,
                *entry,
                self._message_bounds.oldest(),
            )
        if not waiting.replicated:
            link.call(partial(self._copied, waiting, current), b"WAIT", self._replicas, WAIT_MILLISECONDS)

    def _logged(self, waiting: Unconfirmed, current: int, reply: Reply) -> None:
        if self._fits(current, reply):
            self._takes_again()
            waiting.kept = True
            self._advance(current)

    def _fits(self, current: int, reply: Reply) -> bool:
        """Whether a reply is good. What was done is done, also if another round of sending has begun since."""
        if isinstance(reply, LinkLost):
            return False
        if isinstance(reply, hiredis.ReplyError):
            if current == self._round:
                self._pause(str(reply))
            return False
        if isinstance(reply, list) and reply and reply[0] in (b"gone", b"gap"):
            if reply[0] == b"gone":
                self._displaced("the others took this node for dead")
            elif current == self._round:  # else it follows one that was refused
                self._displaced("Redis has lost what it had")
            return False
        return True

    def _committed(self, waiting: Unconfirmed, current: int, reply: Reply) -> None:
        if not self._fits(current, reply):
            return
        self._takes_again()
        if not waiting.kept:  # else it was sent twice
            waiting.kept = True
            self.confirmed_seq = waiting.seq
            assert waiting.block is not None
            self._number(waiting.block, reply)
        self._advance(current)

    def _number(self, block: Block, reply: Reply) -> None:
        if reply[0] == b"again":
            self._unnumbered(block.unnumbered())
        else:
            change, dropped, *numbers = reply
            if change:
                self._changed(change, block.changes)
            if dropped:
                self._dropped(dropped)
            block.numbered(numbers)

    def _copied(self, waiting: Unconfirmed, current: int, reply: Reply) -> None:
        if not self._fits(current, reply) or self._link is None:
            return
        if reply >= self._replicas:
            waiting.replicated = True
            self._advance(current)
        elif current == self._round:
            self._complain(f"only {reply} of {self._replicas} replicas have what was published")
            self._link.call(partial(self._copied, waiting, current), b"WAIT", self._replicas, WAIT_MILLISECONDS)

    def _taken(self, waiting: Unconfirmed, current: int, reply: Reply) -> None:
        if self._fits(current, reply):
            waiting.acked = True
            self._advance(current)

    def _advance(self, current: int) -> None:
        if self._probing and current == self._round:
            self._probing = False
            self._resend(after=1)
        count = 0
        while self._waiting and self._waiting[0].done:
            done = self._waiting.popleft()
            count += done.block is not None
            if done.entry is not None:
                self._weigh(-done.entry_size)
        if count:
            self._confirm(count)

    # ---- when Redis can't ----

    def _pause(self, reason: str) -> None:
        """Redis refuses. Those behind in the pipeline will be refused too: all are sent again, later."""
        self._complain(reason)
        self._round += 1
        link, self._link = self._link, None
        # Those that wait take no memory there; were they given up, they would be acknowledged and not be in the log.
        if link is not None and reason.startswith("OOM") and self._message_bounds.halve(self._unlogged):
            log.warning("Redis has no memory left: the older half of the log of messages is given up")
            link.call(ignore, b"XTRIM", self._log_key, b"MINID", self._message_bounds.oldest())
        if link is not None:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._again, link, self._round)

    def _again(self, link: Link, current: int) -> None:
        if current == self._round and link.open and not self._closed and self._waiting:
            self._link = link
            self._probing = True
            self._send(self._waiting[0])

    def _takes_again(self) -> None:
        if self._complained:
            log.info("Redis takes messages again")
            self._complained = 0.0

    def _complain(self, reason: str) -> None:
        if time.monotonic() >= self._complained:
            log.error("Redis doesn't keep what it is given; nothing is acknowledged until it does", reason=reason)
            self._complained = time.monotonic() + COMPLAIN_SECONDS
