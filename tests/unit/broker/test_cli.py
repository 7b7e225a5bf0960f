"""The command line: which command runs, and the errors for mistakes."""

import json
import sys
import threading
import tomllib
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flockmq.broker.cli import COMMANDS, main
from flockmq.broker.commands.output_format import compile_format
from flockmq.broker.config.keys import KEYS
from flockmq.broker.config.sample import sample
from flockmq.broker.config.schema import Config
from flockmq.broker.errors import FlockError, UsageError


class Page(BaseHTTPRequestHandler):
    """A web page where a node was expected."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the node: notes the arguments of `serve`."""
    calls: list[Any] = []

    def serve(config: Config, *, reload: Any) -> int:
        calls.append((config, reload))
        return 0

    node = types.ModuleType("flockmq.broker.process")
    node.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flockmq.broker.process", node)
    return calls


def test_no_command_is_serve(served: list[Any]) -> None:
    assert main([]) == 0
    assert main(["serve"]) == 0
    assert main(["--store", "memory"]) == 0
    assert [call[0].store.url for call in served] == ["sqlite:flockmq.db", "sqlite:flockmq.db", "memory"]


def test_serve_flags(served: list[Any]) -> None:
    flags = (
        "--listen 127.0.0.1:0 --listen [::1]:0 --store memory --sync normal --log-level debug --log-format json "
        "--set limits.max_inflight=7 --set mqtt.sys_interval=1.5m"
    )
    assert main(["serve", *flags.split()]) == 0
    config = served[0][0]
    assert config.listen == ("127.0.0.1:0", "[::1]:0")
    assert (config.store.url, config.store.sync) == ("memory", "normal")
    assert (config.log.level, config.log.format) == ("debug", "json")
    assert (config.limits.max_inflight, config.mqtt.sys_interval) == (7, 90.0)


