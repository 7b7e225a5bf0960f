"""The story of a run: the acts of each part, in order, with virtual times."""

from collections.abc import Callable
from typing import NamedTuple

from tests.simulation.clock import NS


class Line(NamedTuple):
    """One thing that happened."""

    time: int  # nanoseconds
    who: str
    text: str

    def __str__(self) -> str:
        return f"{self.time / NS:10.6f}  {self.who:14} {self.text}"


class Story:
    """Lines in order; packets and commands only if `detailed`, since they cost most of the time of a run."""

    def __init__(self, detailed: bool = False) -> None:
        self.detailed = detailed
        self.lines: list[Line] = []

    def tell(self, time: int, who: str, text: str) -> None:
        """Add a line."""
        self.lines.append(Line(time, who, text))

    def detail(self, time: int, who: str, text: Callable[[], str]) -> None:
        """Add a line, if details are asked for."""
        if self.detailed:
            self.lines.append(Line(time, who, text()))
