"""The replies to a CONNECT packet, as a coordinator uses them while it resolves the session of the client."""

from typing import Protocol

from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from ..auth.authenticator import ReasonCode


class Admission(Protocol):
    """Gives a session to a connection, or refuses the connection."""

    def admit(self, connection: Connection, packet: Connect, session: Session) -> None:
        """Make the session the connection's; it may be used after `welcome`."""

    def welcome(self, connection: Connection, packet: Connect, session: Session, *, present: bool) -> None:
        """Send CONNACK and let packets flow; to be called when all that CONNACK promises is stored."""

    def refuse(
        self, connection: Connection, code: ReasonCode, client_id: str, reason: str = "", username: str = ""
    ) -> None:
        """Send CONNACK with a return code, and close [MQTT-3.2.2-5]. The reason is for the log only."""

    def refuse_others(self, connection: Connection, packet: Connect) -> None:
        """Refuse a connection because the session of its client id belongs to another user."""

    def belongs(self, session: Session, connection: Connection) -> bool:
        """Whether the connection may have the session: it is of the same user, or of none yet (CVE-2026-6564)."""
