"""Clients that come while something happens to nodes, and must not notice."""

import itertools
import threading
from typing import Any

from flockmq._speedups.codec.packets import Connack
from tests.harness.broker_process import until
from tests.harness.socket_client import SocketClient


class Newcomers:
    """Clients that connect one after the other, in a thread, and how many got in; a refused client is a failure."""

    def __init__(self, host: str, port: int, **connect: Any) -> None:
        self.host, self.port = host, port
        self.connect = connect  # fields of CONNECT
        self.count = 0
        self.fault: Exception | None = None
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._enough.is_set():
                    return
                with SocketClient(self.port, f"newcomer-{number}", host=self.host, **self.connect) as client:
                    assert client.connack == Connack()
                    client.ping()
                self.count += 1
        except Exception as fault:
            self.fault = fault

    def __enter__(self) -> "Newcomers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()
        assert self.fault is None, f"client {self.count} did not get in: {self.fault!r}"

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until so many more are in, or one could not."""
        wanted = self.count + count
        until(lambda: self.fault is not None or self.count >= wanted, "newcomers get in")