def test_reload_reads_the_file_again(served: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "flockmq.toml"
    path.write_text("[log]\nlevel = 'error'\n", "utf-8")
    assert main(["serve", "--config", str(path), "--store", "memory"]) == 0
    config, reload = served[0]
    assert config.log.level == "error"
    path.write_text("[log]\nlevel = 'debug'\n", "utf-8")
    assert (reload().log.level, reload().store.url) == ("debug", "memory")
    path.write_text("[log]\nlevel = 'loud'\n", "utf-8")
    with pytest.raises(FlockError, match="loud"):
        reload()


def test_a_fault_of_the_node_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(config: Config, *, reload: Any) -> int:
        raise FlockError("cannot listen\non it", "take another port")

    monkeypatch.setitem(sys.modules, "flockmq.broker.process", types.SimpleNamespace(serve=serve))
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "flockmq: error: cannot listen\\non it; take another port\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sevre"], "unknown command 'sevre'; did you mean serve?"),
        (["xyzzy"], "`flockmq --help`"),
        (["serve", "--lisen", "a:1"], "unknown argument '--lisen'; did you mean --listen?"),
        (["serve", "extra"], "unknown argument 'extra'"),
        (["--listen", "1883"], "HOST:PORT"),
        (["--listen"], "expected one argument"),
        (["--set", "limits.max_inflight"], "expected KEY=VALUE"),
        (["--set", "limits.max_inflght=1"], "did you mean limits.max_inflight?"),
        (["--store", "redis:x"], '"memory" or "sqlite:PATH"'),
        (["--sync", "half"], '"full" or "normal"'),
        (["--config", "/nonexistent.toml"], "sample-config"),
        (["check-config", "--log-level", "loud"], '"info"'),
        (["sample-config", "x"], "unknown argument 'x'"),
        (["--workers", "2", "--set", "cluster.replicas=1"], "no replicas"),
        (["--redis", "http://x"], "redis+sentinel://"),
    ],
)
def test_mistakes_are_one_line(
    served: list[Any], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_mistake(arguments, words, capsys)
    assert not served


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pub"], "no topic"),
        (["pub", "-t", "a"], "no message"),
        (["pub", "-t", "a", "-m", "x", "-n"], "more than one message"),
        (["pub", "-t", "a/#", "-m", "x"], "wildcard"),
        (["pub", "-t", "", "-m", "x"], "-t ''"),
        (["pub", "-t", "a", "-m", "x", "-q", "3"], "argument -q/--qos: '3' is not a number from 0 to 2;"),
        (["pub", "-t", "a", "-m", "x", "-p", "0"], "number from 1 to 65535"),
        (["pub", "-t", "a", "-m", "x", "-V", "mqttv6"], "expected mqttv31, mqttv311 or mqttv5"),
        (["pub", "-t", "a", "-m", "x", "-V", "4", "-x", "5"], "-V 4: expected"),
        (["pub", "-t", "a", "-m", "x", "-V", "311", "-x", "5"], "-x needs -V 5"),
        (["pub", "-t", "a", "-m", "x", "-x", "-2"], "argument -x"),
        (["pub", "-t", "a", "-m", "x", "-x", "4294967296"], "or -1"),
        (["pub", "-t", "a", "-m", "x", "-D"], "expected COMMAND NAME VALUE"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "user-property", "a"], "expected COMMAND NAME VALUE"),
        (["pub", "-t", "a", "-m", "x", "-D", "pubish", "content-type", "a"], "unknown command 'pubish'"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "topic", "a"], "publish has no such property"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "subscription-identifier", "1"], "no such property"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "topic-alias", "0"], "number from 1 to 65535"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "payload-format-indicator", "2"], "number from 0 to 1"),
        (["pub", "-t", "a", "-m", "x", "-D", "auth", "authentication-data", "a"], "-D auth needs a method"),
        (["pub", "-t", "a", "-m", "x", "-D", "will", "will-delay-interval", "2"], "needs --will-topic"),
        (
            ["pub", "-t", "a", "-m", "x", *(["-D", "publish", "content-type", "a"] * 2)],
            "-D publish content-type: given twice",
        ),
        (["sub", "-t", "a", "-x", "1", "-D", "connect", "session-expiry-interval", "1"], "exclude each other"),
        (["sub", "-t", "a", "-V", "311", "--no-local"], "--no-local needs -V 5"),
        (["links", "--token-file", "/none"], "cannot read /none: No such file or directory"),
        (["sub", "-t", "a", "--since", "10q"], "--since '10q': expected earliest, now, a duration such as 10m"),
        (["sub", "-t", "a", "--retain-handling", "often"], "invalid choice"),
        (["pub", "-t", "a", "-m", "x", "-P", "secret"], "-P needs -u"),
        (["pub", "-t", "a", "-m", "x", "-c"], "-c needs -i"),
        (["pub", "-t", "a", "-m", "x", "-i", "a", "-I", "b"], "exclude each other"),
        (["pub", "-t", "a", "-m", "x", "--will-qos", "1"], "need --will-topic"),
        (["pub", "-t", "a", "-m", "x", "--will-topic", "a/+"], "--will-topic 'a/+'"),
        (["pub", "-t", "a", "-l", "--repeat", "2"], "--repeat and -l"),
        (["pub", "-t", "a", "-m", "x", "--repeat-delay", "nan"], "--repeat-delay"),
        (["pub", "-L", "mqtts://h/a", "-m", "x", "--cafile", "/none"], "--cafile /none: No such file"),
        (["pub", "-t", "a", "-m", "x", "--key", "k"], "--key needs --cert"),
        (["pub", "-t", "a", "-m", "x", "--cert", "/none"], "--cert, --key: No such file"),
        (["pub", "-t", "a", "-m", "x", "--tls", "--unix", "/s"], "--unix: TLS and WebSocket are for networks"),
        (["pub", "-t", "a", "-m", "x", "--ws", "--unix", "/s"], "--unix: TLS and WebSocket are for networks"),
        (["pub", "-t", "a", "-m", "x", "--ws-path", "mqtt"], "--ws-path 'mqtt': expected a path"),
        (["pub", "-L", "ws://h", "-m", "x"], "expected mqtt://"),
        (["pub", "-L", "http://h/a", "-m", "x"], "expected mqtt://"),
        (["pub", "-L", "mqtt://h", "-m", "x"], "expected mqtt://"),
        (["pub", "-L", "mqtt://h:x/a", "-m", "x"], "-L 'mqtt://h:x/a'"),
        (["sub"], "no topic filter"),
        (["sub", "-t", "a/#/b"], "-t 'a/#/b'"),
        (["sub", "-t", "a", "-T", "b+"], "-T 'b+'"),
        (["sub", "-t", "a", "-C", "0"], "number from 1"),
        (["sub", "-t", "a", "-R", "--retained-only"], "exclude each other"),
        (["sub", "-t", "a", "-F", "%"], "incomplete '%'"),
        (["sub", "-t", "a", "-F", "%d"], "unknown field '%d'"),
        (["sub", "-t", "a", "-F", "\\z"], "unknown escape"),
        (["sub", "-t", "a", "-F", "@L"], "unknown time '@L'"),
        (["sub", "-t", "a", "--verbos"], "did you mean --verbose?"),
    ],
)
def test_client_mistakes_are_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flockmq._speedups.codec.topics")
    check_mistake(arguments, words, capsys)


