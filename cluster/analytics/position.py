"""A place in a log of messages: the id of the last entry that was read, or the place before the first."""

import re
from typing import NamedTuple

_ID = re.compile(r"(\d{1,20})-(\d{1,20})")
MAX = (1 << 64) - 1


class Position(NamedTuple):
    """Everything up to it has been read; positions of a log are ordered as its entries."""

    ms: int  # the node's clock, since 1970
    total: int  # bytes of all blocks of the log up to here

    @classmethod
    def parse(cls, text: str | bytes) -> "Position":
        """From an entry's id. Raises ValueError."""
        found = _ID.fullmatch(text.decode() if isinstance(text, bytes) else text)
        if found is None or max(numbers := (int(found[1]), int(found[2]))) > MAX:
            raise ValueError(f"{text!r} is not an id of an entry, <ms>-<bytes>")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.ms}-{self.total}"


START = Position(0, 0)
