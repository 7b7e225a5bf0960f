"""The audit log for a syslog server: each record is a line of RFC 5424 whose message is JSON.

A thread sends, so a server that is slow or away does not stop the node. While it is away, records are dropped here, and
the log of the node has a warning; the audit log has them.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from ... import logs
from ...listeners.bind import host_name

PRIORITY = 10 * 8 + 5  # facility authpriv, severity notice
MAX_WAITING = 1000  # records
SECONDS = 5.0  # that the server may take
LOG_SECONDS = 60.0  # between warnings
END = None

log = logs.get("flockmq.audit")


class Syslog:
    """Sends records.

    Args:
        address: of the server: unix:/PATH, udp://HOST:PORT or tcp://HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._records: Queue[dict[str, Any] | None] = Queue(MAX_WAITING)
        self._socket: socket.socket | None = None
        self._warn_at = 0.0
        self._thread = Thread(target=self._run, name="syslog", daemon=True)
        self._thread.start()

    def send(self, record: dict[str, Any]) -> None:
        """Send a record; it never waits."""
        try:
            self._records.put_nowait(record)
        except Full:
            self._warn("too many records wait for it")

    def close(self) -> None:
        """Send the waiting records, for SECONDS at most, then end the thread."""
        try:
            self._records.put(END, timeout=SECONDS)
        except Full:
            return
        self._thread.join(SECONDS)

    def _run(self) -> None:
        for record in self._each():
            for is_last in (False, True):  # a server that was restarted has closed the connection
                try:
                    self._open().sendall(line(record, self._address))
                    break
                except OSError as error:
                    self._close()
                    if is_last:
                        self._warn(str(error))
        self._close()

    def _each(self) -> Iterator[dict[str, Any]]:
        while (record := self._records.get()) is not END:
            yield record

    def _open(self) -> socket.socket:
        if self._socket is None:
            place = urlsplit(self._address)
            if place.scheme == "tcp":
                self._socket = socket.create_connection((place.hostname, place.port), SECONDS)
            elif place.scheme == "udp":
                kind, _, _, _, where = socket.getaddrinfo(place.hostname, place.port, type=socket.SOCK_DGRAM)[0]
                self._socket = socket.socket(kind, socket.SOCK_DGRAM)
                self._socket.connect(where)
            else:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(SECONDS)
                self._socket.connect(self._address.removeprefix("unix:"))
        return self._socket

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _warn(self, reason: str) -> None:
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + LOG_SECONDS
            log.warning("the syslog server does not get the audit log", server=self._address, reason=reason)


def line(record: dict[str, Any], address: str) -> bytes:
    """A record as RFC 5424 has it; over TCP lines end with a line feed [RFC 6587, 3.4.2]."""
    stamp = datetime.fromtimestamp(record["time"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = f"<{PRIORITY}>1 {stamp} {host_name()} flockmq {os.getpid()} audit - {json.dumps(record)}"
    return text.encode() + (b"\n" if address.startswith("tcp:") else b"")
