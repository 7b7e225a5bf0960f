"""The rules that keep a client out, whatever its credentials are: bans, and clients that connect too often."""

from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.net.connection import Connection
from ..._speedups.session.counters import FLAPPING_REFUSED
from ..._speedups.session.turn import Turn
from ..auth.bans import Bans
from ..auth.flapping import Flapping
from .refusal import Refusal


class ConnectLimits:
    """Bans and flapping.

    Args:
        turn: counts refusals.
        bans: of clients, users and networks.
        flapping: counts how often a client connects.
    """

    def __init__(self, turn: Turn, bans: Bans, flapping: Flapping) -> None:
        self._turn = turn
        self._bans = bans
        self._flapping = flapping

    def ban(
        self, connection: Connection, client_id: str | None, username: str | None, tenant: str = ""
    ) -> Refusal | None:
        """The refusal of a client that is banned; without a client identifier only its user and its address count."""
        ban = self._bans.covering(client_id, username, connection.address, tenant)
        return None if ban is None else Refusal(ReasonCode.BANNED)

    def flapping(self, connection: Connection, client_id: str) -> Refusal | None:
        """Count a connection of a client; the refusal of a client that connects too often."""
        if not self._flapping.refuses(connection.listener, client_id, connection.address):
            return None
        self._turn.count(FLAPPING_REFUSED)
        return Refusal(ReasonCode.CONNECTION_RATE_EXCEEDED, "it connects too often")
