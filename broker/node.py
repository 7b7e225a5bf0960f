"""A node: builds it from its configuration, starts and stops it, and has its periodic jobs. Handles no signals.

The loop calls the reactor when a socket is ready, the clock four times a second, and `confirm` when the store has
stored a block.
"""

import asyncio
import contextlib
import random
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from .._speedups.protocol import close_reasons
from . import logs
from .admin.exporters import shared_address
from .admin.exporters.otel import Exporter
from .admin.exporters.otel_spans import SpanExporter
from .admin.exporters.sys_topics import SysTopics
from .admin.exporters.syslog import Syslog
from .auth.access_control import AccessControl
from .auth.access_store import Documents, Kind
from .auth.chain import Method
from .auth.roles import Concerned
from .auth.users import Users
from .broker import Broker
from .clock import EVERY_TICK, Clock, Job
from .config.reload import diff, follow
from .config.schema import Config
from .coordination.coordinator import Foundation
from .coordination.standalone import StandaloneFoundation
from .core.audit_log import AuditLog
from .core.audit_record import DONE, FAILED
from .core.driver import make_driver
from .core.full_queues import FullQueues
from .core.ticket_keys import TicketKeys
from .errors import ConfigError, NotNow, UsageError
from .handlers.dispatch import Dispatcher
from .hooks.api import Hooks
from .hooks.chain import HookChain
from .hooks.load import load
from .hooks.schemas import changes as schema_changes
from .hooks.schemas import open_schemas
from .hooks.users import HookUsers
from .lifecycle import Lifecycle, Phase
from .links.link import Host
from .links.links import Links
from .listeners.bind import host_name
from .listeners.listeners import CERTIFICATE_SECONDS, Listeners
from .rpc.methods import methods
from .storage.memory import MemoryStore
from .storage.sqlite import SqliteStore
from .storage.store import Store
from .tracing import SpanCounts
from .version import version

if TYPE_CHECKING:
    from .admin.http.server import HttpServer

SPARE_FILES = 64  # descriptors that clients may not take: store, logs, listeners
RETRY_SECONDS = 0.1  # until a failed start is tried again; twice as long each time ...
MAX_RETRY_SECONDS = 2.0  # ... up to this
LOG_SECONDS = 60.0  # between lines in the log about it
SPAN_SECONDS = 1.0  # between batches of steps for spans: `traces.steps_per_second`
FILES_SECONDS = 2.0  # between checks whether files of users and rules have changed
TICKET_KEYS_SECONDS = 1.0  # between looks at the stored keys of session tickets

log = logs.get("flockmq.node")


class Heap(Protocol):
    """Notified when the state of the node is in memory, and when it is about to be dropped."""

    def freeze(self) -> None:
        """The state is complete."""

    def unfreeze(self) -> None:
        """The state is about to be dropped."""


