"""A state with one writer: it changes only as a table says, and each change has a line in the log at level debug."""

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from . import logs

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)

ILLEGAL = "illegal transition"  # the event in the log

log = logs.get("flockmq.state")


class IllegalTransition(RuntimeError):
    """An event that the table does not have for the state: a fault of the program. The state is as before."""


class StateMachine(Generic[S, E]):
    """A state.

    Args:
        of: the name of its owner, for the log.
        table: the next state by state and event; a value of `S` or `E` is a word for people.
        first: the state at the beginning.

    Attributes:
        state: the present state; only `take` changes it.
    """

    def __init__(self, of: str, table: Mapping[tuple[S, E], S], first: S) -> None:
        self._of = of
        self._table = table
        self.state = first

    def take(self, event: E) -> None:
        """Something has happened: go on to the next state.

        Raises:
            IllegalTransition: it can't happen in the present state.
        """
        before = self.state
        after = self._table.get((before, event))
        if after is None:
            log.error(ILLEGAL, of=self._of, state=before.value, event=event.value)
            raise IllegalTransition(f"{self._of} is {before.value}: {event.value}")
        self.state = after
        log.debug("state", of=self._of, before=before.value, event=event.value, now=after.value)
