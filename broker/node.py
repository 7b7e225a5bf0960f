"""A node: the composition root. Builds store, broker and listeners, starts and stops them; nothing else.

The loop does four things: it calls the reactor when a socket is ready, the clock four times a second, `confirm` when
the store has kept a block, and the signal handlers.
"""

import asyncio
import contextlib
import gc
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvloop

from broker import logs, sd_notify
from broker.admin.exporters.otel import Exporter
from broker.admin.exporters.sys_topics import SysTopics
from broker.auth.access_control import Access
from broker.auth.chain import Method
from broker.auth.cluster_users import ClusterUsers
from broker.broker import Broker
from broker.config import schema as configuration
from broker.config.schema import Config
from broker.coordination.coordinator import Coordinator
from broker.coordination.standalone import StandaloneCoordinator
from broker.core.data_plane import TICKS_PER_SECOND
from broker.errors import ConfigError, FlockError, NotNow, UsageError
from broker.handlers.dispatch import Dispatcher
from broker.hooks.api import Hooks
from broker.hooks.chain import HookChain
from broker.hooks.load import load
from broker.hooks.users import HookUsers
from broker.listeners.bind import host_name, is_loopback
from broker.listeners.listeners import Listeners
from broker.rpc.methods import methods
from broker.storage.memory import MemoryStore
from broker.storage.sqlite import SqliteStore
from broker.storage.store import Store

if TYPE_CHECKING:
    from broker.admin.http.server import HttpServer

GC_THRESHOLDS = (2_000, 20, 40)  # of the three generations
SPARE_FILES = 64  # descriptors that clients may not take: store, logs, listeners
WAIT_SECONDS = 0.1  # until starting is tried again; twice as long each time ...
WAIT_SECONDS_MOST = 2.0  # ... up to this
COMPLAIN_SECONDS = 60.0  # between lines in the log about it
FILES_SECONDS = 2.0  # between looks whether files of users and rules have changed
TICKS_AT_ONCE = TICKS_PER_SECOND  # a process that was stopped must not find all its clients timed out

log = logs.get("flockmq.node")


