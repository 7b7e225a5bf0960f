"""The plan of a batch: the range of each log, its gaps, the tasks that share the work. Runs in the driver.

Planning sends small commands (the first entry after a place, the number of entries), because Spark polls for new data
many times a second.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import BlockError
from ..options import LATEST, SourceOptions
from ..position import MAX, START, Position
from .batch_end import Backlog, cut
from .jobs import reads
from .log import (
    Entry,
    Gap,
    KnownLog,
    Logs,
    after_command,
    ended,
    info_command,
    one_entry,
    until_command,
)
from .offsets import EARLIEST, ENDED, NEW, Offset, Offsets

SPLIT_FULL = 0.75  # share of its bytes at which a task is large enough
LATE_MS = 10_000  # a block is closed 20 ms after its messages were accepted, or later if the node stood still
Lost = Callable[[Gap], None]


@dataclass(frozen=True)
class Range:
    """The range of a task: a log after `start` up to `end`."""

    node: str
    name: str  # of the node
    start: Position
    end: Position
    trimmed_is_lost: bool = True  # False: begins with the oldest entry; trimmed ones were not requested

    @property
    def bytes(self) -> int:
        """The bytes of its blocks."""
        return max(0, self.end.total - self.start.total)


class Planner:
    """Finds ranges.

    Args:
        logs: of the cluster.
        options: of the source.
        lost: called for each gap; may raise.
    """

    def __init__(self, logs: Logs, options: SourceOptions, lost: Lost) -> None:
        self._logs = logs
        self._options = options
        self._lost = lost
        self.lacking: dict[str, int] = {}  # by node id: messages of QoS 0 that are not in the log
        self.known: dict[str, KnownLog] = {}

    def look(self) -> dict[str, KnownLog]:
        """The selected logs."""
        self.known = self._logs.known()
        return {node: log for node, log in self.known.items() if reads(self._options.nodes, log)}

    # ---- the start of a query ----

    def initial(self) -> Offsets:
        """The exact start of a new query in each existing log."""
        starting = self._options.starting_offsets
        offsets = {}
        for node, log in self.look().items():
            if log.last is not None:
                offsets[node] = Offset(log.last, ENDED)
            elif starting == LATEST:
                offsets[node] = Offset(self._logs.log(node).end())
            elif isinstance(starting, int):
                offsets[node] = Offset(self._logs.log(node).at_time(starting // 1000))
            elif isinstance(starting, dict) and node in starting:
                offsets[node] = Offset(self._named(node, starting[node]))
            else:
                offsets[node] = Offset(self._logs.log(node).start(), EARLIEST)
        return offsets

    def _named(self, node: str, named: Position) -> Position:
        """The exact position given by the user; entries trimmed after it count as lost."""
        log = self._logs.log(node)
        entry = log.until(named)
        if entry is not None:
            return entry.position
        start = log.start()
        return start if start.total <= named.total or start.total == 0 else named

    # ---- the end of a batch ----

    def latest(self, start: Offsets, budget: int | None, target: Mapping[str, Position] | None = None) -> Offsets:
        """The end of the next batch.

        Args:
            start: its beginning.
            budget: bytes that it may read; None: no limit.
            target: the end of the query; None: it has none.
        """
        wanted = self.look().keys() | (start.keys() - self.known.keys())  # the latter: forgotten, or lost
        open_ = {node: start.get(node, NEW) for node in wanted if start.get(node, NEW).mark != ENDED}
        firsts, lengths = self._firsts({node: offset.position for node, offset in open_.items()})
        offsets = {node: offset for node, offset in start.items() if node in self.known or node in open_}
        begun = {}
        for node, offset in open_.items():
            first = firsts[node]
            if first is None:
                self._without_news(offsets, node, offset, lengths[node])
            else:
                begun[node] = (self._checked(node, offset, first), first.position)
        for node, place in self._ends(begun, budget, target).items():
            if place > begun[node][0]:
                offsets[node] = Offset(place)
        return offsets

    def ends(self) -> dict[str, Position]:
        """The present last entries of all logs, including deleted ones."""
        known = self.look()
        found = {node: log.last for node, log in known.items() if log.last is not None}
        replies = self._logs.ask(until_command, {node: (None,) for node in known if node not in found})
        found |= {node: last.position for node, reply in replies.items() if (last := one_entry(reply)) is not None}
        empty: dict[str, tuple[()]] = {node: () for node in known if node not in found}
        return found | {node: ended(info) for node, info in self._logs.ask(info_command, empty).items()}

    def _firsts(self, places: Mapping[str, Position]) -> tuple[dict[str, Entry | None], dict[str, int]]:
        after = self._logs.ask(after_command, {node: (place,) for node, place in places.items()})
        lengths = self._logs.ask(lambda key: ("XLEN", key), dict.fromkeys(places, ()))
        return {node: one_entry(reply) for node, reply in after.items()}, lengths

    def _checked(self, node: str, offset: Offset, first: Entry) -> Position:
        """The position before the oldest remaining entry; reports the gap before it."""
        if first.before.total != offset.position.total and offset.mark != EARLIEST:
            self._lost(Gap(node, offset.position, first.before))
            return first.before
        return first.before if offset.mark == EARLIEST else offset.position

    def _without_news(self, offsets: Offsets, node: str, offset: Offset, length: int) -> None:
        """No entry follows: none is new, or new ones were trimmed, or the log was deleted."""
        log, place = self.known.get(node), offset.position
        if length:
            return
        if log is None:  # a forgotten ended log has another mark
            self._lost(Gap(node, place, place))
            offsets.pop(node, None)
            return
        end = log.last if log.last is not None else self._logs.log(node).end()
        if end.total > place.total and offset.mark != EARLIEST:
            self._lost(Gap(node, place, end))
        if log.last is not None:
            offsets[node] = Offset(max(end, place), ENDED)
        elif end > place:
            offsets[node] = Offset(end)

    def _ends(
        self,
        begun: Mapping[str, tuple[Position, Position]],
        budget: int | None,
        target: Mapping[str, Position] | None,
    ) -> dict[str, Position]:
        backlogs = {}
        for node, reply in self._logs.ask(until_command, dict.fromkeys(begun, (None,))).items():
            last = one_entry(reply)
            if last is None:
                continue  # trimmed at this moment: the next batch reports it
            with contextlib.suppress(BlockError):  # the reader of the entry reports the error
                self.lacking[node] = last.header().lacking
            end = last.position if target is None else min(last.position, target.get(node, START))
            start, first = begun[node]
            if end >= first:
                backlogs[node] = Backlog(start, first, end)
        if budget is None or not backlogs:
            return {node: backlog.end for node, backlog in backlogs.items()}
        return cut(self._logs, backlogs, budget)

    # ---- the ranges of tasks ----

    def between(self, since: int | None, until: int | None) -> list[Range]:
        """The ranges that contain all messages of a time (us), and a few others."""
        ranges = []
        for node, known in self.look().items():
            if known.last is not None:
                continue
            log = self._logs.log(node)
            before = log.until(Position(since // 1000 - 1, MAX)) if since is not None and since >= 1000 else None
            last = log.until(None if until is None else Position(until // 1000 + LATE_MS, MAX))
            start = log.start() if before is None else before.position
            if last is not None and start < last.position:
                ranges.append(Range(node, known.name, start, last.position, before is not None))
        return self.split(ranges)

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """The ranges between two offsets."""
        known = self.look()
        spans = {}
        for node, offset in end.items():
            begin = start.get(node, NEW)
            if begin.position < offset.position and begin.mark != ENDED:
                spans[node] = (begin, offset.position)
        firsts, _ = self._firsts({node: begin.position for node, (begin, _) in spans.items()})
        ranges = []
        for node, (begin, stop) in spans.items():
            first = firsts[node]
            lenient = begin.mark == EARLIEST
            if first is None or first.position > stop:
                if not lenient:
                    self._lost(Gap(node, begin.position, stop))
                continue
            name = known[node].name if node in known else node
            ranges.append(Range(node, name, self._checked(node, begin, first), stop, not lenient))
        return self.split(ranges)

    def split(self, ranges: list[Range]) -> list[Range]:
        """Smaller ranges, so that many tasks share a log."""
        total = sum(one.bytes for one in ranges)
        size = max(1, min(self._options.bytes_per_partition, math.ceil(total / self._options.min_partitions)))
        return [part for one in ranges for part in self._parts(one, size)]

    def _parts(self, whole: Range, most: int) -> list[Range]:
        count = math.ceil(whole.bytes / most)
        size = math.ceil(whole.bytes / max(1, count))
        log, start, parts = self._logs.log(whole.node), whole.start, []
        while whole.end.total - start.total > size * 1.25:
            place = log.further(start, whole.end, size, int(size * SPLIT_FULL))
            if place >= whole.end:
                break
            parts.append(Range(whole.node, whole.name, start, place, whole.trimmed_is_lost or start > whole.start))
            start = place
        return [*parts, Range(whole.node, whole.name, start, whole.end, whole.trimmed_is_lost or start > whole.start)]
