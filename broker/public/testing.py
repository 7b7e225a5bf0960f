"""A real broker inside a test's process: on a free port of loopback, in its own thread, with nothing on the disk.

    from flockmq.testing import Broker

    def test_my_device():
        with Broker() as broker:
            device = MyDevice(broker.host, broker.port)

With pytest there is a fixture, `flockmq_broker`, which is one for each test.
"""

import asyncio
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

import uvloop

from flockmq.broker.config.kinds import split_address
from flockmq.broker.config.listen_url import ListenUrl
from flockmq.broker.config.load import load
from flockmq.broker.hooks.api import Hooks
from flockmq.broker.node import Node
from flockmq.broker.process import raise_file_limit

DEFAULTS: Mapping[str, object] = {"listen": ["127.0.0.1:0"], "store.url": "memory", "mqtt.sys_interval": "0"}


class Broker:
    """A broker, once entered as a context manager or after `start`.

    Args:
        settings: configuration keys and values, such as {"limits.max_inflight": 5}; `flockmq sample-config` has all.
        hooks: called like hooks of `--hooks`.

    Raises:
        FlockError: a setting is wrong, or the broker can't start.
    """

    def __init__(self, settings: Mapping[str, object] | None = None, hooks: Iterable[Hooks] = ()) -> None:
        given = {name: _as_text(value) for name, value in {**DEFAULTS, **(settings or {})}.items()}
        self._config = load(given, env={})
        self._hooks = tuple(hooks)
        self._thread = threading.Thread(target=self._run, name="flockmq", daemon=True)
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def start(self) -> Self:
        """Start it; returns when clients can connect."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop it: clients are disconnected, wills are published."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @property
    def _url(self) -> ListenUrl:
        return ListenUrl.parse(self.urls[0])

    @property
    def host(self) -> str:
        """Of its first address."""
        return split_address(self._url.address)[0]

    @property
    def port(self) -> int:
        """Of its first address."""
        return split_address(self._url.address)[1]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except Exception as error:  # `start` raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        raise_file_limit()
        node = Node(self._config, lambda: self._config, more_hooks=self._hooks)
        try:
            await node.start()
            self.urls = node.listeners.urls()
            self._ready.set()
            await self._stop.wait()
        finally:
            await node.stop()


def _as_text(value: object) -> object:
    """A setting as `--set` would give it."""
    return list(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
