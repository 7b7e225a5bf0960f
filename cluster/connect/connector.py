"""A connector: writes the rows of a pipe to one kind of system."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from ..follow.settings import Section
from ..follow.target import Progress, Target
from .dead_letters import DeadLetters
from .journal import Journal
from .refusals import by_halves


@dataclass(frozen=True)
class Outlet:
    """What a connector gets of its pipe.

    Attributes:
        pipe: its name.
        schema: of the rows.
        dead: takes rows that are refused.
        journal: of the positions of targets that can't keep them.
    """

    pipe: str
    schema: pa.Schema
    dead: DeadLetters
    journal: Journal


class Connector(Target):
    """A connector. It keeps the position with the rows, so each row is there once.

    Args:
        outlet: of the pipe.
        options: the table of the file that is named as the connector.

    Raises:
        ConfigError: an option is wrong, or the rows lack a column.
    """

    def __init__(self, outlet: Outlet, options: Section) -> None:
        self.outlet = outlet

    def split(self, rows: pa.Table, send: Callable[[pa.Table], None]) -> None:
        """Send rows. If they are refused their halves are sent, down to single rows, which are dead letters then."""
        by_halves(rows, send, self.outlet.dead.add)
        self.outlet.dead.sync()


class JournaledConnector(Connector):
    """A connector whose target can't keep a position: a journal does. After a crash the same rows are sent again, under
    the same number."""

    def progress(self) -> Progress:
        return self.outlet.journal.read().done

    def planned(self) -> Progress | None:
        return self.outlet.journal.read().planned

    def append(self, rows: pa.Table, progress: Progress) -> None:
        self.outlet.journal.plan(progress)
        self.send(rows, progress.number)
        self.outlet.journal.finish(progress)

    def close(self) -> None:
        self.outlet.journal.close()

    @abstractmethod
    def send(self, rows: pa.Table, number: int) -> None:
        """Send the rows of a batch.

        Args:
            rows: of the batch; the same for the same number.
            number: of the batch.
        """


def need(options: Section, schema: pa.Schema, names: Iterable[str]) -> None:
    """Check that rows have columns. Raises ConfigError."""
    for name in names:
        if name not in schema.names:
            raise options.error(f"the rows have no column {name}", f"their columns are {', '.join(schema.names)}")
