"""A node's HTTP port, as tests ask it."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from tests.harness.broker_process import BrokerProcess
from tests.harness.command import flockmq
from tests.harness.deadline import DEADLINE


class Reply(NamedTuple):
    """The answer."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.data)


class HttpClient:
    """Asks one node.

    Args:
        broker: the node, which has `http.listen`.
        token: shown with each request; empty: none.
    """

    def __init__(self, broker: BrokerProcess, token: str = "") -> None:
        self.url = broker.wait_for_log("HTTP server is listening", since=broker._spawned_at)["listen"].split(", ")[0]
        place = urlsplit(self.url)
        self.host, self.port = str(place.hostname), int(place.port or 0)
        self.token = token

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, **query: object
    ) -> Reply:
        """A request below /api/v1, unless the path begins with //."""
        target = path[1:] if path.startswith("//") else f"/api/v1{path}"
        target += f"?{urlencode(query)}" if query else ""
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if data is not None:
            own["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE)
        try:
            connection.request(method, target, data, {**own, **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def command(self, *arguments: str, status: int = 0) -> str:
        """The output of `flockmq ARGUMENTS --url ...`; its errors, if it is to end with another status than 0."""
        return flockmq(*arguments, "--url", self.url, status=status)

    def get(self, path: str, **query: object) -> Any:
        """The answer to a GET, which must be well."""
        reply = self.ask("GET", path, **query)
        assert reply.status == 200, reply
        return reply.json

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[Any]]:
        """The events of a stream."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE)
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        connection.request("GET", f"/api/v1{path}", headers=own)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))
        finally:
            connection.close()

    @contextmanager
    def reading(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET below /api/v1, to be read in pieces."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE)
        connection.request("GET", f"/api/v1{path}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield answer
        finally:
            connection.close()

    def raw(self, data: bytes) -> socket.socket:
        """A connection over which these bytes were sent."""
        connection = socket.create_connection((self.host, self.port), DEADLINE)
        connection.sendall(data)
        return connection
