"""An HTTP endpoint that takes events."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.deadline import DEADLINE


class Endpoint:
    """An HTTP server that keeps requests, and replies with the status that the test sets.

    Attributes:
        status: returns the status of the reply to a body.
        headers: more headers of replies.
        stopped: set when the request of `stop_at` is there.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.headers: dict[str, str] = {}
        self.status: Callable[[bytes], int] = lambda body: 204
        self.stopped = threading.Event()
        self._gate = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(endpoint.status(body))
                for name, value in {"Content-Length": "0", **endpoint.headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop_at(self, number: int) -> None:
        """Reply to a request, the first having the number 1, only after `go_on`."""

        def status(_: bytes) -> int:
            if len(self.requests) == number:
                self.stopped.set()
                self._gate.wait(DEADLINE)
            return 204

        self.status = status

    def go_on(self) -> None:
        """Reply to all requests."""
        self._gate.set()

    def close(self) -> None:
        """End the server."""
        self.server.shutdown()
        self.server.server_close()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of all requests."""
        found = [json.loads(body) for _, body in self.requests]
        return [event for each in found for event in (each if isinstance(each, list) else [each])]
