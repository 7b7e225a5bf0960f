"""A scenario: the clients, their behaviour and the thresholds of a test, read from a TOML file.

Owns the keys, their defaults and their limits; the files are in `scenarios/`. An invalid file is a ScenarioError: one
line with the place and the expected value. Adding a key is one field.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from .values import (
    a_list,
    boolean,
    latencies,
    limit,
    one_qos,
    qos_mix,
    rate,
    seconds,
    share,
    shared_filter,
    size_mix,
    text,
    topic_filter,
    topic_name,
    whole,
    work_qos,
)

DIRECTORY = Path(__file__).resolve().parent / "scenarios"
CLASSES = ("sensor", "dashboard", "commander", "churn", "offline", "worker")  # tables of user classes
T = TypeVar("T")


class ScenarioError(Exception):
    """A scenario is invalid; the message is for the user."""


def key(default: object, kind: Callable[[object], Any]) -> Any:
    """A field with its kind; MISSING as the default makes it required."""
    if default is MISSING:
        return field(metadata={"kind": kind})
    return field(default_factory=lambda: kind(default), metadata={"kind": kind})


@dataclass(frozen=True, kw_only=True)
class Group:
    """The keys of all user classes."""

    clients: int = key(MISSING, whole)
    persistent: bool = key(False, boolean)  # a session that outlives connections
    will: bool = key(False, boolean)  # publishes "offline" to `state` if the client dies
    state: str = key("", topic_name)  # a retained "online" is published there


@dataclass(frozen=True, kw_only=True)
class SensorGroup(Group):
    """Publishes; with `command` it replies to commanders, too."""

    topic: str = key("", topic_name)  # none: it only keeps its connection
    interval: float = key(10, seconds)
    jitter: float = key(0.2, share)  # of the interval, either way
    qos: dict[int, float] = key(0, qos_mix)
    payload: dict[int, float] = key(64, size_mix)
    retain: bool = key(False, boolean)
    wait: bool = key(False, boolean)  # publish when all clients have been started
    command: str = key("", topic_name)  # requests are published one level below this topic


@dataclass(frozen=True, kw_only=True)
class DashboardGroup(Group):
    """Subscribes."""

    filters: list[str] = key(MISSING, lambda raw: [topic_filter(each) for each in a_list(raw)])  # one a client, in turn
    qos: int = key(1, one_qos)


@dataclass(frozen=True, kw_only=True)
class CommanderGroup(Group):
    """Sends requests to the sensors whose state it receives, and waits for their replies."""

    devices: str = key(MISSING, topic_filter)  # the states of its sensors
    interval: float = key(5, seconds)
    timeout: float = key(10, seconds)
    payload: dict[int, float] = key(32, size_mix)


@dataclass(frozen=True, kw_only=True)
class ChurnGroup(Group):
    """Connects, subscribes, and vanishes."""

    topic_filter: str = key("{root}/site-{site}/+", topic_filter)
    stay: float = key(5, seconds)
    away: float = key(5, seconds)


@dataclass(frozen=True, kw_only=True)
class OfflineGroup(Group):
    """Has a persistent session, disconnects and reconnects."""

    topic_filter: str = key(MISSING, topic_filter)
    qos: int = key(1, one_qos)
    stay: float = key(10, seconds)
    away: float = key(10, seconds)


@dataclass(frozen=True, kw_only=True)
class WorkerGroup(Group):
    """Does the work of a shared subscription, dies without DISCONNECT, and comes back."""

    filters: list[str] = key(
        MISSING, lambda raw: [shared_filter(each) for each in a_list(raw)]
    )  # one a client, in turn
    qos: int = key(1, work_qos)
    dies_every: float = key(0, seconds)  # mean time between two deaths of a worker; 0 = none dies
    away: float = key(1, seconds)


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The largest counts with which a test passes, or "any"."""

    lost: int | None = key(0, limit)  # QoS 1 and 2
    lost_qos0: int | None = key("any", limit)
    duplicates: int | None = key(0, limit)
    out_of_order: int | None = key(0, limit)
    twice: int | None = key("any", limit)  # work of shared subscriptions, QoS 1
    not_acknowledged: int | None = key(0, limit)
    no_reply: int | None = key("any", limit)
    disconnected: int | None = key("any", limit)
    refused: int | None = key("any", limit)
    failures: int | None = key("any", limit)  # all of the above and all others
    latency: dict[str, float] = key({}, latencies)  # milliseconds


