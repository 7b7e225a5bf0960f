"""From packet type to handler: the handler of the reactor and its channels. The only place with all packets."""

from collections.abc import Callable
from typing import Any

from ..._speedups.codec.packets import Auth, Disconnect, Subscribe, Unsubscribe
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.close_reasons import CloseReason
from ..._speedups.session.session import Session
from .. import logs
from ..broker import Broker
from ..core.data_plane import report
from ..hooks.chain import client_of
from .auth import AuthHandler
from .connack import Connacks
from .connect import ConnectHandler
from .connect_accepted import ConnectAccepted
from .connect_limits import ConnectLimits
from .disconnect import DisconnectHandler
from .publish import PublishHandler
from .subscribe import SubscribeHandler
from .transactions import TransactionHandler
from .unsubscribe import UnsubscribeHandler
from .will_check import WillCheck

log = logs.get("flockmq.connection")


class Dispatcher:
    """Gives each packet that is not hot to its handler.

    Args:
        broker: its parts are given to the handlers.
    """

    def __init__(self, broker: Broker) -> None:
        data_plane, hooks = broker.data_plane, broker.hooks
        owner, subscribing = broker.coordinator.owner, broker.coordinator.subscribing
        self._owner = owner
        self._hooks = hooks
        self._reactor = data_plane.reactor
        self._sessions = data_plane.sessions
        self._log_limiter = data_plane.log_limiter
        self._followers = broker.followers
        self._events = broker.events
        self._connected_users = broker.connected_users
        self._auth = AuthHandler(data_plane, broker.authenticator, broker.connected_users)
        subscribe = SubscribeHandler(data_plane, subscribing, hooks, broker.streams, broker.followers)
        self._connect = ConnectHandler(
            data_plane,
            owner,
            self._auth,
            ConnectLimits(data_plane.turn, broker.bans, broker.flapping),
            broker.connected_users,
            hooks,
            WillCheck(data_plane, broker.schemas),
            broker.redirect,
            ConnectAccepted(
                data_plane, Connacks(data_plane, broker.secret, broker.events), hooks, broker.followers, subscribe
            ),
        )
        self.publish = PublishHandler(data_plane, hooks, broker.schemas).handle  # a message to decide over
        transactions = broker.coordinator.transactions
        self.transact = TransactionHandler(data_plane, transactions, hooks, broker.schemas).handle
        unsubscribe = UnsubscribeHandler(data_plane, subscribing, broker.followers)
        disconnect = DisconnectHandler(data_plane, owner)
        # Packets after CONNECT that are not hot. Any other packet is one that only servers send.
        self._handlers: dict[type, Callable[[Connection, Session, Any], None]] = {
            Subscribe: subscribe.handle,
            Unsubscribe: unsubscribe.handle,
            Disconnect: disconnect.handle,
        }

    def packet(self, connection: Connection, packet: Any) -> None:
        """A packet that is not hot was received."""
        if isinstance(packet, Auth):
            self._auth.handle(connection, packet)
            return
        if connection.session is None:
            if isinstance(packet, Disconnect):  # in place of AUTH [5: MQTT-3.1.2-30]
                connection.close(close_reasons.DISCONNECTED)
            else:
                self._connect.handle(connection, packet)
            return
        handler = self._handlers.get(type(packet))
        if handler is None:
            name = type(packet).__name__.upper()
            connection.reject(CloseReason(ReasonCode.PROTOCOL_ERROR, f"{name} from a client: only servers send it"))
        else:
            handler(connection, connection.session, packet)

    def denied(self, connection: Connection, topic: bytes) -> None:
        """A client may not publish to a topic; called once for its rights, counted each time."""
        session = connection.session
        self._log_limiter.write(
            log.warning,
            "publish denied by access rules; further ones of this client are only counted",
            address=connection.address,
            client_id=session.client_id.decode() if session is not None else "",
            topic=topic.decode(),
        )

    def failed(self, connection: Connection, error: Exception) -> None:
        """A packet of the connection caused an exception that no code here should raise."""
        report(error, address=connection.address)

    def accepting(self, is_accepting: bool) -> None:
        """The reactor starts to accept connections, or stops."""
        if is_accepting:
            self._log_limiter.write(log.info, "accepting connections again", connections=len(self._reactor))
        else:
            self._log_limiter.write(
                log.warning,
                "accepting no connections: limit of connections, pending connections or file descriptors reached",
                connections=len(self._reactor),
                pending=self._reactor.pending,
            )

    def ended(self, connection: Connection, reason: str) -> None:
        """A connection has ended, in whatever way."""
        session, connection.claimed = connection.claimed, None
        connection.authentication = None  # an exchange that is under way has the connection
        if session is None:
            self._connected_users.on_not_admitted(connection)
            self._owner.ended(connection, None)
            self._log_ended(connection, "connection ended before it was accepted", reason=reason)
            return
        if self._hooks.has("disconnected"):
            connection.claimed = session
            self._hooks.notify("disconnected", client_of(connection), reason)
            connection.claimed = None
        self._events.disconnected(connection, session, reason)
        self._sessions.on_disconnected(connection.protocol_level if connection.session is not None else None)
        for follower in self._followers:
            follower.detached(session)
        connection.detach()
        session.owner = None
        self._connected_users.on_disconnected(connection)
        self._owner.ended(connection, session)
        self._log_ended(connection, "connection ended", client_id=session.client_id.decode(), reason=reason)

    def _log_ended(self, connection: Connection, event: str, **values: str) -> None:
        if connection.fault is None or connection.lingering:  # a refusal was logged
            log.debug(event, address=connection.address, **values)
        else:
            self._log_limiter.write(log.info, event, address=connection.address, **values)
