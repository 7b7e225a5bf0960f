"""What a node does with packets: the handler of its channels, over sessions, router and store's journal.

Only dispatches; each packet that is not hot has a file of its own in `handlers/`.
"""

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from _speedups.codec.packets import Disconnect, Pingresp, Subscribe, Unsubscribe
from _speedups.net.connection import Connection
from _speedups.net.reactor import Reactor
from _speedups.routing.router import Router
from _speedups.session.session import Session
from _speedups.session.turn import Turn
from broker import logs
from broker.auth.authenticator import Authenticator
from broker.auth.bans import Bans
from broker.auth.connected_users import ConnectedUsers
from broker.config.schema import Config
from broker.coordination.coordinator import Coordinator
from broker.core.calls import Questions
from broker.core.loop_monitor import LoopMonitor
from broker.core.sessions import Sessions
from broker.handlers import connect, disconnect, publish, subscribe, unsubscribe
from broker.hooks.api import Client, HookChain, Hooks, Message
from broker.tracing import Traces

# What follows CONNECT, and is not hot: one row a packet.
HANDLERS: dict[type, Callable[["Broker", Connection, Session, Any], None]] = {
    Subscribe: subscribe.handle,
    Unsubscribe: unsubscribe.handle,
    Disconnect: disconnect.handle,
    Pingresp: lambda broker, connection, session, packet: None,  # a stray one is harmless
}
TICKS_PER_SECOND = 4

log = logs.get("flockmq.connection")