@dataclass(frozen=True, kw_only=True)
class Storm:
    """All clients lose their connections at once and reconnect at once."""

    after: float = key(MISSING, seconds)
    every: float = key(0, seconds)  # seconds between storms; 0 = one storm


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A whole file."""

    description: str = key("", text)
    duration: float = key("1 min", seconds)
    spawn_rate: float = key(200, rate)  # clients started per second
    sites: int = key(10, whole)
    keep_alive: int = key(60, whole)  # seconds
    lost_after: float = key("10 s", seconds)
    sensor: SensorGroup | None = key(None, lambda raw: table(SensorGroup, raw))
    dashboard: DashboardGroup | None = key(None, lambda raw: table(DashboardGroup, raw))
    commander: CommanderGroup | None = key(None, lambda raw: table(CommanderGroup, raw))
    churn: ChurnGroup | None = key(None, lambda raw: table(ChurnGroup, raw))
    offline: OfflineGroup | None = key(None, lambda raw: table(OfflineGroup, raw))
    worker: WorkerGroup | None = key(None, lambda raw: table(WorkerGroup, raw))
    storm: Storm | None = key(None, lambda raw: table(Storm, raw))
    thresholds: Thresholds = key({}, lambda raw: build(Thresholds, raw))

    def __post_init__(self) -> None:
        if not self.clients:
            raise ScenarioError(f"no table has clients; expected one of {', '.join(CLASSES)}")
        sensor = self.sensor
        if self.commander and (
            not sensor or not sensor.command or sensor.command != f"{sensor.state.rpartition('/')[0]}/command"
        ):
            raise ScenarioError("commander: expected sensor.state and sensor.command as in .../state and .../command")
        if self.worker and self.worker.qos == 2 and not self.worker.persistent:
            raise ScenarioError("worker.qos is 2; expected also persistent = true: a clean session ends with its work")
        if any(group.will and not group.state for group in self.groups.values()):
            raise ScenarioError("will: expected also state, the topic to which it is published")

    @property
    def groups(self) -> dict[str, Group]:
        """The groups of the file, by the name of their table."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: group for name, group in named.items() if isinstance(group, Group)}

    @property
    def clients(self) -> int:
        """Number of clients in all groups."""
        return sum(group.clients for group in self.groups.values())


# ---- reading ----


def table(kind: type[T], raw: object) -> T | None:
    return None if raw is None else build(kind, raw)


def build(kind: type[T], raw: object) -> T:
    """The object that a table describes. Raises ScenarioError with the place of the fault below the table."""
    if not isinstance(raw, dict):
        raise ValueError("a table")
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for name in raw:
        if name not in known:
            raise ScenarioError(f"{name}: there is no such key; expected one of {', '.join(known)}")
    values = {}
    for name, each in known.items():
        if name in raw:
            values[name] = read_value(name, each, raw[name])
        elif each.default_factory is MISSING:
            raise ScenarioError(f"{name} is missing")
    return kind(**values)


def read_value(name: str, each: Field[Any], raw: object) -> Any:
    try:
        return each.metadata["kind"](raw)
    except ScenarioError as error:
        raise ScenarioError(f"{name}.{error}") from None
    except ValueError as error:
        raise ScenarioError(f"{name} is {raw!r}; expected {error}") from None


def names() -> list[str]:
    """The scenarios of this package."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def read(name: str) -> str:
    """The text of a scenario, by its name or path. Raises ScenarioError."""
    path = DIRECTORY / f"{name}.toml" if name in names() else Path(name)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        expected = ", ".join(names())
        raise ScenarioError(f"there is no scenario {name!r}; expected a file or one of {expected}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{name}: can't be read: {error}") from None


def parse(text: str, name: str) -> Scenario:
    """The scenario of a text; `name` is for errors. Raises ScenarioError."""
    try:
        return build(Scenario, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: is not TOML: {error}") from None
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from None
