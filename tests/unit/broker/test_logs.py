"""Log lines: text and JSON, and that no value can forge or recolour one."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from flockmq.broker import logs
from flockmq.broker.config.load import allows_colour

HOSTILE = 'a\r\n2026-01-01 00:00:00.000 info    forged\x1b[31m\x7f\x9b\u202e\u2028\ud800 "q" x=y \\'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(logs.ROOT)
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = before
    root.setLevel(before[1])
    ours.setLevel(before[2])


def start(style: str = "text", level: str = "info", stream: io.StringIO | None = None) -> io.StringIO:
    stream = stream or io.StringIO()
    logs.configure(level, style, stream)
    return stream


def test_text_line() -> None:
    out = start()
    logs.get("flockmq.test").info("client connected", client_id="a", address="127.0.0.1:4", qos=1, user=None, empty="")
    pattern = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info    client connected  "
        r'client_id=a address=127.0.0.1:4 qos=1 user=None empty=""\n'
    )
    assert re.fullmatch(pattern, out.getvalue())


@pytest.mark.parametrize(("style", "wanted"), [("text", " a=1 worker=vm-2\n"), ("json", '"worker": "vm-2", "a": 1}\n')])
def test_line_of_a_worker(style: str, wanted: str) -> None:
    out = io.StringIO()
    logs.configure("info", style, out, worker="vm-2")
    logs.get("flockmq.test").info("is ready", a=1)
    assert out.getvalue().endswith(wanted)


def test_json_line() -> None:
    out = start("json")
    logs.get("flockmq.test").warning(
        "dropped", client_id="ä", count=3, rate=0.5, level="x", payload=b"\xff", odd=float("nan")
    )
    line = json.loads(out.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "flockmq.test",
        "event": "dropped",
        "client_id": "ä",
        "count": 3,
        "rate": 0.5,
        "level_": "x",
        "payload": "\\xff",
        "odd": "nan",
    }


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("value", [HOSTILE, HOSTILE.encode("utf-8", "surrogatepass")], ids=["text", "bytes"])
def test_no_value_breaks_the_line(style: str, value: object) -> None:
    out = start(style)
    # Without the lone surrogate: pytest keeps the event as well, and xdist cannot carry one.
    logs.get("flockmq.test").info(HOSTILE.replace("\ud800", ""), client_id=value, **{"na\nme": 1})
    text = out.getvalue()
    assert text.endswith("\n")
    assert text[:-1].replace("\x7f", "" if style == "json" else "\x7f").isprintable()
    assert len(text.splitlines()) == 1
    if style == "json":
        assert "forged" in json.loads(text)["client_id"]


def test_quoting_is_unambiguous() -> None:
    assert logs.quoted("plain/topic-1") == "plain/topic-1"
    assert logs.quoted("a b") == '"a b"'
    assert logs.quoted('a"b') == '"a\\"b"'
    assert logs.quoted("a\nb") == '"a\\nb"'
    assert logs.quoted("a\\nb") == '"a\\\\nb"'


def test_long_values_are_cut() -> None:
    out = start()
    logs.get("flockmq.test").info("x", client_id="c" * 65535)
    assert len(out.getvalue()) < 1200
    assert "(65535 characters)" in out.getvalue()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    for stream, coloured in ((Terminal(), not no_color), (io.StringIO(), False)):
        logs.configure("info", "text", stream, colour=allows_colour())
        logs.get("flockmq.test").error("x")
        assert ("\x1b[31m" in stream.getvalue()) is coloured


def test_level_changes_at_run_time() -> None:
    out = start(level="error")
    log = logs.get("flockmq.test")
    assert not log.enabled(logs.INFO)
    log.info("unseen")
    logs.set_level("debug")
    assert log.enabled(logs.DEBUG)
    log.debug("seen")
    assert "unseen" not in out.getvalue()
    assert "seen" in out.getvalue()


def test_exceptions_follow_indented_and_escaped() -> None:
    out = start()
    try:
        raise ValueError("bad\x1b[31m")
    except ValueError:
        logs.get("flockmq.test").exception("handler failed", client_id="a")
    first, *rest = out.getvalue().splitlines()
    assert "handler failed  client_id=a" in first
    assert rest[-1] == "    ValueError: bad\\x1b[31m"
    assert all(line.startswith("    ") for line in rest)


def test_other_libraries_are_heard_from_warning_up() -> None:
    out = start("json")
    logging.getLogger("asyncio").info("quiet")
    logging.getLogger("asyncio").error("loud %s", "x")
    assert json.loads(out.getvalue())["event"] == "loud x"


def test_configure_twice_writes_once() -> None:
    start()
    out = start()
    logs.get("flockmq.test").info("once")
    assert out.getvalue().count("once") == 1
