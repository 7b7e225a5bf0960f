"""The interface of schemas of payloads: whether a payload fits, and its values as a row."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

from .types import Columns

MAX_VALUES = 1_000_000  # of a payload: with some schemas a few bytes are thousands of values


class Misfit(ValueError):
    """A payload does not fit its schema; the text is the reason."""


class Room:
    """The values that a payload may still become."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def take(self, count: int) -> None:
        """Raises Misfit: there are too many."""
        self.left -= count
        if self.left < 0:
            raise Misfit(f"the payload has more than {MAX_VALUES} values")


class PayloadSchema(ABC):
    """A schema of payloads. It can be pickled: Spark sends it to its executors."""

    def prepare(self) -> None:  # noqa: B027, most kinds need nothing
        """Make what `check` needs and what the rest does not. Raises ValueError: the schema is wrong."""

    @abstractmethod
    def check(self, payload: bytes) -> None:
        """Raises Misfit: the payload does not fit."""


class RowSchema(PayloadSchema):
    """A schema whose payloads are rows of a table."""

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """The columns of a row. Raises ValueError: the schema describes no row."""

    @abstractmethod
    def row(self, payload: bytes) -> dict[str, Any]:
        """The value of each column; of a `Map` a list of pairs, of a time an int or a `datetime` value.

        Raises:
            Misfit: the payload does not fit.
        """


def library(module: str, package: str) -> Any:
    """A module that only schemas of one kind need. Raises ValueError: its package is not installed here."""
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"the schema needs the package {package} on this machine: pip install {package}") from None
