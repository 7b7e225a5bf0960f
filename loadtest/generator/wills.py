"""Delayed wills that are due at once: how fast a broker publishes them, and whether others notice."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import time
from typing import Any

from ..._speedups.codec.decode import Decoder
from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connack, Connect, Packet, Publish, Suback, Subscribe
from .cost import Figures
from .target import Target, WillsLoad

EXPIRY_SECONDS = 3600  # of the sessions, so that the delay of a will decides
PROBE_SECONDS = 0.002  # between two probes
ABORTED = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, which leaves no port behind


class Client:
    """A blocking connection of level 5.

    Raises:
        ConnectionError: the broker refused or closed it.
    """

    def __init__(self, target: Target, client_id: str, **connect: Any) -> None:
        self.socket = socket.create_connection((target.host, target.port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder(5)
        self.send(Connect(client_id, protocol_level=5, keep_alive=0, **connect))
        self.wait_for(Connack)

    def send(self, packet: Packet) -> None:
        """Send a packet."""
        self.socket.sendall(encode(packet, 5))

    def receive(self) -> list[Packet]:
        """Wait for data; the packets that are complete."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker has closed a connection")
        return self._decoder.feed(data)

    def wait_for(self, kind: type[Packet]) -> None:
        """Skip packets until one of this kind."""
        while not any(isinstance(packet, kind) for packet in self.receive()):
            pass

    def abort(self) -> None:
        """End the connection without DISCONNECT."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTED)
        self.socket.close()


def delayed_wills_load(target: Target, load: WillsLoad) -> Figures:
    """Leave sessions with delayed wills behind, all due within one second, and receive the wills.

    Another client sends messages to itself all the time, and measures their latency.

    Raises:
        ConnectionError: the broker refused or closed a connection.
        TimeoutError: wills were missing at the end.
    """
    with contextlib.ExitStack() as stack:
        watcher, probe = Client(target, "wills-watcher"), Client(target, "wills-probe")
        for client, topic_filter in ((watcher, "wills/#"), (probe, "probe")):
            stack.callback(client.socket.close)
            client.send(Subscribe(1, [(topic_filter, 0)]))
            client.wait_for(Suback)
        began = time.monotonic()
        due = began + load.delay
        for number in range(load.wills):
            delay = math.floor(due - time.monotonic())
            if delay < 1:
                raise TimeoutError(f"the clients did not connect within {load.delay:g} s")
            Client(
                target,
                f"will-{number}",
                will_topic=f"wills/{number}",
                will_payload=b"gone",
                will_properties={"will_delay_interval": delay},
                properties={"session_expiry_interval": EXPIRY_SECONDS},
            ).abort()
        connected = time.monotonic() - began
        received, first, last, latencies = _receive(watcher, probe, load.wills, due + load.limit)
    return {
        "wills": load.wills,
        "connect_s": connected,
        "received": received,
        "lost": load.wills - received,
        "wills_s": last - first,
        "late_s": last - due,
        "others_latency_max_us": max(latencies) * 1e6,
        "probes": len(latencies),
    }


def _receive(watcher: Client, probe: Client, wills: int, end: float) -> tuple[int, float, float, list[float]]:
    """Receive the wills; returns their number, the times of the first and the last, and the latencies of the probe."""
    received, first, last = 0, 0.0, 0.0
    latencies: list[float] = []
    sent, answered = 0.0, True
    while received < wills and time.monotonic() < end:
        if answered and time.monotonic() >= sent + PROBE_SECONDS:
            sent, answered = time.monotonic(), False
            probe.send(Publish("probe", b"", 0))
        readable, _, _ = select.select([watcher.socket, probe.socket], [], [], PROBE_SECONDS)
        if probe.socket in readable:
            probe.receive()
            answered = True
            latencies.append(time.monotonic() - sent)
        if watcher.socket in readable:
            packets = watcher.receive()
            last = time.monotonic()
            first = first or last
            received += len(packets)
    return received, first, last, latencies or [0.0]
