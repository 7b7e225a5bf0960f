"""Retained messages that new subscriptions still have to get: persistent sessions get the rest when they return.

A search sends the retained messages of a new subscription while its client reads. If the connection ends before, the
filter is noted in a hidden retained message, one for each client, which all nodes have. A search that is not over after
a quarter of a second is noted, too: then the rest is not lost when the node dies. This node also keeps the searches of
absent sessions, and goes on where they are. After a restart, or at another node, they begin again: the order of a
tree of retained messages differs between processes.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from ..._speedups.codec.packets import Connect, Subscribe
from ..._speedups.codec.topics import is_shared
from ..._speedups.net.connection import Connection
from ..._speedups.routing.retained import RetainedSearch
from ..._speedups.session.session import Session
from .data_plane import DataPlane
from .hidden_messages import HiddenMessages
from .session_expiry import kept_seconds
from .session_follower import SessionFollower, Subscription
from .subscription_options import MAXIMUM_QOS, RETAIN_HANDLING_SHIFT

MAX_NOTED = 64 * 1024  # characters of the filters in one note; the others are not noted
MAX_KEPT = 10_000  # searches of absent sessions; the oldest begin again

Searches = dict[str, RetainedSearch]  # by topic filter


class RetainedSearches(SessionFollower):
    """The searches of the persistent sessions of a node.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._plane = data_plane
        self._notes = HiddenMessages(data_plane, "searches")
        self._running: dict[Session, Searches] = {}  # of connected sessions, also of clean ones; some may be over
        self._noted: dict[Session, set[str]] = {}  # filters in the notes of connected sessions
        self._kept: dict[str, Searches] = {}  # of absent sessions, by the id of their note, oldest first

    def subscribing(self, session: Session, added: Sequence[Subscription], packet: Subscribe | None) -> None:
        """A search is noted when it goes on for long."""

    def subscribed(self, session: Session, added: Sequence[Subscription]) -> None:
        """Send the retained messages that match new subscriptions; a stream and a group get none [5: 3.3.1.3]."""
        for each in added:
            handling = each.options >> RETAIN_HANDLING_SHIFT
            if handling == 2 or (handling == 1 and not each.is_new):  # [5: MQTT-3.3.1-10, 11]
                continue
            if not each.is_stream and not is_shared(each.name):
                # For a replaced subscription again [MQTT-3.8.4-3].
                self._begin(session, each.name, each.options & MAXIMUM_QOS, each.identifier)

    def _begin(self, session: Session, topic_filter: bytes, qos: int, identifier: int) -> None:
        search = self._plane.router.retained.search(topic_filter, qos, identifier)
        if search is not None:
            self._go_on(session, topic_filter.decode(), search)

    def tick(self) -> None:
        """Note the searches that go on, and forget the others."""
        if not self._running:
            return
        for session in list(self._running):
            searches = self._unfinished(session)
            if not searches:
                del self._running[session]
                self._clear(session)
            elif session.persistent and not searches.keys() <= self._noted.get(session, set()):
                self._noted[session] = set(searches)
                self._note(session, searches)
        self._plane.end_turn()

    def unsubscribed(self, session: Session, topic_filters: Sequence[str]) -> None:
        """Send no more retained messages for these filters [MQTT-3.10.4-2] [5: MQTT-3.10.4-2]."""
        searches = self._running.get(session, {})
        for topic_filter in topic_filters:
            if (search := searches.pop(topic_filter, None)) is not None:
                search.stop()

    def attached(self, connection: Connection, session: Session, packet: Connect, *, present: bool) -> None:
        """Go on with the searches of its session, or forget the searches of an earlier one."""
        payload = self._notes.find(session.client_id.hex())
        if payload is None:
            return
        note: dict[str, Any] = json.loads(payload)
        kept = self._kept.pop(note["id"], {})
        known = {name: rest for name, *rest in self._plane.router.filters.all_of(session)} if present else {}
        for name in note["filters"]:
            if name.encode() in known:
                options, identifier = known[name.encode()]
                if name in kept:
                    self._go_on(session, name, kept[name])
                else:
                    self._begin(session, name.encode(), options & MAXIMUM_QOS, identifier)
        self._noted[session] = set()
        if session not in self._running:
            self._clear(session)

    def detached(self, session: Session) -> None:
        """The client's connection has ended."""
        searches = self._unfinished(session)
        self._running.pop(session, None)
        if not searches or not session.persistent:
            self._clear(session)
            return
        self._noted.pop(session, None)
        self._kept[self._note(session, searches, away=True)] = searches
        while sum(map(len, self._kept.values())) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def _go_on(self, session: Session, topic_filter: str, search: RetainedSearch) -> None:
        session.pull_from(search)
        self._running.setdefault(session, {})[topic_filter] = search

    def _unfinished(self, session: Session) -> Searches:
        return {name: search for name, search in self._running.get(session, {}).items() if not search.is_over}

    def _note(self, session: Session, searches: Searches, *, away: bool = False) -> str:
        """Write a note, with the other records of the turn. Returns its id."""
        note_id, size, filters = os.urandom(8).hex(), 0, []
        for name in searches:
            size += len(name)
            if size <= MAX_NOTED:
                filters.append(name)
        seconds = kept_seconds(session.expiry, self._plane.config.mqtt) if away else 0
        payload = json.dumps({"id": note_id, "filters": filters}).encode()
        self._notes.record(session.client_id.hex(), payload, seconds=seconds)
        return note_id

    def _clear(self, session: Session) -> None:
        """Remove the note of a session, if it has one."""
        if self._noted.pop(session, None) is not None:
            self._notes.record(session.client_id.hex(), b"")
