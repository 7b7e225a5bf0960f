"""Structured logging on the standard library: an event, then named values.

Text for people (time, level, event, key=value; colour only on a terminal) or one JSON object a line. Rules:
- One record is one line (as text, an indented traceback follows), whatever a client identifier holds: unprintable
  characters (CR, LF, ESC, direction marks) are escaped everywhere, and long values are cut.
- Nothing is built for a line below the level: check `enabled` first where arguments are expensive.
- Records of other libraries go through the same handler, from level warning up.
"""

import json
import logging
import math
import sys
import time
from typing import Any, TextIO

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

ROOT = "flockmq"
MAX_VALUE = 1000  # characters of one value that are shown
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}
COLOURS = {DEBUG: "\x1b[2m", INFO: "\x1b[32m", WARNING: "\x1b[33m", ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
RESET = "\x1b[0m"


class Log:
    """Writes events with named values under one logger name."""

    __slots__ = ("_logger", "enabled")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self.enabled = logger.isEnabledFor  # log.enabled(logs.DEBUG)

    def debug(self, event: str, /, **values: object) -> None:
        self._write(DEBUG, event, values)

    def info(self, event: str, /, **values: object) -> None:
        self._write(INFO, event, values)

    def warning(self, event: str, /, **values: object) -> None:
        self._write(WARNING, event, values)

    def error(self, event: str, /, **values: object) -> None:
        self._write(ERROR, event, values)

    def exception(self, event: str, /, **values: object) -> None:
        """As `error`, with the traceback of the exception being handled."""
        self._write(ERROR, event, values, exc_info=True)

    def _write(self, level: int, event: str, values: dict[str, object], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, exc_info=exc_info, extra={"values": values})


def get(name: str) -> Log:
    """A logger; names start with "flockmq." to follow the configured level."""
    return Log(logging.getLogger(name))


def configure(
    level: str, style: str, stream: TextIO | None = None, *, colour: bool = True, worker: str = ""
) -> logging.Handler:
    """Send all records to `stream` (standard error) as "text" or "json"; replaces the handler of an earlier call.

    Args:
        level: debug, info, warning or error.
        style: "text" or "json".
        stream: standard error unless given.
        colour: whether text on a terminal is coloured.
        worker: the name of the node, if its lines are among lines of others; empty: they are not.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    is_coloured = colour and handler.stream.isatty()
    formatter = JsonFormatter(worker) if style == "json" else TextFormatter(colour=is_coloured, worker=worker)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, (JsonFormatter, TextFormatter))]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(WARNING)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """Change the level at run time: debug, info, warning or error."""
    logging.getLogger(ROOT).setLevel(LEVELS[level])


def level() -> str:
    """The present level."""
    found = logging.getLogger(ROOT).getEffectiveLevel()
    return next(name for name, number in LEVELS.items() if number == found)


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 info    client connected  client_id=a address=127.0.0.1:40000`."""

    def __init__(self, *, colour: bool = False, worker: str = "") -> None:
        super().__init__()
        self._colour = colour
        self._own = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower():7}"
        if self._colour:
            level = f"{COLOURS.get(record.levelno, '')}{level}{RESET}"
        line = f"{stamp}.{int(record.msecs):03} {level} {escaped(record.getMessage())}"
        values: dict[str, Any] = {**getattr(record, "values", {}), **self._own}
        if values:
            line += "  " + " ".join(f"{escaped(name)}={quoted(value)}" for name, value in values.items())
        if record.exc_info:
            lines = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    {escaped(text)}" for text in lines)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, event, perhaps worker, then the values under their names."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._own = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._own,
        }
        values: dict[str, object] = getattr(record, "values", {})
        for name, value in values.items():
            line[f"{name}_" if name in line else name] = plain(value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def plain(value: object) -> object:
    """`value` in the types of JSON: numbers stay numbers, the rest becomes text of bounded length."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return cut(as_text(value))


def quoted(value: object) -> str:
    """`value` as one word, in quotes where it could be read as more than that."""
    text = cut(as_text(value))
    if text and text.isprintable() and not any(char in ' "=\\' for char in text):
        return text
    backslashed = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped(backslashed)}"'


def as_text(value: object) -> str:
    """Text of any value; bytes are read as UTF-8 as far as they are."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def cut(text: str) -> str:
    """At most MAX_VALUE characters of `text`, and their number."""
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}... ({len(text)} characters)"


def escaped(text: str) -> str:
    """`text` with everything unprintable as an escape, so that it cannot break or recolour a line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
