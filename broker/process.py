"""The process around one node: signals, memory, file descriptors, log and banner."""

import asyncio
import contextlib
import gc
import resource
import signal
from collections.abc import Callable

import uvloop

from . import logs, sd_notify, standard_error
from .config.load import allows_colour
from .config.schema import Config
from .errors import FlockError, StoreFailure, fail
from .listeners.bind import is_loopback
from .node import Node
from .private_redis import bring_back

FEW_FILES = 1024  # fewer are reported: a connection takes one
GC_THRESHOLDS = (2_000, 20, 40)  # of the three generations

log = logs.get("flockmq.node")


class Heap:
    """Keeps Python's garbage collector away from the state of the node, which lives long.

    With Python's own thresholds, ten thousand new clients cost a dozen collections of all objects, each a pause.
    """

    def freeze(self) -> None:
        """All objects of now are not looked at again."""
        gc.set_threshold(*GC_THRESHOLDS)
        gc.collect()
        gc.freeze()

    def unfreeze(self) -> None:
        """The state is about to be dropped, and its memory is to be freed."""
        gc.unfreeze()


def raise_file_limit() -> None:
    """Let the process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if 0 <= hard < FEW_FILES:
        log.warning("few clients can connect: the process may open few files (ulimit -n, LimitNOFILE)", files=hard)


def banner(node: Node) -> None:
    """Log where clients connect and where state is stored."""
    plain, proxied = node.listeners.urls(), node.listeners.urls(proxied=True)
    log.info(f"FlockMQ {node.version} is ready", listen=", ".join(plain or proxied))
    log.info(node.coordinator.life.describe())
    if proxied:
        log.info("load balancers that speak the PROXY protocol connect here", listen=", ".join(proxied))
    for name, _ in node.config.tables:
        log.info("listener", name=name, listen=", ".join(node.listeners.urls_of(name)))
    if node.http_addresses:
        log.info("HTTP server is listening", listen=", ".join(node.http_addresses))
        if node.http is not None and node.http.is_open() and any(map(is_loopback, node.http_addresses)):
            log.info("every user of this machine may do everything over HTTP; `flockmq token` makes tokens")
    if all(is_loopback(address) for address in plain + proxied):
        command = "users" if node.config.auth.users else "passwd"
        log.info(
            f"only this machine can connect by MQTT; `flockmq {command}` makes users, --listen :1883 lets others in"
        )


async def _serve(config: Config, reload: Callable[[], Config]) -> None:
    loop = asyncio.get_running_loop()
    node = Node(config, reload, heap=Heap())
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, node.request_stop)
    loop.add_signal_handler(signal.SIGHUP, node.reload)
    try:
        await node.start()
        if node.serving:
            banner(node)
            sd_notify.notify("READY=1")
        await node.run()
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM):  # a second one ends the process at once
            loop.remove_signal_handler(signum)
        await node.stop()


def serve(config: Config, *, reload: Callable[[], Config]) -> int:
    """Run a node until a signal stops it; returns the exit status.

    Args:
        config: of the node.
        reload: reads the configuration again, for SIGHUP.
    """
    standard_error.take()
    worker = config.cluster.node_name if config.listen_shared else ""
    logs.configure(config.log.level, config.log.format, colour=allows_colour(), worker=worker)
    raise_file_limit()
    try:
        bring_back(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, reload))
    except FlockError as error:
        return fail(error, 1 if isinstance(error, StoreFailure) else 2)
    return 0
