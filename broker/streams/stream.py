"""One stream: reads the log and gives its messages to a session, as fast as the client takes them."""

import asyncio
import time
from collections.abc import Callable

from ..._speedups.codec.topics import matches
from ..._speedups.log.log_source import DamagedLog, LogSource, check
from ..._speedups.session.session import Session
from .. import logs
from ..core.data_plane import DataPlane, report
from .merge import Merge
from .message_log import Entry, LogAway, MessageLog
from .start_position import Place, Start

RETRY_SECONDS = 0.5  # until a log that could not be read is read again
CACHED_TOPICS = 10_000

log = logs.get("flockmq.stream")


class Stream:
    """The stream of a subscription whose client is connected.

    Args:
        plane: of the node.
        message_log: to read.
        session: of the client.
        messages: topic filter of the messages.
        start: where to begin.
        options, identifier: of the subscription.
        on_progress: called when the session has messages, in the turn whose block they are in.
    """

    def __init__(
        self,
        plane: DataPlane,
        message_log: MessageLog,
        session: Session,
        messages: str,
        start: Start,
        *,
        options: int,
        identifier: int,
        on_progress: Callable[[], object],
    ) -> None:
        self._plane = plane
        self._log = message_log
        self._session = session
        self._messages = messages.encode()
        self._since = start.since
        self._places = dict(start.places)
        self._options = options
        self._identifier = identifier
        self._on_progress = on_progress
        self._matched: dict[bytes, bool] = {}
        self._read: dict[str, int] = {}  # node id -> bytes of its log that have been read
        self._piece: list[Entry] = []  # that the session pulls
        self._source: LogSource | None = None
        self._done = asyncio.Event()  # the session has pulled the piece
        self.missed = 0  # bytes that were trimmed before they were read
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_report)

    def stop(self) -> None:
        """Give the session nothing more."""
        self._task.cancel()
        if self._source is not None:
            self._source.cancel()

    def reached(self) -> Start:
        """Where the stream goes on: after all messages that the session has."""
        places = dict(self._places)
        if self._source is not None:
            for entry in self._piece[: self._source.index]:
                places[entry.node] = Place(entry.ms, entry.total)
            if self._source.row and self._source.index < len(self._piece):
                entry = self._piece[self._source.index]
                places[entry.node] = Place(entry.ms, entry.total, self._source.row)
        return Start(self._since, places)

    async def _run(self) -> None:
        merge = Merge(self._log, Start(self._since, self._places))
        failing = False
        while True:
            try:
                piece = await merge.next()
                failing = False
            except LogAway as error:
                if not failing:
                    log.warning("a stream waits for the log", client_id=self._session.client_id.decode(), reason=error)
                failing = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._give(piece)
            for node in [node for node in self._places if merge.ended(node)]:
                del self._places[node]

    async def _give(self, piece: list[Entry]) -> None:
        """Let the session pull a piece of the log, and wait until it has."""
        session = self._session
        self._piece, blocks = [], []
        for entry in piece:
            rows, missed = self._begin(entry)
            try:
                check(entry.block)
            except DamagedLog as error:
                log.error("a block of the log is passed over", node=entry.node, position=entry.ms, reason=error)
                continue
            self._piece.append(entry)
            blocks.append((entry.block, rows, f"{entry.node}:{entry.ms}-{entry.total}:".encode(), missed))
        self._done.clear()
        self._source = LogSource(
            self._plane.turn,
            blocks,
            (self._wants, self._since),
            now=time.time_ns() // 1000,
            options=self._options,
            identifier=self._identifier,
            on_progress=self._on_progress,
            on_end=self._done.set,
        )
        session.pull_from(self._source)
        self._plane.end_turn()
        await self._done.wait()
        self._places = self.reached().places
        self._source = None

    def _begin(self, entry: Entry) -> tuple[int, int]:
        """The messages of an entry to pass over, and the bytes that are missing before it."""
        place = self._places.get(entry.node)
        before = self._read.get(entry.node, place.total if place is not None else None)
        self._read[entry.node] = entry.total
        if before is None:
            return 0, 0
        if before == entry.total and place is not None:
            return place.rows, 0
        missed = max(0, entry.before - before)
        if missed:
            self.missed += missed
            log.warning(
                "messages of a stream were trimmed before they were read: analytics.log_bytes bounds the log",
                client_id=self._session.client_id.decode(),
                node=entry.node,
                bytes=missed,
            )
        return 0, missed

    def _wants(self, topic: bytes) -> bool:
        found = self._matched.get(topic)
        if found is None:
            if len(self._matched) >= CACHED_TOPICS:
                self._matched.clear()
            found = self._matched[topic] = matches(self._messages, topic)
        return found


def _report(task: "asyncio.Task[None]") -> None:
    """Log an exception that no code here should raise."""
    if not task.cancelled() and isinstance(error := task.exception(), Exception):
        report(error)
