"""A pipe: messages of some topics, through SQL, to a connector."""

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from ...broker.errors import ConfigError, FlockError
from ..analytics.columns import Columns
from ..follow.follower import schema_of
from ..follow.settings import LogSettings, Section, log_settings, open_file, unique_names
from ..follow.target import Progress, Target
from .connector import Connector, Outlet
from .dead_letters import DeadLetters
from .journal import FileJournal, RedisJournal
from .query import Query

EVERY, BATCH_MIB = 1.0, 16
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # part of names of topics and files
# The class of each connector; its module has the name of its table in the file.
CONNECTORS = {
    "postgresql": "PostgreSql",
    "kafka": "Kafka",
    "influxdb": "InfluxDb",
    "clickhouse": "ClickHouse",
    "webhook": "Webhook",
    "mqtt": "Mqtt",
}


@dataclass(frozen=True)
class PipeConfig:
    """A pipe of the file.

    Attributes:
        name: unique.
        filters: topic filters.
        columns: of the payload; None: it is one column.
        query: None: the messages as they are.
        dead_letters: the file of the dead letters.
        position: the file of the position, if there is no Redis.
        kind: of CONNECTORS.
        options: of the connector.
    """

    name: str
    filters: tuple[str, ...]
    columns: Columns | None
    query: Query | None
    dead_letters: Path
    position: Path
    kind: str
    options: Section

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return schema_of(self.columns) if self.query is None else self.query.schema


@dataclass(frozen=True)
class ConnectConfig:
    """The settings of `flockmq connect`: the log, at least one pipe, and where figures are served.

    Attributes:
        metrics: HOST:PORT; empty: nowhere.
    """

    log: LogSettings
    pipes: tuple[PipeConfig, ...]
    metrics: str


def load(path: Path) -> ConnectConfig:
    """Read the file.

    Raises:
        ConfigError: it can't be read, or a key is unknown, missing or wrong.
    """
    file = open_file(path)
    log = log_settings(file, EVERY, BATCH_MIB)
    metrics = file.text("metrics", "")
    pipes = tuple(_pipe(section) for section in file.sections("pipes"))
    file.end()
    unique_names(file, "pipes", [pipe.name for pipe in pipes])
    return ConnectConfig(log, pipes, metrics)


def _pipe(section: Section) -> PipeConfig:
    name = section.text("name")
    if not NAME.fullmatch(name):
        raise section.error(f"name: expected letters, digits, dots, - and _, 64 at most, not {name!r}")
    kinds = [kind for kind in CONNECTORS if kind in section.given]
    if len(kinds) != 1:
        raise section.error(
            "a pipe has one target", f"a table [pipes.NAME] of {', '.join(CONNECTORS)} says where it is"
        )
    options = section.section(kinds[0])
    assert options is not None
    columns = section.columns()
    made = PipeConfig(
        name=name,
        filters=section.filters(),
        columns=columns,
        query=section.value("sql", None, lambda sql: Query(str(sql), schema_of(columns))),
        dead_letters=section.file("dead_letters") or section.path.parent / f"{name}.dead.jsonl",
        position=section.file("position") or section.path.parent / f"{name}.position.json",
        kind=kinds[0],
        options=options,
    )
    section.end()
    return made


def connector_of(config: PipeConfig, log: LogSettings, dead: DeadLetters) -> Connector:
    """The connector of a pipe.

    Raises:
        ConfigError: an option is wrong.
        FlockError: a package is missing.
    """
    try:
        kind = getattr(import_module(f"{__package__}.{config.kind}"), CONNECTORS[config.kind])
    except ImportError as error:
        raise FlockError(f"{error.name} is not installed", "pip install 'flockmq[connect]'") from None
    journal = FileJournal(config.position) if log.redis is None else RedisJournal(log.redis, config.name)
    try:
        return kind(Outlet(config.name, config.schema, dead, journal), config.options)  # type: ignore[no-any-return]
    except ConfigError:
        raise
    except FlockError as error:
        raise config.options.error(str(error)) from None


class Pipe(Target):
    """Runs the SQL of a pipe over each batch, and gives the rows to its connector.

    Args:
        config: of the pipe.
        connector: of the pipe.
        dead: takes messages on which the SQL fails.
    """

    def __init__(self, config: PipeConfig, connector: Connector, dead: DeadLetters) -> None:
        self._query = config.query
        self._connector = connector
        self._dead = dead
        self.newest: float | None = None  # when the newest message that was written was accepted; seconds since 1970

    def progress(self) -> Progress:
        return self._connector.progress()

    def planned(self) -> Progress | None:
        return self._connector.planned()

    def append(self, rows: pa.Table, progress: Progress) -> None:
        messages = rows.sort_by("accepted_at")  # nodes follow one another in a batch, their messages don't
        if not messages.num_rows:
            self._connector.append(self._connector.outlet.schema.empty_table(), progress)
            return
        found = messages if self._query is None else self._query.rows(messages, self._dead.add)
        self._dead.sync()
        self._connector.append(found, progress)
        self.newest = messages["accepted_at"][-1].as_py().timestamp()

    def close(self) -> None:
        self._connector.close()
