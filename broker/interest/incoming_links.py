"""Links of other brokers to this one that exchange wanted topic filters: sessions of clients here."""

import json
from collections.abc import Sequence
from typing import Any

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connect, Publish, Subscribe
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from ..config.link import EVERYTHING, HOP, MAX_WANTED, NOTICE, PATH, SENDS, WANTED
from ..core import tenants
from ..core.data_plane import DataPlane
from ..core.session_follower import SessionFollower, Subscription
from .filters import Rows
from .interest import Interest, Watch
from .neighbours import Neighbour
from .retained_copies import forget_copies

DIGITS = 9  # of a number of rows; of some thousands Python makes no number


class Guest:
    """One of them, connected.

    Args:
        connection: of the link.
        identity: of the other broker.
        watch: the filters for it.
        unknown: scopes whose filters it may not know, since it may not publish there: they are wanted as they are.
        rows: its wanted filters so far.
    """

    def __init__(self, connection: Connection, identity: str, watch: Watch, unknown: list[str], rows: Rows) -> None:
        self.connection = connection
        self.identity = identity
        self.watch = watch
        self.unknown = unknown
        self.rows = rows  # the record of them takes effect later in a cluster
        self.told = False  # of a first report


class IncomingLinks(SessionFollower):
    """The links of a node.

    Args:
        data_plane: of the node.
        interest: of the broker.
    """

    def __init__(self, data_plane: DataPlane, interest: Interest) -> None:
        self._plane = data_plane
        self._interest = interest
        self._neighbours = interest.neighbours
        self._guests: dict[Session, Guest] = {}
        self._swept: set[bytes] = set()  # client ids whose copies were looked at since the node began

    def attached(self, connection: Connection, session: Session, packet: Connect, *, present: bool) -> None:
        """Note the link, if the client is one of another broker."""
        if is_link(packet):
            self._attach(connection, session, packet.properties["user_property"])

    def _attach(self, connection: Connection, session: Session, properties: list[tuple[str, str]]) -> None:
        identity = next(value for name, value in properties if name == HOP)
        most = offers(properties)
        if not most or not session.persistent:
            if self._neighbours.get(session.client_id) is not None:
                self._neighbours.remove(session.client_id)
            return
        prefix, _ = tenants.split(session.client_id)
        scopes = [prefix + value for name, value in properties if name == SENDS]
        rights = session.rights
        known = [scope for scope in scopes if rights is None or rights.may_publish(scope.encode())]
        unknown = [scope for scope in scopes if scope not in known]
        watch = Watch(self._interest, known, identity, most)
        known_before = self._neighbours.get(session.client_id)
        rows: Rows = {}
        if known_before is not None and known_before.identity == identity:
            held = {name.decode() for name, _ in self._plane.router.filters.subscriptions_of(session)}
            rows = {name: path for name, path in known_before.rows.items() if name in held}
        self._guests[session] = Guest(connection, identity, watch, unknown, rows)
        if known_before != Neighbour(identity, rows):
            self._neighbours.put(session.client_id, Neighbour(identity, rows))

    def detached(self, session: Session) -> None:
        """A connection has ended."""
        self._guests.pop(session, None)

    def subscribing(self, session: Session, added: Sequence[Subscription], packet: Subscribe | None) -> None:
        """Record for whom a link wants the subscriptions; subscriptions of the configuration are for this broker's
        clients."""
        guest = self._guests.get(session)
        if guest is not None and packet is not None:
            path = tuple(value for name, value in packet.properties.get("user_property", ()) if name == PATH)
            self._record(session, guest, dict.fromkeys((each.name.decode() for each in added), (guest.identity, *path)))

    def subscribed(self, session: Session, added: Sequence[Subscription]) -> None:
        """The filters were recorded before."""

    def unsubscribed(self, session: Session, topic_filters: Sequence[str]) -> None:
        """Record that a link wants them no longer."""
        guest = self._guests.get(session)
        if guest is not None:
            self._record(session, guest, {}, topic_filters)

    def _record(self, session: Session, guest: Guest, added: Rows, removed: Sequence[str] = ()) -> None:
        rows = {name: path for name, path in {**guest.rows, **added}.items() if name not in removed}
        if rows != guest.rows:
            guest.rows = rows
            self._neighbours.put(session.client_id, Neighbour(guest.identity, rows))

    def tick(self) -> None:
        """Report to the links what has changed."""
        self._neighbours.tick()
        for session, guest in list(self._guests.items()):
            before = guest.watch.rows
            if guest.connection.session is session and guest.watch.changed():
                self._report(session, guest)
                dropped = [name for name in before if name not in guest.watch.rows]
                if session.client_id not in self._swept:  # others may have been wanted before
                    self._swept.add(session.client_id)
                    dropped = guest.watch.scopes
                if dropped:
                    self._plane.run(forget_copies(self._plane, dropped, guest.watch, guest.identity))
        if self._guests:
            self._plane.end_turn()

    def _report(self, session: Session, guest: Guest) -> None:
        """Send all rows: a message of QoS 0 for the link itself."""
        prefix, _ = tenants.split(session.client_id)
        rows: Rows = {**dict.fromkeys(guest.unknown, ()), **guest.watch.rows}
        report: dict[str, Any] = {"wanted": [(name.removeprefix(prefix), path) for name, path in rows.items()]}
        if not guest.told:
            guest.told = True
            held = self._plane.router.filters.subscriptions_of(session)
            report["held"] = [name.decode().removeprefix(prefix) for name, _ in held]
        packet = encode(Publish(NOTICE, json.dumps(report).encode()), 5)
        if len(packet) > guest.connection.maximum_packet_size:
            report["wanted"] = [(EVERYTHING, ())]
            packet = encode(Publish(NOTICE, json.dumps(report).encode()), 5)
        guest.connection.send(packet)


def is_link(packet: Connect) -> bool:
    """Whether the client is a link of another broker, by the properties of CONNECT."""
    return any(name == HOP for name, _ in packet.properties.get("user_property", ()))


def offers(properties: list[tuple[str, str]]) -> int:
    """The largest number of rows, of the user properties of CONNECT; 0: no exchange, or one of another version."""
    return next((number_of(value) for name, value in properties if name == WANTED), 0)


def number_of(text: str) -> int:
    """The largest number of rows, of the value of that user property."""
    version, _, most = text.partition(" ")
    if version != "1" or not most.isascii() or not most.isdigit() or len(most) > DIGITS:
        return 0
    return min(int(most), MAX_WANTED)
