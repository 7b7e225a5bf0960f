"""An accepted CONNECT: sends CONNACK, then starts each part of the node that follows the session."""

from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.session.counters import CONNECTS_ACCEPTED
from ..._speedups.session.session import Session
from .. import logs
from ..core.data_plane import DataPlane
from ..core.session_follower import Followers
from ..hooks.chain import HookChain, client_of
from .connack import Connacks
from .subscribe import SubscribeHandler

log = logs.get("flockmq.connect")


class ConnectAccepted:
    """Lets the packets of an admitted client flow.

    Args:
        data_plane: of the node.
        connacks: sends CONNACK.
        hooks: notified of the session and of the client.
        followers: of the session.
        subscribing: adds the subscriptions of the configuration.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        connacks: Connacks,
        hooks: HookChain,
        followers: Followers,
        subscribing: SubscribeHandler,
    ) -> None:
        self.connacks = connacks
        self._data_plane = data_plane
        self._hooks = hooks
        self._followers = followers
        self._subscribing = subscribing

    def send(self, connection: Connection, packet: Connect, session: Session, *, present: bool) -> None:
        """Send CONNACK, and let the parts of the node know of the client."""
        if not self.connacks.accept(connection, packet, session, present=present):
            return
        level = packet.protocol_level
        self._data_plane.sessions.on_accepted(level)
        for follower in self._followers:
            follower.attached(connection, session, packet, present=present)
        connection.proceed()
        if self._data_plane.config.mqtt.auto_subscribe and connection.session is session:
            # After SUBSCRIBE packets that came with CONNECT: they are preferred.
            self._subscribing.subscribe_configured(connection, session)
        self._data_plane.turn.count(CONNECTS_ACCEPTED)
        if not present:
            self._hooks.notify("session_started", packet.client_id, session.persistent)
        if self._hooks.has("connected"):
            self._hooks.notify("connected", client_of(connection))
        if log.enabled(logs.DEBUG):
            log.debug(
                "client connected",
                client_id=packet.client_id,
                address=connection.address,
                listener=connection.listener,
                transport=connection.transport,
                certificate=connection.certificate,
                level=level,
                clean=packet.clean_start,
                keep_alive=packet.keep_alive,
                session_present=present,
            )
