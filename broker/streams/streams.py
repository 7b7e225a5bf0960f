"""The streams of a node: begun by SUBSCRIBE, gone on with at a reconnect, and where persistent sessions have got to.

The position of a session is a hidden retained message, one for each client, which all nodes have. It is written in the
block in which messages enter the session's queue. So after a crash, or at another node, no message is missing in the
queue and none is there twice.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..._speedups.codec.packets import Connect, Subscribe
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from ..core.data_plane import DataPlane
from ..core.hidden_messages import HiddenMessages
from ..core.session_expiry import kept_seconds
from ..core.session_follower import SessionFollower, Subscription
from ..core.topic_filters import is_stream, parts_of
from .message_log import MessageLog
from .start_position import Start, parse_since
from .stream import Stream

Stored = dict[str, dict[str, Any]]  # topic filter of a stream -> where it goes on, as JSON


class Streams(SessionFollower):
    """The streams of the clients of a node.

    Args:
        data_plane: of the node.
        message_log: returns the log of messages; None: there is none.
    """

    def __init__(self, data_plane: DataPlane, message_log: Callable[[], MessageLog | None]) -> None:
        self._plane = data_plane
        self._message_log = message_log
        self._stored = HiddenMessages(data_plane, "streams")
        self._streams: dict[Session, dict[str, Stream]] = {}
        self._unconfirmed: dict[bytes, Stored] = {}  # by client id: recorded, and not in the retained tree yet
        self._missed = 0

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def counts(self) -> list[tuple[str, int]]:
        """The clients that read streams, and how many each reads."""
        return [(session.client_id.decode(), len(streams)) for session, streams in self._streams.items()]

    @property
    def missed(self) -> int:
        """Bytes of logs that were trimmed before streams had read them."""
        return self._missed + sum(stream.missed for streams in self._streams.values() for stream in streams.values())

    @property
    def available(self) -> bool:
        """Whether there is a log to read."""
        return self._message_log() is not None

    def names(self, session: Session) -> set[str]:
        """The topic filters of the streams that a session reads."""
        return set(self._streams.get(session, ()))

    def subscribing(self, session: Session, added: Sequence[Subscription], packet: Subscribe | None) -> None:
        """Note where streams begin; a stream that the session has goes on."""
        for each in added:
            if each.is_stream:
                self._prepare(session, each.name.decode())

    def _prepare(self, session: Session, topic_filter: str) -> None:
        if topic_filter in self._streams.get(session, {}) or not session.persistent:
            return
        stored = self._find(session)
        if topic_filter not in stored:
            self._record(session, stored | {topic_filter: _start(topic_filter).to_json()})

    def subscribed(self, session: Session, added: Sequence[Subscription]) -> None:
        """Begin streams, or go on with them with other options."""
        for each in added:
            if each.is_stream:
                self._begin(session, each.name.decode(), each.options, each.identifier)

    def _begin(self, session: Session, topic_filter: str, options: int, identifier: int) -> None:
        if (before := self._streams.get(session, {}).pop(topic_filter, None)) is not None:
            start = before.reached()
            self._end(before)
        elif stored := self._find(session).get(topic_filter):
            start = Start.from_json(stored)
        else:
            start = _start(topic_filter)
        self._go_on(session, topic_filter, start, options, identifier)

    def _go_on(self, session: Session, topic_filter: str, start: Start, options: int, identifier: int) -> None:
        message_log = self._message_log()
        if message_log is None or not session.connected:
            return
        self._streams.setdefault(session, {})[topic_filter] = Stream(
            self._plane,
            message_log,
            session,
            parts_of(topic_filter).messages,
            start,
            options=options,
            identifier=identifier,
            on_progress=partial(self._record_reached, session),
        )

    def unsubscribed(self, session: Session, topic_filters: Sequence[str]) -> None:
        """End these streams."""
        if not any(map(is_stream, topic_filters)):
            return
        streams = self._streams.get(session, {})
        ended = [streams.pop(name) for name in topic_filters if name in streams]
        for stream in ended:
            self._end(stream)
        if not streams:
            self._streams.pop(session, None)
        if session.persistent and (stored := self._find(session)):
            rest = {name: start for name, start in stored.items() if name not in topic_filters}
            if len(rest) < len(stored):
                self._record(session, rest)

    def attached(self, connection: Connection, session: Session, packet: Connect, *, present: bool) -> None:
        """Go on with the streams of its session, or forget the streams of an earlier one."""
        stored = self._find(session)
        if not stored:
            return
        known = {name: rest for name, *rest in self._plane.router.filters.all_of(session)} if present else {}
        alive = {name: start for name, start in stored.items() if name.encode() in known}
        # Without an expiry, as long as the client is here. A session that ends with its connection has no position.
        self._record(session, alive if session.persistent else {})
        for name, start in alive.items():
            self._go_on(session, name, Start.from_json(start), *known[name.encode()])

    def detached(self, session: Session) -> None:
        """The client's connection has ended."""
        streams = self._streams.get(session)
        if streams is None:
            return
        if session.persistent:
            self._record_reached(session, away=True)
        for stream in streams.values():
            self._end(stream)
        del self._streams[session]

    def _end(self, stream: Stream) -> None:
        stream.stop()
        self._missed += stream.missed

    # ---- where a session has got to ----

    def _find(self, session: Session) -> Stored:
        """Where the streams of a session go on."""
        if session.client_id in self._unconfirmed:
            return self._unconfirmed[session.client_id]
        found = self._stored.find(session.client_id.hex())
        return json.loads(found) if found else {}

    def _record_reached(self, session: Session, *, away: bool = False) -> None:
        streams = self._streams.get(session, {})
        if streams:
            self._record(session, {name: stream.reached().to_json() for name, stream in streams.items()}, away=away)

    def _record(self, session: Session, stored: Stored, *, away: bool = False) -> None:
        """Write where streams go on, with the other records of the turn."""
        seconds = 0
        if away:
            seconds = kept_seconds(session.expiry, self._plane.config.mqtt)
        self._unconfirmed[session.client_id] = stored
        self._stored.record(session.client_id.hex(), json.dumps(stored).encode() if stored else b"", seconds=seconds)
        self._plane.after_step(partial(self._confirmed, session.client_id, stored))

    def _confirmed(self, client_id: bytes, stored: Stored) -> None:
        if self._unconfirmed.get(client_id) is stored:
            del self._unconfirmed[client_id]


def _start(topic_filter: str) -> Start:
    return parse_since(parts_of(topic_filter).since, time.time_ns() // 1000)