class Node:
    """One broker.

    Args:
        config: of the node.
        reload: reads the configuration again.
        more_hooks: called after the configured hooks.
        heap: of the process, if the node has the process for itself.
    """

    def __init__(
        self,
        config: Config,
        reload: Callable[[], Config],
        *,
        more_hooks: Iterable[Hooks] = (),
        heap: Heap | None = None,
    ) -> None:
        self.config = config
        self._reload = reload
        self._heap = heap
        self._loop = asyncio.get_running_loop()
        self.listeners = Listeners()
        self._rejoining: asyncio.Task[None] | None = None  # the last one
        self._former_id = ""  # of this node in the cluster, before it was fenced
        self._hooks = [*load(config.hooks.load), *more_hooks]
        self._schemas = open_schemas(config.schemas)
        self.name = config.cluster.node_name or host_name()
        self._lifecycle = Lifecycle(self.name)
        self.version = version()
        self.http: HttpServer | None = None
        self._exporter: Exporter | None = None
        self._span_counts = SpanCounts()
        self._span_exporter: SpanExporter | None = None
        self.access = AccessControl(
            config,
            users=lambda: self.users,
            first=self._first_methods(),
            secret=lambda: self.broker.secret(),
            proofs=lambda: self.broker.login_proofs,
        )
        self._syslog = Syslog(config.audit.syslog) if config.audit.syslog else None
        self._full_queues = FullQueues(self._queue_limits)
        host = Host(
            lambda: self.broker.data_plane,
            lambda: self.broker.secret.identity,
            lambda: self.broker.interest,
            lambda client_id, limits: self.coordinator.sessions.limit_queue(client_id, limits),
        )
        self.links = Links(host, self._runs_link)
        self._clock = Clock(self._loop, self._tick, ())
        self._driver = make_driver(self._loop)
        self._build()

    def _build(self) -> None:
        self._foundation = make_foundation(self.config, self._loop, self._rejoin, self._lifecycle.fail, self._former_id)
        self.broker = Broker(
            self.config, self._foundation, self.access, self._driver, self._http_failures, self._span_counts
        )
        self.coordinator = self.broker.coordinator
        self.broker.data_plane.will_rights = self.access
        self.broker.use(self._hooks, self.config.hooks.timeout)
        self.broker.schemas.use(self._schemas)
        self.broker.add_methods(methods(self) | shared_address.methods(self))
        self.broker.data_plane.reactor.attach(Dispatcher(self.broker))
        self.users: Users = Users(self._foundation.access, self._users_changed, self.broker.connected_users.names)
        self._foundation.access.attach(self)
        export = (lambda record: None) if self._syslog is None else self._syslog.send
        self.audit_log = AuditLog(self.broker.data_plane, self.name, lambda: self.config.audit, export)
        self._sys_topics = SysTopics(self.broker, self.version)
        self._ticket_keys = TicketKeys(self.broker.data_plane, self.listeners.ticket_keys)
        self._clock.jobs = self._jobs()

    def _rebuild(self) -> None:
        """Replace the state by an empty one, which goes on with the drain of the node. The earlier one is freed."""
        before = self.broker
        self._build()
        before.draining.cancel()
        before.data_plane.log_limiter.close()
        self.broker.redirect.follow(before.redirect)
        before.data_plane.reactor.abandon()
        self.broker.data_plane.reactor.succeed(before.data_plane.reactor)

    def _first_methods(self) -> list[Method]:
        chain = HookChain(self._hooks, self.config.hooks.timeout)
        return [HookUsers(chain)] if chain.has("authenticate", "authentication") else []

    @property
    def serving(self) -> bool:
        """Whether the node has started: it accepts clients, or rejoins, or stops."""
        return self._lifecycle.has_started

    @property
    def http_addresses(self) -> list[str]:
        """Addresses of the HTTP server."""
        return self.http.addresses if self.http is not None else []

    def _runs_link(self, name: str) -> bool:
        """Whether this node runs the link; also while it is drained, since the others still expect it to."""
        return self._lifecycle.has_state and self.coordinator.nodes.is_responsible(f"link {name}")

    def _http_failures(self) -> int:
        return self.http.failures() if self.http is not None else 0

    # ---- start ----

    async def start(self) -> None:
        """Read the stored state, publish the wills of a crash, listen.

        Raises:
            FlockError: the store can't be used, the cluster can't be joined, or an address can't be listened on.
        """
        self.listeners.bind(self.config)  # a taken port is reported before a long read
        if self.config.http.listen:
            # By name, since its library takes a while to load: only a node that serves HTTP waits for it.
            self.http = import_module("flockmq.broker.admin.app").make_server(self)
            await self.http.start(self.config.http.listen, shared=self.config.listen_shared)
        if self.config.otel.endpoint:
            self._exporter = Exporter(self.config.otel, lambda: self.broker, self.version, self.name)
        if self.config.traces.endpoint:
            self._span_exporter = SpanExporter(self.config.traces, self._span_counts, self.version, self.name)
        starting = asyncio.ensure_future(self._start_coordinator())
        ended = asyncio.ensure_future(self._lifecycle.until_end())
        await asyncio.wait((starting, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        if not self.serving:
            return
        self.listeners.listen()
        self._started = time.monotonic()
        self._clock.start()
        self.links.configure(self.config.links)
        await self._open()

    async def _start_coordinator(self) -> None:
        """Read the stored state, or wait until that is possible."""
        log_at = 0.0
        wait = RETRY_SECONDS
        while True:
            try:
                await self.coordinator.life.start()
                self.broker.secret.loaded()
                if not self._lifecycle.ends:
                    self._lifecycle.become_started()
                return
            except NotNow as error:
                if time.monotonic() >= log_at:
                    log.warning("not started yet: waiting", reason=error)
                    log_at = time.monotonic() + LOG_SECONDS
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(wait * 2, MAX_RETRY_SECONDS)
            self._rebuild()

    async def _open(self) -> None:
        """Accept clients, when the sessions of links are there for their messages."""
        if self._lifecycle.phase is not Phase.OPENING:
            return  # it was fenced, or is to stop
        self.broker.bans.refresh()
        self._ticket_keys.refresh()
        reactor = self.broker.data_plane.reactor
        reactor.set_max_connections(self._max_connections())
        reactor.start()
        await self.links.prepared()
        if self._lifecycle.phase is not Phase.OPENING:
            return
        self.listeners.open(reactor, self.config.proxy.trusted)
        self._lifecycle.become_serving()
        self._update_sys()
        if self._heap is not None:
            self._heap.freeze()

    def _max_connections(self) -> int:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        possible = 2**31 if files == resource.RLIM_INFINITY else max(1, files - SPARE_FILES)
        return min(possible, self.config.limits.max_connections or possible)

    # ---- rejoin ----

    def _rejoin(self, reason: str) -> None:
        """The cluster has fenced this node: close all clients, drop all state, and join the cluster again."""
        self._former_id = self.coordinator.nodes.node_id
        if self._lifecycle.become_fenced():
            log.error("fenced: closing all clients and rejoining the cluster", reason=reason)
            self._close_clients()
            self.links.tick()  # the links that run here end
            self._rejoining = self._loop.create_task(self._join_again())
        elif self._lifecycle.ends:
            log.error("fenced while stopping: unconfirmed messages were not acknowledged", reason=reason)

    def _close_clients(self) -> None:
        reactor = self.broker.data_plane.reactor
        reactor.stop()
        for connection in reactor:
            connection.reset_on_close = True  # other nodes publish its will, even if it just sends DISCONNECT
            connection.close(close_reasons.NODE_REJOINS)

    async def _join_again(self) -> None:
        if self._heap is not None:
            self._heap.unfreeze()
        self._rebuild()
        try:
            await self._start_coordinator()
        except Exception as error:
            self._lifecycle.fail(error)
            return
        await self._open()
        if self._lifecycle.phase is Phase.SERVING:
            log.info("rejoined the cluster: the node is ready again")

    # ---- run ----

    def _tick(self, ticks: int, missed: int, late: float) -> None:
        self.broker.monitor.tick(late)
        if ticks:
            self.broker.data_plane.reactor.advance(ticks, missed)

    def _jobs(self) -> tuple[Job, ...]:
        """The periodic work of the node, and of the parts that it has now."""
        broker, plane = self.broker, self.broker.data_plane
        return (
            Job(EVERY_TICK, self.coordinator.life.tick),
            Job(EVERY_TICK, self._report_full_queues),
            Job(EVERY_TICK, broker.events.tick),
            Job(EVERY_TICK, plane.stuck_sessions.tick),
            Job(EVERY_TICK, self._report_strangers),
            Job(EVERY_TICK, broker.traces.forget),
            Job(SPAN_SECONDS, self._export_spans),
            Job(EVERY_TICK, broker.retained_searches.tick),
            Job(EVERY_TICK, broker.guests.tick),
            Job(EVERY_TICK, self.links.tick),
            Job(EVERY_TICK, broker.connected_users.tick),
            Job(FILES_SECONDS, self._check_files),
            Job(EVERY_TICK, broker.bans.tick),
            Job(TICKET_KEYS_SECONDS, self._refresh_ticket_keys),
            Job(CERTIFICATE_SECONDS, self._check_certificates),
            Job(lambda: self.config.mqtt.sys_interval, self._update_sys),
        )

    def _export_spans(self) -> None:
        recorder = self.broker.traces.recorder
        if recorder is not None and self._span_exporter is not None:
            self._span_exporter.add(recorder.take())

    def _report_strangers(self) -> None:
        self.broker.data_plane.log_limiter.tick(time.monotonic())

    def _report_full_queues(self) -> None:
        """Log dead letters and drops at full queues: publishers may have got acknowledgements of these messages."""
        dropped = self.broker.report_losses()
        if dropped:
            self._full_queues.dropped(dropped)
        self._full_queues.tick(time.monotonic())
        self.broker.data_plane.dead_letters.tick(time.monotonic())

    def _queue_limits(self) -> tuple[int, int, bool]:
        limits = self.config.limits
        return limits.max_queued_messages, limits.max_queued_bytes, limits.queue_policy == "drop-old"

    def _check_files(self) -> None:
        """Apply files of users and rules that have changed."""
        if changed := self.access.follow_files():
            self.audit_log.add("read_access_files", {"files": changed}, via="file")
            self.broker.connected_users.renew(self.access.renewing)

    # ---- Watcher of the stored users and roles ----

    def changed(self, kind: Kind, documents: Documents) -> None:
        if kind == Kind.USER:
            self.users.changed(documents)
        else:
            self._roles_changed(self.access.roles.change(documents))

    def roles_read(self, documents: Mapping[str, bytes]) -> None:
        self._roles_changed(self.access.roles.read(documents))

    def reports_lost(self) -> None:
        self.users.read_again()

    def _users_changed(self, names: set[str]) -> None:
        self.broker.connected_users.renew(self.access.renewing, Concerned(users=frozenset(names)))

    def _roles_changed(self, names: set[str]) -> None:
        if names:
            self.broker.connected_users.renew(self.access.renewing, Concerned.by_roles(names))

    def _refresh_ticket_keys(self) -> None:
        if self._lifecycle.has_state:
            self._ticket_keys.refresh()

    def _check_certificates(self) -> None:
        self.listeners.check_certificates(self.config)

    def _update_sys(self) -> None:
        if self.config.mqtt.sys_interval:
            self._sys_topics.update(time.monotonic() - self._started)
            self.broker.data_plane.end_turn()

    def reload(self) -> None:
        """Read the configuration again; a wrong one changes nothing."""
        record = self.audit_log.begin("reload", via="signal")
        try:
            changes = diff(self.config, self._reload())
            config = follow(self.config, changes)
            certificates = self.listeners.prepare(config)
            schemas = open_schemas(config.schemas)
            changed = [*map(str, changes.reloadable), *schema_changes(self._schemas, schemas)]
            changed += self.access.configure(config)
        except ConfigError as error:
            log.error("configuration not changed", error=error)
            self.audit_log.end(record, FAILED, str(error))
            return
        self.audit_log.end(
            record, DONE, after={"changed": changed, "after a restart": [*map(str, changes.needs_restart)]}
        )
        for change in changes.needs_restart:
            log.warning("takes effect after a restart", change=change)
        self.config = config
        self.listeners.configure(config, certificates)
        logs.set_level(self.config.log.level)
        self.broker.configure(self.config)
        self._schemas = schemas
        self.broker.schemas.use(schemas)
        self.coordinator.life.configure(self.config)
        self.broker.connected_users.renew(self.access.renewing)
        self.links.configure(self.config.links)
        self._loop.create_task(self._report_read(changed))

    async def _report_read(self, changed: list[str]) -> None:
        await self.links.prepared()
        log.info("configuration read", changed=", ".join(changed) or "nothing")

    def request_stop(self) -> None:
        """Let `start` or `run` return."""
        self._lifecycle.stop()

    async def run(self) -> None:
        """Serve until `request_stop`.

        Raises:
            FlockError: the node had to rejoin the cluster, and can't; or its store has failed.
        """
        await self._lifecycle.until_end()
        if self._lifecycle.failure is not None:
            raise self._lifecycle.failure

    # ---- stop ----

    async def stop(self) -> None:
        """Accept nothing more, store all that was received, publish the wills, close.

        Raises:
            FlockError: the store has failed, before or during the call: a part of the state is not stored.
        """
        self._lifecycle.stop()
        if self.serving:
            log.info("stopping", clients=self.broker.data_plane.sessions.connected)
        if self._rejoining is not None:
            self._rejoining.cancel()
        self.broker.announce_stop(lambda reference: self.listeners.are_named(reference, self.name))
        if self.config.http.drain and not self.broker.redirect.closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lifecycle.until_closing(), self.config.http.drain)
        self._lifecycle.close()
        await self.links.stop()
        reactor = self.broker.data_plane.reactor
        reactor.stop_listening()
        if self.serving:
            self._clock.stop()
            await self.coordinator.life.drain(self.broker.redirect.references)
            self.broker.events.tick()  # of the clients that were closed
            reactor.stop()
        self.listeners.close()
        await self.coordinator.life.stop()
        self._report_full_queues()
        self._full_queues.close()
        self.broker.data_plane.log_limiter.close()
        self.broker.data_plane.dead_letters.close()
        if self.http is not None:
            await self.http.close()
        self.access.close()
        if self._syslog is not None:
            await asyncio.to_thread(self._syslog.close)
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop)
        if self._span_exporter is not None:
            self._export_spans()
            await asyncio.to_thread(self._span_exporter.stop)
        if self.serving:
            log.info("stopped")
        if self._lifecycle.failure is not None:
            raise self._lifecycle.failure


def make_foundation(
    config: Config,
    loop: asyncio.AbstractEventLoop,
    rejoin: Callable[[str], None],
    fail: Callable[[Exception], None],
    former_id: str,
) -> Foundation:
    """The journal and the store of a node alone, or of a node of a cluster, by the configuration.

    Args:
        config: of the node.
        loop: of the node.
        rejoin: called with the reason when the node has lost its place in the cluster.
        fail: called with the reason when the store of a node alone has failed.
        former_id: of the node in the cluster, before it was fenced; empty = it was not.
    """
    if config.cluster.redis:
        # By name, since `broker` works without `cluster` and without redis-py.
        try:
            module = import_module("flockmq.cluster.build")
        except ModuleNotFoundError as error:
            raise UsageError(f"a cluster needs the package {error.name}", "pip install 'flockmq[cluster]'") from error
        return cast(Foundation, module.ClusterFoundation(config, loop, rejoin, former_id))
    return StandaloneFoundation(make_store(config), loop.call_soon_threadsafe, loop.call_later, fail=fail)


def make_store(config: Config) -> Store:
    """The store that the configuration names."""
    kind, _, path = config.store.url.partition(":")
    return MemoryStore() if kind == "memory" else SqliteStore(Path(path), sync=config.store.sync)
