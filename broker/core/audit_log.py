"""The audit log: each change of the broker, with its author, its origin and its result.

A record is a hidden message, so the store and all nodes of a cluster have it, and a restart keeps it. It is written
before the change is made, without a result, and again when the change has ended: a crash in between leaves a record
whose result is unknown, and never a change without a record. Nothing deletes or alters a record except its age, and the
bound of bytes, which drops the oldest records first: of logins, refusals and reading agents before those of changes.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from .. import logs
from ..config.admin_config import AuditConfig
from .audit_record import DONE, Record, packed, public
from .data_plane import DataPlane
from .hidden_messages import HiddenMessages

TOPIC = b"$SYS/broker/events/audit"
DAY = 86_400  # seconds
EFFECT_SECONDS = 10.0  # after which a record that was written is there
MINOR = "m"  # in the id of a record that is dropped before others
PARTS = 16  # of the bound of bytes: after so many bytes a node looks whether the records exceed it

log = logs.get("flockmq.audit")


class AuditLog:
    """The records of this node and of all others.

    Args:
        data_plane: of the node.
        node: its name.
        config: returns the bounds.
        export: sends the JSON of a record that has ended elsewhere, such as to syslog.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        node: str,
        config: Callable[[], AuditConfig],
        export: Callable[[dict[str, Any]], object] = lambda record: None,
    ) -> None:
        self._data_plane = data_plane
        self._messages = HiddenMessages(data_plane, "audit")
        self._node = node
        self._config = config
        self._export = export
        self._numbers = itertools.count()
        self._unchecked: dict[str, float] = {}  # names of records -> when they have to be there
        self._written = 0  # bytes since the bound was looked at

    # ---- writing ----

    def begin(self, operation: str, arguments: object = None, *, minor: bool = False, **author: str) -> Record:
        """Write the record of a change that is about to be made.

        Args:
            operation: name of the change.
            arguments: of the change, as JSON has them; secrets are left out.
            minor: whether it changes nothing, such as a login: a flood of such records drops no record of a change.
            author: `by`, `role`, `credential`, `tenant`, `address` and `via` of the record; empty unless given.
        """
        now = time.time()
        number = f"{int(now * 1000):013}-{next(self._numbers):06}{MINOR if minor else ''}-{self._node}"
        rest = {"by": "", "role": "", "credential": "", "tenant": "", "address": "", "via": "", **author}
        record = Record(number, round(now, 3), self._node, operation=operation, arguments=public(arguments), **rest)
        self._write(record)
        return record

    def end(self, record: Record, result: str, detail: str = "", before: object = None, after: object = None) -> None:
        """Complete the record of a change.

        Args:
            record: as `begin` returned it.
            result: DONE, REFUSED or FAILED.
            detail: reason of a refusal or a failure.
            before, after: of the changed thing, as JSON has it; None: there is none. Secrets are left out.
        """
        record.result, record.detail = result, detail
        record.before, record.after = public(before), public(after)
        shown = asdict(record)
        if self._config().publish:
            event = packed({"event": "audit", **shown})
            self._data_plane.router.publish(TOPIC, event, 1, False, publisher=b"")  # which the log of messages takes
        self._write(record)
        self._export(shown)

    def add(
        self,
        operation: str,
        arguments: object = None,
        result: str = DONE,
        detail: str = "",
        *,
        minor: bool = False,
        **author: str,
    ) -> None:
        """Write the record of a change that was made at once."""
        self.end(self.begin(operation, arguments, minor=minor, **author), result, detail)

    def _write(self, record: Record) -> None:
        data = packed(asdict(record))
        name = _name(record.id)
        self._messages.put(name, data, seconds=max(1, int(self._config().seconds)))
        self._check(name)
        self._written += len(data)
        if self._written > self._config().max_bytes // PARTS:
            self.trim()

    def _check(self, name: str) -> None:
        """Report records that were written a while ago and are not there: in a cluster a record takes effect later."""
        now = time.monotonic()
        self._unchecked[name] = now + EFFECT_SECONDS
        for other in [each for each, at in self._unchecked.items() if at <= now]:
            del self._unchecked[other]
            if self._messages.find(other) is None:
                log.error("a change is not on record: there is no room for retained messages", record=other)

    def trim(self) -> None:
        """Drop the oldest records beyond the bound of bytes, minor ones before those of changes."""
        self._written = 0
        found = self._messages.all()
        excess = sum(map(len, found.values())) - self._config().max_bytes
        for name in sorted(found, key=lambda name: (not _is_minor(name), name)):
            if excess <= 0:
                break
            excess -= len(found[name])
            self._messages.remove(name)

    # ---- reading ----

    def newest(self, before: str = "") -> Iterator[Record]:
        """The records, the newest first.

        Args:
            before: the id of a record: only older records; empty: all.
        """
        last = _seconds(before) if before else time.time() + DAY  # clocks of nodes differ
        for day in range(int(last // DAY), int((time.time() - self._config().seconds) // DAY) - 1, -1):
            found = HiddenMessages(self._data_plane, f"audit/{_day(day * DAY)}").all()
            for number in sorted(found, reverse=True):
                if before and number >= before:
                    continue
                try:
                    yield Record.parse(found[number])
                except (ValueError, TypeError) as error:
                    log.error("a record of the audit log is unreadable", id=number, error=error)


def _name(number: str) -> str:
    """The name of the hidden message of a record: records of a day are below one level."""
    return f"{_day(_seconds(number))}/{number}"


def _is_minor(name: str) -> bool:
    """Whether it is the name of a minor record."""
    return name.rpartition("/")[2].split("-")[1].endswith(MINOR)


def _seconds(number: str) -> float:
    """The time in the id of a record."""
    return int(number.partition("-")[0]) / 1000


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
