"""The logged messages of a range of time, of all nodes, in the order in which they were accepted.

Each node's log keeps its own order, even if the node's clock was set back. So messages of one publisher and topic stay
in order. Between nodes the order follows their clocks. The range is fixed when reading begins: it excludes messages
logged later, such as messages of the replay. Reading is lazy: a few megabytes of each log are in memory.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ..._speedups.codec.topics import matches
from ...broker.errors import FlockError
from ..analytics.log.log import Entry, Gap, KnownLog, Log, Logs
from ..analytics.times import SECOND, format_time
from . import rows
from .file_log import FileLog, FileLogs

LATE = 5 * SECOND  # a block is closed shortly after its messages were accepted
CHUNK = 256  # messages handed over at a time
CACHED = 100_000  # topic names whose match is cached


class Logged(NamedTuple):
    """A message of the range."""

    order: int  # accepted_at, but never less than of the message before it in the same log
    node: str  # the node's name
    row: rows.Row


@dataclass(frozen=True)
class Selection:
    """Selects messages. Times are microseconds since 1970; an empty field selects all."""

    since: int
    until: int
    topic_filters: Sequence[str] = ()
    client_ids: Sequence[str] = ()
    nodes: Sequence[str] = ()  # names or ids


@dataclass
class Losses:
    """The messages that the logs of the range lack."""

    notices: list[str] = field(default_factory=list)
    bytes: int = 0  # missing within the range, as far as the logs show
    lacking: int = 0  # messages of QoS 0 that were never logged


class Recording:
    """The messages of a selection.

    Args:
        logs: of the cluster, or of a node alone.
        selection: of messages.
        tell: callback for each gap, with a sentence.

    Raises:
        FlockError: there are no logs, or none of the named nodes.
    """

    def __init__(self, logs: Logs | FileLogs, selection: Selection, tell: Callable[[str], None]) -> None:
        self.selection = selection
        self.losses = Losses()
        self._tell = tell
        self._logs = logs
        self._matched: dict[str, bool] = {}
        # Fixed now: the last entries of all logs.
        self._ends = [(known, logs.log(known.node)) for known in self._known(logs.known())]
        self._lasts = [log.last() for _, log in self._ends]

    def chunks(self) -> Iterator[list[Logged]]:
        """The messages, some hundred at a time. Raises FlockError when Redis or a block can't be read."""
        streams = [self._messages(known, log, last) for (known, log), last in zip(self._ends, self._lasts, strict=True)]
        merged = heapq.merge(*streams, key=lambda message: message.order)
        while chunk := list(islice(merged, CHUNK)):
            yield chunk

    def _known(self, found: dict[str, KnownLog]) -> list[KnownLog]:
        if not found:
            raise FlockError(
                "there is no log of messages",
                "`analytics.topics` in the nodes' configuration turns it on",
            )
        named = self.selection.nodes
        chosen = [known for known in found.values() if not named or known.node in named or known.name in named]
        missing = set(named) - {known.node for known in chosen} - {known.name for known in chosen}
        if missing:
            names = ", ".join(sorted({known.name for known in found.values()}))
            raise FlockError(f"there is no log of node {', '.join(sorted(missing))}", f"there are those of {names}")
        return chosen

    # ---- one log ----

    def _messages(self, known: KnownLog, log: Log | FileLog, last: Entry | None) -> Iterator[Logged]:
        since, until = self.selection.since, self.selection.until
        start = log.at_time(since // 1000)
        self._check_start(known, log, since, until)
        if last is None or last.position <= start:
            return
        order, lacking = 0, None
        for entries in log.read(start, last.position, lambda gap: self._lost(gap, known.name)):
            for entry in entries:
                so_far = entry.header().lacking
                self.losses.lacking += so_far - (so_far if lacking is None else lacking)
                lacking = so_far
                for row in rows.read(entry.block, topic=self._topic, client=self._client):
                    if since <= row.accepted < until:
                        order = max(order, row.accepted)
                        yield Logged(order, known.name, row)
                if entry.position.ms * 1000 > until + LATE and not _has_earlier(entry, until):
                    return

    def _lost(self, gap: Gap, name: str) -> None:
        self.losses.bytes += gap.bytes
        self._notice(
            f"{gap.bytes} bytes of the log of node {name} are missing, after {gap.start} up to {gap.end} "
            f"({format_time(gap.start.ms * 1000)} to {format_time(gap.end.ms * 1000)}): trimmed before they were read"
        )

    def _check_start(self, known: KnownLog, log: Log | FileLog, since: int, until: int) -> None:
        """Report earlier messages that the log no longer has, if they may be of the range."""
        if known.last is not None:
            if since <= known.last.ms * 1000 and known.began * 1000 < until:
                self._notice(
                    f"the log of node {known.name} was deleted; it went from {format_time(known.began * 1000)} "
                    f"to {format_time(known.last.ms * 1000)}"
                )
            return
        first = log.first()
        if first is None:
            return
        begins = first.position.ms * 1000
        if first.before.total and since < begins and known.began * 1000 < until:
            self._notice(
                f"the log of node {known.name} begins at {format_time(begins)}: {first.before.total} bytes before it "
                f"were trimmed (analytics.log_seconds and log_bytes bound the log)"
            )

    def _notice(self, words: str) -> None:
        self.losses.notices.append(words)
        self._tell(words)

    # ---- selection ----

    @property
    def _topic(self) -> rows.Wanted | None:
        return self._topic_matches if self.selection.topic_filters else None

    @property
    def _client(self) -> rows.Wanted | None:
        return self.selection.client_ids.__contains__ if self.selection.client_ids else None

    def _topic_matches(self, topic: str) -> bool:
        found = self._matched.get(topic)
        if found is None:
            if len(self._matched) >= CACHED:
                self._matched.clear()
            found = any(matches(topic_filter, topic) for topic_filter in self.selection.topic_filters)
            self._matched[topic] = found
        return found


def _has_earlier(entry: Entry, until: int) -> bool:
    """Whether a block has a message from before `until`, selected or not."""
    return any(row.accepted < until for row in rows.read(entry.block))


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
