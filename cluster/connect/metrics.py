"""The figures of pipes, for Prometheus: an HTTP server of its own thread."""

import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from ...broker.errors import ConfigError
from ..follow.follower import Follower
from .dead_letters import DeadLetters
from .pipe import Pipe

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Running(NamedTuple):
    """A pipe that runs."""

    follower: Follower
    pipe: Pipe
    dead: DeadLetters


FIGURES: tuple[tuple[str, str, str, Callable[[Running], float | None]], ...] = (
    ("messages_total", "counter", "Messages that are written.", lambda each: each.follower.rows),
    ("batches_total", "counter", "Batches that are written.", lambda each: each.follower.batches),
    ("failures_total", "counter", "Attempts that failed; the pipe tries again.", lambda each: each.follower.failures),
    ("dead_letters_total", "counter", "Rows that were refused.", lambda each: each.dead.count),
    ("unparsed_total", "counter", "Payloads that do not fit the schema.", lambda each: each.follower.unparsed),
    ("waiting_bytes", "gauge", "Bytes of the log that are not written.", lambda each: each.follower.waiting_bytes),
    (
        "age_seconds",
        "gauge",
        "Time since the newest message that is written was accepted.",
        lambda each: None if each.pipe.newest is None else time.time() - each.pipe.newest,
    ),
)


def text_of(running: Sequence[Running]) -> str:
    """The figures in Prometheus' text format."""
    lines = []
    for name, kind, about, figure in FIGURES:
        lines += [f"# HELP flockmq_pipe_{name} {about}", f"# TYPE flockmq_pipe_{name} {kind}"]
        values = ((each.follower.name, figure(each)) for each in running)
        lines += [f'flockmq_pipe_{name}{{pipe="{pipe}"}} {value}' for pipe, value in values if value is not None]
    return "\n".join(lines) + "\n"


def serve(address: str, running: Sequence[Running]) -> ThreadingHTTPServer:
    """Serve the figures at /metrics.

    Args:
        address: HOST:PORT.
        running: the pipes.

    Raises:
        ConfigError: the address is wrong, or taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_here = self.path.partition("?")[0] == "/metrics"
            body = text_of(running).encode() if is_here else b"see /metrics\n"
            self.send_response(200 if is_here else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), Handler)
    except ValueError:
        raise ConfigError(f"metrics: expected HOST:PORT, not {address!r}") from None
    except OSError as error:
        raise ConfigError(f"metrics: {address}: {error.strerror}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