class Node:
    """One broker process.

    Args:
        config: of the node.
        reload: reads the configuration again.
        more_hooks: are asked after those of the configuration.
        embedded: it is not alone in its process, whose signals and memory are others' concern.
    """

    def __init__(
        self,
        config: Config,
        reload: Callable[[], Config],
        *,
        more_hooks: Iterable[Hooks] = (),
        embedded: bool = False,
    ) -> None:
        self.config = config
        self._reload = reload
        self._embedded = embedded
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.listeners = Listeners()
        self.serving = False  # clients are let in
        self._hurried = asyncio.Event()  # it begins anew: there is nobody to serve until load balancers have noticed
        self._restarting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None  # why the node can't begin anew
        self._hooks = [*load(config.hooks.load), *more_hooks]
        self.name = config.cluster.node_name or host_name()
        self.version = package_version()
        self.http: HttpServer | None = None
        self._exporter: Exporter | None = None
        self.access = Access(config, users=lambda: self.coordinator.users, first=self._first_methods())
        self._build()

    def _build(self) -> None:
        self.coordinator = make_coordinator(self.config, self._loop, self._restart)
        self.broker = Broker(self.config, self.coordinator, self.access, self._wake, self._http_failures)
        self.broker.use(self._hooks, self.config.hooks.timeout)
        if self.coordinator.users is not None:
            self.coordinator.users.attach(self._users_changed)
        self.sys_topics = SysTopics(self.broker, self.version)
        self.broker.rpc_methods.update(methods(self))
        self.broker.data_plane.reactor.attach(Dispatcher(self.broker))

    def _http_failures(self) -> int:
        return self.http.failures() if self.http is not None else 0

    def _first_methods(self) -> list[Method]:
        chain = HookChain(self._hooks, self.config.hooks.timeout)
        return [HookUsers(chain)] if chain.has("authenticate") else []

    @property
    def http_addresses(self) -> list[str]:
        """Where it answers over HTTP."""
        return self.http.addresses if self.http is not None else []

    # ---- start ----

    async def start(self) -> None:
        """Read what is kept, publish the wills of a crash, listen.

        Raises:
            FlockError: the store can't be used, the cluster can't be joined, or an address can't be listened on.
        """
        self.listeners.bind(self.config)  # a taken port is told before a long read
        if self.config.http.listen:
            # By name, since its library takes a while to load: only who serves HTTP waits for it.
            self.http = import_module("broker.admin.app").make_server(self)
            await self.http.start(self.config.http.listen, shared=self.config.listen_shared)
        if self.config.otel.endpoint:
            self._exporter = Exporter(self.config.otel, lambda: self.broker, self.version, self.name)
        if not self._embedded:
            self._handle_signals()
        starting = asyncio.ensure_future(self._begin())
        stopped = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        self.listeners.listen()
        self.serving = True
        self._started = self._last_tick = self._last_sys = self._last_look = time.monotonic()
        self._open()
        self._set_clock()
        self._freeze()

    def _handle_signals(self) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(signum, self._stopped.set)
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)

    def _freeze(self) -> None:
        """What was read lives long: collections need not look at it again, and at what comes less often.

        With Python's thresholds ten thousand new clients cost a dozen collections of everything, each a pause.
        """
        if not self._embedded:
            gc.set_threshold(*GC_THRESHOLDS)
            gc.collect()
            gc.freeze()

    async def _begin(self) -> None:
        """Read what is kept, or wait until that can be done."""
        complain_at = 0.0
        wait = WAIT_SECONDS
        while True:
            try:
                await self.coordinator.start()
                return
            except NotNow as error:
                if time.monotonic() >= complain_at:
                    log.warning("not started yet: waiting", reason=error)
                    complain_at = time.monotonic() + COMPLAIN_SECONDS
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(wait * 2, WAIT_SECONDS_MOST)
            self._build()

    def _open(self) -> None:
        """Let clients in."""
        self.broker.bans.refresh()
        self.broker.data_plane.reactor.max_connections = self._connection_limit()
        self._loop.add_reader(self.broker.data_plane.reactor.fileno(), self.broker.data_plane.reactor.run)
        self.listeners.open(self.broker.data_plane.reactor, self.config.proxy.trusted)
        self._update_sys(0.0)

    def _restart(self, reason: str) -> None:
        """Close all clients, forget all state, and begin anew: the cluster goes on without what this node knew."""
        self._hurried.set()
        if self._restarting is None and not self._stopped.is_set():
            log.error("all clients are closed, and the node starts anew", reason=reason)
            self._loop.remove_reader(self.broker.data_plane.reactor.fileno())
            for connection in self.broker.data_plane.reactor:
                connection.unsettled = True  # its will is published by others, even if it just says DISCONNECT
                connection.close("the node starts anew")
            self._restarting = self._loop.create_task(self._begin_anew())

    async def _begin_anew(self) -> None:
        gc.unfreeze()  # or what is forgotten would stay
        self._build()
        try:
            await self._begin()
        except Exception as error:
            self._failure = error
            self._stopped.set()
            return
        self._open()
        self._freeze()
        self._restarting = None
        self._hurried.clear()
        log.info("the node is ready again")

    def _connection_limit(self) -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        possible = 2**31 if files == resource.RLIM_INFINITY else max(1, files - SPARE_FILES)
        return min(possible, self.config.limits.max_connections or possible)

    # ---- run ----

    def _wake(self) -> None:
        self._loop.call_soon(self.broker.data_plane.reactor.run)

    def _tick(self) -> None:
        now = time.monotonic()
        self.broker.monitor.tick(now - self._due)
        ticks = int((now - self._last_tick) * TICKS_PER_SECOND)
        if ticks:
            self._last_tick += ticks / TICKS_PER_SECOND
            self.broker.data_plane.reactor.advance(min(ticks, TICKS_AT_ONCE))
        self.coordinator.tick()
        self.broker.traces.forget()
        self.broker.connected_users.tick()
        if now - self._last_look >= FILES_SECONDS:
            self._last_look = now
            if self.access.changed():
                self.broker.connected_users.renew(self.access.renewed)
        self.broker.bans.tick()
        self.listeners.look(self.config, now)
        interval = self.config.mqtt.sys_interval
        if interval and now - self._last_sys >= interval:
            self._update_sys(now - self._last_sys)
            self._last_sys = now
        self._set_clock()

    def _set_clock(self) -> None:
        now = time.monotonic()
        self._due = max(now + 0.001, self._last_tick + 1 / TICKS_PER_SECOND)
        self._clock = self._loop.call_later(self._due - now, self._tick)

    def _update_sys(self, elapsed: float) -> None:
        if self.config.mqtt.sys_interval:
            self.sys_topics.update(time.monotonic() - self._started, elapsed)
            self.broker.data_plane.end_turn()

    def _users_changed(self, names: set[str]) -> None:
        """Users that the cluster keeps are not what they were."""
        self.broker.connected_users.renew(
            self.access.renewed, lambda identity: identity.method == ClusterUsers.name and identity.username in names
        )

    def reload(self) -> None:
        """Read the configuration again; a wrong one changes nothing."""
        try:
            changes = configuration.diff(self.config, self._reload())
            config = configuration.follow(self.config, changes)
            certificates = self.listeners.prepare(config)
            self.access.configure(config)
        except ConfigError as error:
            log.error("configuration not changed", error=error)
            return
        for change in changes.needs_restart:
            log.warning("takes effect after a restart", change=change)
        self.config = config
        self.listeners.configure(config, certificates)
        logs.set_level(self.config.log.level)
        self.broker.configure(self.config)
        self.coordinator.configure(self.config)
        self.broker.connected_users.renew(self.access.renewed)
        log.info("configuration read", changed=", ".join(map(str, changes.reloadable)) or "nothing")

    async def run(self) -> None:
        """Serve until a signal says stop.

        Raises:
            FlockError: the node had to begin anew, and can't.
        """
        await self._stopped.wait()
        if self._failure is not None:
            raise self._failure

    # ---- stop ----

    async def stop(self) -> None:
        """Accept nothing more, keep what was taken, publish the wills, close."""
        if self.serving:
            log.info("stopping", clients=self.broker.data_plane.sessions.connected)
        if not self._embedded:
            for signum in (signal.SIGINT, signal.SIGTERM):  # a second one ends the process at once
                self._loop.remove_signal_handler(signum)
        if self._restarting is not None:
            self._restarting.cancel()
        self.broker.drain()
        if self.serving and self.config.http.drain:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), self.config.http.drain)
        self.broker.data_plane.reactor.stop_listening()
        if self.serving:
            self._clock.cancel()
            await self.coordinator.drain()
            self._loop.remove_reader(self.broker.data_plane.reactor.fileno())
        self.listeners.close()
        await self.coordinator.stop()
        if self.http is not None:
            await self.http.close()
        self.access.close()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop)
        if self.serving:
            log.info("stopped")


