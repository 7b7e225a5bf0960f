"""The protocol side of one node: data plane, coordinator, authenticator and hooks, put together. Handles no packets."""

from collections.abc import Callable, Iterable

from .._speedups.codec.properties import decode_block
from .._speedups.session.session import Session
from .._speedups.session.span_recorder import SpanRecorder
from .auth.authenticator import Authenticator
from .auth.bans import Bans
from .auth.connected_users import ConnectedUsers
from .auth.flapping import Flapping
from .config.limits_config import QuotasConfig
from .config.link import CLIENT_ID_PREFIX
from .config.schema import Config
from .coordination.coordinator import Foundation
from .core.calls import RpcMethods
from .core.data_plane import DataPlane
from .core.driver import Driver
from .core.login_proofs import LoginProofs
from .core.loop_monitor import LoopMonitor
from .core.lost_messages import LostMessages
from .core.redirect import Drain, Redirect
from .core.requests import Requests
from .core.retained_searches import RetainedSearches
from .core.secret import Secret
from .core.session_follower import Followers
from .core.topic_meters import TopicMeters
from .events.client_events import ClientEvents
from .hooks.api import Hooks, Message
from .hooks.chain import HookChain
from .hooks.schemas import Schemas
from .interest.incoming_links import IncomingLinks
from .interest.interest import Interest
from .interest.neighbours import Neighbours
from .streams.streams import Streams
from .tracing import SpanCounts, Traces


class Broker:
    """The protocol side of a node.

    Args:
        config: of the node.
        foundation: of the node.
        authenticator: decides over CONNECT.
        driver: runs the reactor.
        http_failures: number of wrong tokens that the HTTP server has received.
        spans: counts the spans of the process.
    """

    def __init__(
        self,
        config: Config,
        foundation: Foundation,
        authenticator: Authenticator,
        driver: Driver,
        http_failures: Callable[[], int] = int,
        spans: SpanCounts | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.http_failures = http_failures
        self.span_counts = spans or SpanCounts()
        self.data_plane = DataPlane(config, foundation.journal, foundation.store.commit, driver)
        self.quotas: dict[str, QuotasConfig] = {}  # by listener
        self.connected_users = ConnectedUsers(self.data_plane, self._quotas_of)
        self.rpc_methods: RpcMethods = {}
        self.store = foundation.store
        self.access = foundation.access
        self.coordinator = foundation.build(self.data_plane, self.rpc_methods)
        self.bans = Bans(self.data_plane, self.coordinator.nodes.call_all, self.connected_users.claims)
        sampling = config.traces
        recorder = SpanRecorder(sampling.steps_per_second, sampling.sample) if sampling.endpoint else None
        self.traces = Traces(self.data_plane.turn, recorder)
        self.requests = Requests(self.data_plane)
        self.add_methods({"bans": self.bans.on_changed, "trace": self.traces.steps, "send": self.requests.send})
        self.flapping = Flapping(self._quotas_of)
        self.monitor = LoopMonitor(self.data_plane.turn)
        self.hooks = HookChain(run=self.data_plane.run)
        self.schemas = Schemas(self.data_plane)
        self.secret = Secret(self.data_plane)
        self.login_proofs = LoginProofs(self.data_plane)
        self.redirect = Redirect(self.data_plane)
        self.retained_searches = RetainedSearches(self.data_plane)
        self.streams = Streams(self.data_plane, lambda: self.coordinator.life.message_log)
        self.interest = Interest(self.data_plane, Neighbours(self.data_plane))
        self.guests = IncomingLinks(self.data_plane, self.interest)
        self.lost_messages = LostMessages()
        self.events = ClientEvents(self.data_plane, self.hooks, self.coordinator)
        self.data_plane.sessions.follow_ends(self._session_ended_once)
        self.followers: Followers = (self.guests, self.streams, self.retained_searches, self.events)
        self.draining = Drain(self.redirect, self.coordinator.life.drain, lambda: self.config.http.drain)
        self.topic_meters = TopicMeters(self.data_plane.router)
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply a configuration, at the start and after a reload."""
        self.config = config
        self.quotas = {listener.name: listener.quotas for listener in config.listeners}
        self.data_plane.configure(config)
        self.events.configure(config.events)
        self.topic_meters.configure(config.metrics.topics)
        self.traces.configure(config.traces)
        asking = (f"{CLIENT_ID_PREFIX}{link.name}".encode() for link in config.links if link.wanted_only)
        self.interest.neighbours.configure(frozenset(asking))

    def _quotas_of(self, listener: str) -> QuotasConfig:
        return self.quotas[listener]

    def use(self, hooks: Iterable[Hooks], timeout: float = 5.0) -> None:
        """Call these hooks from now on. A method that no hook overrides costs nothing.

        Args:
            hooks: in the order in which they are called.
            timeout: seconds that one call may take.
        """
        self.hooks.use(hooks, timeout)
        turn = self.data_plane.turn
        turn.set_hooks(self.hooks.has("publish", "authorize"), self._may_deliver if self.hooks.has("deliver") else None)
        self.data_plane.sessions.attach(self._session_ended if self.hooks.has("session_ended") else None)

    def _may_deliver(
        self, session: Session, topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes
    ) -> bool:
        message = Message(topic.decode(), payload, qos, bool(retain), decode_block(properties) if properties else {})
        return self.hooks.filter(message, ("deliver", lambda _: (session.client_id.decode(), message))) is message

    def _session_ended(self, client_id: bytes) -> None:
        self.hooks.notify("session_ended", client_id.decode())

    def _session_ended_once(self, client_id: bytes, everywhere: bool) -> None:
        """A session has ended; of the nodes that know it one makes the event."""
        if not everywhere or self.coordinator.nodes.is_responsible(f"session {client_id.hex()}"):
            self.events.session_ended(client_id)

    def add_methods(self, methods: RpcMethods) -> None:
        """Let nodes call these methods, too."""
        self.rpc_methods.update(methods)

    def report_losses(self) -> dict[bytes, int]:
        """Note the messages that slow clients have lost lately; returns those of full queues, by client id."""
        turn = self.data_plane.turn
        dropped, slow = turn.take_full_queues(), turn.take_slow()
        if dropped or slow:
            self.events.lost(self.lost_messages.add(dropped, slow))
        return dropped

    def announce_stop(self, is_own: Callable[[str], bool]) -> None:
        """The node is about to stop: report it as not ready, so that load balancers send no more clients.

        Args:
            is_own: whether a server reference names this node.
        """
        self.draining.cancel()
        self.redirect.drain(is_own)

    def ready(self) -> tuple[bool, str]:
        """Whether the node accepts new clients, and the reason."""
        return (False, "the node is stopping or drained") if self.redirect.draining else self.coordinator.life.ready()
