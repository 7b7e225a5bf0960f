"""A back end over HTTP: its requests, the clients that it admits, and its failures."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flockmq.broker.auth.back_end import MAX_FAILURES
from flockmq.broker.auth.http_users import verdict_of
from flockmq.broker.auth.rules import read_json
from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, UNAVAILABLE, WRONG, AccessFiles, refused
from tests.security.one_method import connects


class BackEnd(ThreadingHTTPServer):
    """Lets in who has his name as password; or replies as the test asks for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.status, self.answer = 200, b""
        self.more: dict[str, Any] = {}
        self.go = threading.Event()
        self.go.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def start_broker(self, start_broker: StartBroker, **more: object) -> Broker:
        url = f"http://127.0.0.1:{self.server_port}/users"
        return start_broker(
            {"auth.http_url": url, "auth.failure_delay": 0, **{f"auth.{name}": value for name, value in more.items()}}
        )


class _Handler(BaseHTTPRequestHandler):
    server: BackEnd

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(question)
        self.server.go.wait(30)
        found = {"allow": question["username"] == question["password"], **self.server.more}
        data = self.server.answer or json.dumps(found).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> str:
    return "memory"


@pytest.fixture
def back_end() -> Iterator[BackEnd]:
    server = BackEnd()
    yield server
    server.go.set()
    server.shutdown()
    server.server_close()


def let_in(broker: Broker, user: str, client_id: str = "c") -> Wire:
    return Wire(broker.port, name=client_id).connect(f"user={user} pass={user}")


def test_it_is_asked_and_decides(back_end: BackEnd, start_broker: StartBroker) -> None:
    back_end.more = {"rules": ["topic read news"]}
    broker = back_end.start_broker(start_broker)
    with let_in(broker, "ada") as ada:
        ada.send("subscribe 1 news:0 other:0")
        ada.expect("suback 1 0 0x80")
    assert back_end.asked == [
        {"username": "ada", "password": "ada", "client_id": "c", "address": "127.0.0.1", "listener": "default"}
    ]
    let_in(broker, "ada").close()  # remembered
    assert len(back_end.asked) == 1
    refused(broker, "user=ada pass=wrong", WRONG)
    let_in(broker, "ada", "another").close()  # another question
    back_end.status = 403
    refused(broker, "user=bob pass=bob", WRONG)
    refused(broker, "", NOT_AUTHORIZED)
    assert len(back_end.asked) == 4


def test_who_is_known_elsewhere_is_not_asked_for(back_end: BackEnd, start_broker: StartBroker, tmp_path: Path) -> None:
    """A way without the user passes the question on; a wrong password ends it."""
    files = AccessFiles(tmp_path)
    files.users("ada")
    broker = back_end.start_broker(start_broker, password_file=files.passwords)
    let_in(broker, "ada").close()
    refused(broker, "user=ada pass=wrong", WRONG)
    assert back_end.asked == []
    let_in(broker, "bob").close()
    back_end.status = 500
    refused(broker, "user=eve pass=eve", UNAVAILABLE)
    assert [question["username"] for question in back_end.asked] == ["bob", "eve"]


def test_cve_2026_32696_what_is_missing_is_null(back_end: BackEnd, start_broker: StartBroker) -> None:
    broker = back_end.start_broker(start_broker)
    refused(broker, "user=ada", WRONG)
    refused(broker, "user= pass=x", WRONG)
    assert [(question["username"], question["password"]) for question in back_end.asked] == [("ada", None), ("", "x")]


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"allow": "yes"}',
        b'{"allow": 1}',
        b'{"allow": null}',
        b"[" * 100_000,
        b'{"allow": true, "rules": "all"}',
        b'{"allow": true, "rules": ["nonsense"]}',
        b'{"allow": true, "expires": "never"}',
        b'{"allow": true, "expires": true}',
        b'{"allow": true, "expires": NaN}',
        b'{"allow": true, "expires": 1e400}',
        b'{"allow": true, "expires": -1e400}',
        b'{"allow": true, "expires": 1' + b"0" * 400 + b"}",
        b'{"allow": true, "rules": ["topic read \\ud800"]}',
    ],
)
def test_what_cannot_be_understood_lets_nobody_in(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        verdict_of(read_json(answer), "ada")


def test_a_back_end_that_fails_lets_nobody_in(back_end: BackEnd, start_broker: StartBroker) -> None:
    """And is left alone after some failures, until one client tries again."""
    broker = back_end.start_broker(start_broker)
    back_end.status = 500
    for number in range(MAX_FAILURES + 5):
        refused(broker, "user=ada pass=ada", UNAVAILABLE, f"c{number}")
    assert len(back_end.asked) == MAX_FAILURES
    back_end.status = 200
    until(lambda: connects(broker), "it is tried again")
    let_in(broker, "bob").close()


def test_odd_answers_are_failures(back_end: BackEnd, start_broker: StartBroker) -> None:
    broker = back_end.start_broker(start_broker)
    for status, answer in ((302, b"{}"), (200, b"[" * 100_000), (200, b"x" * (2 << 20))):
        back_end.status, back_end.answer = status, answer
        refused(broker, "user=ada pass=ada", UNAVAILABLE)
    back_end.status, back_end.answer = 200, b""
    let_in(broker, "ada").close()


def test_a_back_end_that_is_slow_holds_up_nobody_else(back_end: BackEnd, start_broker: StartBroker) -> None:
    broker = back_end.start_broker(start_broker, http_timeout=0.5, allow_anonymous=True)
    back_end.go.clear()
    with Wire(broker.port, name="waits") as waits, Wire(broker.port, name="other") as other:
        waits.send("connect user=ada pass=ada")
        until(lambda: back_end.asked, "the back end is asked")
        other.connect().subscribe("a:1")
        began = time.monotonic()
        for number in range(50):
            other.send(f"publish a x q1 id={number + 1}")
            assert all(other.packet() for _ in range(2))
        assert time.monotonic() - began < 5 and not waits.frames
        waits.expect(f"connack {UNAVAILABLE}", None)


def test_what_it_says_ends(back_end: BackEnd, start_broker: StartBroker) -> None:
    back_end.more = {"expires": time.time() + 1.5}
    broker = back_end.start_broker(start_broker)
    with let_in(broker, "ada") as ada:
        assert ada.receive() is None
    let_in(broker, "ada").close()
    assert len(back_end.asked) == 2, "what has expired is not remembered"