def make_coordinator(config: Config, loop: asyncio.AbstractEventLoop, restart: Callable[[str], None]) -> Coordinator:
    """A node alone, or one of a cluster, as the configuration says.

    Args:
        config: of the node.
        loop: of the node.
        restart: called when the node has lost its place in the cluster, with the reason.
    """
    if config.cluster.redis:
        # By name, since `broker` works without `cluster` and without redis-py.
        try:
            module = import_module("cluster.coordinator")
        except ModuleNotFoundError as error:
            raise UsageError(f"a cluster needs the package {error.name}", "pip install 'flockmq[cluster]'") from error
        return cast(Coordinator, module.ClusterCoordinator(config, loop, restart))
    return StandaloneCoordinator(make_store(config), loop.call_soon_threadsafe)


def make_store(config: Config) -> Store:
    """The store that the configuration names."""
    kind, _, path = config.store.url.partition(":")
    return MemoryStore() if kind == "memory" else SqliteStore(Path(path), sync=config.store.sync)


def package_version() -> str:
    """The version that is installed."""
    try:
        return version("flockmq")
    except PackageNotFoundError:
        return "(not installed)"


def banner(node: Node) -> None:
    """Say where to connect and what is kept."""
    plain, proxied = node.listeners.urls(), node.listeners.urls(proxied=True)
    log.info(f"FlockMQ {package_version()} is ready", listen=", ".join(plain or proxied))
    log.info(node.coordinator.describe())
    if proxied:
        log.info("load balancers that speak the PROXY protocol connect here", listen=", ".join(proxied))
    for name, _ in node.config.tables:
        log.info("listener", name=name, listen=", ".join(node.listeners.urls_of(name)))
    if node.http_addresses:
        log.info("API, web page, health and figures are told over HTTP", listen=", ".join(node.http_addresses))
    if all(is_loopback(address) for address in plain + proxied):
        log.info("only this machine can connect; `flockmq passwd` makes users, --listen 0.0.0.0:1883 lets others in")


async def _serve(config: Config, reload: Callable[[], Config]) -> None:
    node = Node(config, reload)
    try:
        await node.start()
        if node.serving:
            banner(node)
            sd_notify.tell("READY=1")
        await node.run()
    finally:
        await node.stop()


def serve(config: Config, *, reload: Callable[[], Config]) -> int:
    """Run a node until it is told to stop; returns the exit status.

    Args:
        config: what to do.
        reload: reads the configuration again, for SIGHUP.
    """
    logs.configure(config.log.level, config.log.format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, reload))
    except FlockError as error:
        print(f"flockmq: error: {error}", file=sys.stderr)
        return 2
    return 0
