"""Claims: which connection has which session, in the whole cluster (G5).

A CONNECT claims its session with one function call. Redis gives the claim an *epoch*: a number greater than all before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from ..._speedups.session.subscriber import SessionKind
from ...broker.coordination.admission import Admission


@dataclass(eq=False)
class Claim:
    """A connection's right to a session, requested or granted."""

    client_id: bytes
    connection: Connection
    packet: Connect
    admission: Admission
    epoch: int = 0  # 0 = not granted yet
    incarnation: int = 0  # of the session
    present: bool = False
    held_will: int = 0  # the epoch of a delayed will that is discarded if the client is admitted; 0 = none
    waits: dict[int, bytes] = field(default_factory=dict)  # epochs that must be released -> their nodes
    overtaken: bool = False  # another connection has claimed the session
    delayed: bool = False  # clients fight for the session: its admission is delayed
    all_sent: bool = False  # the previous node of the session is dead
    session: Session | None = None
    admitted: bool = False
    interval: int | None = None  # Session Expiry Interval; None = as configured
    # of a persistent session: filter -> options, subscription identifier (0 = none)
    filters: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    weight: int = 0  # of these filters

    @property
    def persistent(self) -> bool:
        """Whether the session outlives its connection, or did so until now."""
        return self.interval != 0 or self.present

    def routed(self) -> Iterator[tuple[bytes, int]]:
        """The filters with their options."""
        return ((name, options) for name, (options, _) in self.filters.items())


class Claims:
    """The claims of this node, by connection and by epoch."""

    def __init__(self) -> None:
        self._by_connection: dict[Connection, Claim] = {}
        self._by_epoch: dict[int, Claim] = {}
        self.releasing: set[int] = set()  # epochs of ended connections, until Redis has confirmed the release

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._by_connection.values()))

    def add(self, claim: Claim) -> None:
        """A connection requests a session."""
        self._by_connection[claim.connection] = claim

    def grant(self, claim: Claim, epoch: int) -> None:
        """Redis has granted a claim."""
        claim.epoch = epoch
        self._by_epoch[epoch] = claim

    def remove(self, claim: Claim) -> None:
        """A claim has ended, granted or not."""
        self._by_connection.pop(claim.connection, None)
        self._by_epoch.pop(claim.epoch, None)

    def get(self, connection: Connection) -> Claim | None:
        """The claim of a connection."""
        return self._by_connection.get(connection)

    def take(self, connection: Connection) -> Claim | None:
        """The claim of a connection that has ended; its epoch stays until `remove`."""
        return self._by_connection.pop(connection, None)

    def epoch_of(self, connection: Connection) -> int:
        """The epoch of a connection's claim; 0: it has no granted claim."""
        claim = self._by_connection.get(connection)
        return claim.epoch if claim is not None else 0

    def with_epoch(self, epoch: int) -> Claim | None:
        """The claim with this epoch."""
        return self._by_epoch.get(epoch)

    @property
    def epochs(self) -> set[int]:
        """Of all granted claims."""
        return set(self._by_epoch)

    def shared_sessions(self) -> list[Session]:
        """The persistent sessions whose clients are at this node."""
        return [
            claim.session
            for claim in self._by_connection.values()
            if claim.admitted and claim.session is not None and claim.session.kind == SessionKind.SHARED
        ]

    # ---- closing connections ----

    def close(self, client_id: bytes, reason: str) -> bool:
        """Close the connections of a client, admitted or not. Returns whether there are any."""
        claims = [claim for claim in self._by_connection.values() if claim.client_id == client_id]
        for claim in claims:
            claim.connection.close(reason)
        return bool(claims)

    def close_persistent(self, reason: str) -> None:
        """Close the connections of all persistent sessions."""
        for claim in self:
            if claim.persistent:
                claim.connection.reset_on_close = True  # its will may be published, even if it sends DISCONNECT now
                claim.connection.close(reason)

    def close_unadmitted(self, reason: str) -> None:
        """Close the connections that have a granted claim, but no session yet."""
        for claim in self:
            if claim.epoch and not claim.admitted:
                claim.connection.close(reason)