def check_mistake(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert told.startswith("flockmq: error: ")
    assert words in told
    assert told.count("\n") == 1


def test_missing_file_to_publish(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flockmq._speedups.codec.packets")
    assert main(["pub", "-t", "a", "-f", "/nonexistent"]) == 1
    assert capsys.readouterr().err == "flockmq: error: cannot read /nonexistent: No such file or directory\n"


def test_a_port_that_is_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["links", "--url", url]) == 1
        server.shutdown()
    assert capsys.readouterr().err == f"flockmq: error: {url} is no node: its reply is not JSON\n"


def test_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    for long, short in (
        (["--help"], ["-h"]),
        (["serve", "--help"], ["serve", "-h"]),
        (["users", "-h"], ["help", "users"]),
    ):
        assert main(long) == main(short) == 0
        pages = capsys.readouterr().out
        assert pages[: len(pages) // 2] == pages[len(pages) // 2 :] != ""
    assert main(["pub", "-h"]) == 2, "the host, as with mosquitto_pub"


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, told = capsys.readouterr()
    assert out.startswith("usage: flockmq ")
    assert "examples:" in out
    assert max(map(len, out.splitlines())) <= 116
    assert told == ""


@pytest.mark.parametrize("shown", ["--workers N|auto", "--store memory|sqlite:PATH", "--log-level debug|info|"])
def test_help_shows_the_form_of_values(shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert shown in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("flockmq ")


def test_sample_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample-config"]) == 0
    assert capsys.readouterr().out == sample()


def test_check_config_says_where_values_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "flockmq.toml"
    path.write_text("[limits]\nmax_inflight = 9\n", "utf-8")
    monkeypatch.setenv("FLOCKMQ_STORE_URL", "memory")
    assert main(["check-config", "--config", str(path), "--log-level", "debug"]) == 0
    out = capsys.readouterr().out
    settings = [line.split(" = ", 1) for line in out.splitlines() if " = " in line]
    assert len(settings) == len(KEYS)
    lines = dict(settings)
    assert lines["max_inflight"].split() == ["9", "#", f"{path}:2"]
    assert lines["url"].split() == ['"memory"', "#", "FLOCKMQ_STORE_URL"]
    assert lines["level"].split() == ['"debug"', "#", "command", "line"]
    assert lines["sync"].split() == ['"full"', "#", "default"]
    assert tomllib.loads(out)["limits"]["max_inflight"] == 9


def test_check_config_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--redis", "redis+sentinel://u:sesame@h/m?sentinel_password=sesame"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["cluster"]["redis"] == "redis+sentinel://u:***@h/m?sentinel_password=***"
    assert "sesame" not in out


class Printed:
    """As much of a message as a format looks at."""

    topic_name, payload, qos, retain, packet_id = "t/ä", b"\x00\xffpq", 1, True, 7
    properties: ClassVar[dict[str, Any]] = {}


class WithProperties(Printed):
    """The same, at level 5."""

    properties: ClassVar[dict[str, Any]] = {
        "topic_alias": 3,
        "content_type": "ä",
        "correlation_data": b"\xff",
        "message_expiry_interval": 9,
        "payload_format_indicator": 0,
        "user_property": [("a", "1"), ("b", "2"), ("a", "3")],
        "response_topic": "r",
        "subscription_identifier": [7, 8],
    }


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("%t|%p|%q|%r|%m|%l", "t/ä|".encode() + b"\x00\xffpq|1|1|7|4"),
        ("%x %X", b"00ff7071 00FF7071"),
        ("%%@@\\\\\\n\\t", b"%@\\\n\t"),
        ("%5l|%-5l|%05l|%.2x|%6.2x", b"    4|4    |00004|00|    00"),
        ("%U @N", b"1700000000.123456789 123456789"),
        ("%A%C%D%E%F%P%R%S", b""),
        (
            "%j",
            '{"tst":"2023-11-14T22:13:20.123456Z","topic":"t/ä","qos":1,"retain":1,"payloadlen":4,"mid":7,'
            '"payload":"\\u0000\ufffdpq"}'.encode(),
        ),
        ("", b""),
    ],
)
def test_output_format(template: str, line: bytes) -> None:
    message: Any = Printed()
    assert compile_format(template)(message, 1_700_000_000_123_456_789) == line


def test_output_format_of_properties() -> None:
    message: Any = WithProperties()
    line = compile_format("%A %C %D %E %F %P %R %S|%3R|%.1P")(message, 0)
    assert line == "3 ä ".encode() + b"\xff 9 0 a:1 b:2 a:3 r 7 8|  r|a"
    assert json.loads(compile_format("%j")(message, 0))["properties"] == {
        "topic-alias": 3,
        "content-type": "ä",
        "correlation-data": "\ufffd",
        "message-expiry-interval": 9,
        "payload-format-indicator": 0,
        "user-properties": {"a": ["1", "3"], "b": "2"},
        "response-topic": "r",
        "subscription-identifier": [7, 8],
    }


def test_output_format_json_payload() -> None:
    message: Any = types.SimpleNamespace(
        topic_name="t", payload=b'{"a": 1}', qos=0, retain=False, packet_id=0, properties={}
    )
    assert compile_format("%J")(message, 0).endswith(b'"payloadlen":8,"payload":{"a":1}}')


def test_incomplete_formats() -> None:
    for template in ("%", "%05", "a@", "\\", "%.", "%-"):
        with pytest.raises(UsageError, match="incomplete"):
            compile_format(template)