class Broker:
    """The protocol side of a node.

    Args:
        config: of the node.
        coordinator: of its sessions; has journal and store.
        authenticator: decides over CONNECT.
        wake: calls `reactor.run` soon.
    """

    def __init__(
        self,
        config: Config,
        coordinator: Coordinator,
        authenticator: Authenticator,
        wake: Callable[[], object],
    ) -> None:
        self.coordinator = coordinator
        coordinator.broker = self
        self.turn = Turn(coordinator.journal, coordinator.store.commit, self._report)
        self.router = Router(self.turn)
        self.sessions = Sessions(self.turn, self.router.filters)
        self.authenticator = authenticator
        self.bans = Bans(self)
        self.http_failures: Callable[[], int] = int  # wrong tokens that were shown over HTTP
        self.questions: Questions = {}  # what the nodes of a cluster may ask this one
        self.principals = ConnectedUsers(self)
        self.reactor = Reactor(self.router, self, wake)
        self.vitals = LoopMonitor(self.turn)
        self.traces = Traces(self)
        self.use(())
        self.draining = False  # the node is to stop, and lets load balancers notice
        self._tasks: set[asyncio.Task[None]] = set()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use a configuration, at start and when it is read again."""
        self.config = config
        self.listeners = {listener.name: listener for listener in config.listeners}
        limits = config.limits
        self.turn.set_limits(
            max_packet_size=limits.max_packet_size,
            max_topic_levels=limits.max_topic_levels,
            max_inflight=limits.max_inflight,
            max_queued_messages=limits.max_queued_messages,
            max_queued_bytes=limits.max_queued_bytes,
            drop_oldest=limits.queue_policy == "drop-old",
            max_awaiting_release=limits.max_awaiting_release,
            max_outgoing_bytes=limits.max_outgoing_bytes,
            max_uncommitted_bytes=limits.max_uncommitted_bytes,
        )
        self.router.retained.most = limits.max_retained_messages
        self.router.retained.most_size = limits.max_retained_bytes
        self.reactor.max_pending = limits.max_pending_connects
        self.reactor.connect_ticks = max(1, round(limits.connect_timeout * TICKS_PER_SECOND))
        self.reactor.meter()
        self.reactor.retry_ticks = round(config.mqtt.retry_interval * TICKS_PER_SECOND)

    def use(self, hooks: Iterable[Hooks], timeout: float = 5.0) -> None:
        """Ask these hooks from now on; what none of them overrides costs nothing.

        Args:
            hooks: in the order in which they are asked.
            timeout: seconds that one may take.
        """
        self.hooks = HookChain(hooks, timeout, self.run)
        self.turn.hears_publish = self.hooks.hears("publish", "authorize")
        self.turn.hears_deliver = self._may_deliver if self.hooks.hears("deliver") else None
        self.sessions.ended = self._session_ended if self.hooks.hears("session_ended") else None

    def _may_deliver(self, session: Session, topic: bytes, payload: bytes, qos: int, retain: bool) -> bool:
        message = Message(topic.decode(), payload, qos, bool(retain))
        return self.hooks.decide(message, ("deliver", lambda _: (session.client_id.decode(), message))) is message

    def _session_ended(self, session: Session) -> None:
        self.hooks.tell("session_ended", session.client_id.decode())

    def client_of(self, connection: Connection) -> Client:
        """A client that was let in, as hooks know it."""
        session = connection.claimed
        client_id = session.client_id.decode() if session is not None else ""
        return Client(client_id, connection.identity.username, connection.address, connection.listener)

    def ready(self) -> tuple[bool, str]:
        """Whether new clients are welcome, and why."""
        return (False, "the node is stopping") if self.draining else self.coordinator.ready()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the packets, and keep it alive until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settle(self) -> None:
        """End a turn; for whoever changed something outside of one."""
        self.reactor.settle()

    def when_stored(self, connection: Connection, session: Session, callback: Callable[[], object]) -> None:
        """Call when what has been recorded is stored.

        At once for a clean session, which relies on nothing stored; unless other answers of its connection wait.
        """
        if session.persistent or connection.waits:
            self.turn.after_commit(callback)
        else:
            callback()

    # ---- called by the reactor and its channels ----

    def accepting(self, is_accepting: bool) -> None:
        """The reactor begins to let new clients wait in the kernel, or ceases to."""
        if is_accepting:
            log.info("accepting connections again", connections=len(self.reactor))
        else:
            log.warning(
                "accepting no connections for now: at the limit of connections, of pending ones or of file descriptors",
                connections=len(self.reactor),
                pending=self.reactor.pending,
            )

    def packet(self, connection: Connection, packet: Any) -> None:
        """A packet that is not hot has come."""
        if connection.session is None:
            connect.handle(self, connection, packet)
            return
        handler = HANDLERS.get(type(packet))
        if handler is None:
            connection.reject(f"{type(packet).__name__} is not for a broker")
        else:
            handler(self, connection, connection.session, packet)

    def publish(
        self, connection: Connection, topic: bytes, payload: bytes, qos: int, retain: bool, packet_id: int, dup: bool
    ) -> None:
        """A message has come that hooks want to see first."""
        publish.handle(self, connection, topic, payload, qos, retain, packet_id, dup)

    def denied(self, connection: Connection, topic: bytes) -> None:
        """A client publishes what it may not; told once for its rights, counted each time."""
        session = connection.session
        log.warning(
            "publishing is denied, by the rules of access; more of it from this client is only counted",
            client_id=session.client_id.decode() if session is not None else "",
            topic=topic.decode(),
        )

    def failed(self, connection: Connection, error: Exception) -> None:
        """Acting on a connection's packets raised what nothing here should raise."""
        self._report(error, address=connection.address)

    def _report(self, error: Exception, **where: object) -> None:
        log.error("internal error", error="".join(traceback.format_exception(error)), **where)

    def ended(self, connection: Connection, reason: str) -> None:
        """A connection has ended, in whatever way."""
        session, connection.claimed = connection.claimed, None
        log_ended = log.debug if connection.fault is None or connection.lingering else log.info  # a refusal was logged
        if session is None:
            self.coordinator.ended(connection, None)
            log_ended("connection ended before CONNECT", address=connection.address, reason=reason)
            return
        if self.hooks.hears("disconnected"):
            connection.claimed = session
            self.hooks.tell("disconnected", self.client_of(connection), reason)
            connection.claimed = None
        connection.detach()
        session.owner = None
        self.sessions.has_disconnected()
        self.principals.went(connection)
        self.coordinator.ended(connection, session)
        log_ended("connection ended", client_id=session.client_id.decode(), address=connection.address, reason=reason)
