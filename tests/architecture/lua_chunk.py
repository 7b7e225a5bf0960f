"""Reads compiled code of Lua 5.1: which globals, locals and upvalues its functions have."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import lupa.lua51

HEADER = 12  # bytes
GET_GLOBAL, SET_GLOBAL = 5, 7  # opcodes
NIL, BOOLEAN, NUMBER, STRING = 0, 1, 3, 4  # types of constants


@dataclass(frozen=True)
class Function:
    """A function, or the whole chunk.

    Attributes:
        line: in which it begins; 0: the chunk.
        most_locals: that exist at the same time.
        upvalues: their number.
        reads: names of globals that it reads.
        writes: names of globals that it sets.
    """

    line: int
    most_locals: int
    upvalues: int
    reads: frozenset[str]
    writes: frozenset[str]


def functions(code: str) -> list[Function]:
    """All functions of some source text, the inner ones first. Raises lupa.LuaError if it is no valid Lua."""
    lua = lupa.lua51.LuaRuntime(encoding=None)
    dumped: bytes = lua.execute(b"return string.dump(assert(loadstring(...)))", code.encode())
    return [*_Reader(dumped[HEADER:]).function()]


class _Reader:
    """Reads the parts of a chunk, one after the other.

    Args:
        data: the chunk without its header.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return int(value)

    def _text(self) -> str:
        size = self._take("<Q")
        self._at += size
        return self._data[self._at - size : self._at - 1].decode("latin-1") if size else ""

    def _constant(self) -> str:
        """A constant; empty if it is no text."""
        kind = self._take("B")
        if kind == STRING:
            return self._text()
        self._at += {NIL: 0, BOOLEAN: 1, NUMBER: 8}[kind]
        return ""

    def function(self) -> Iterator[Function]:
        """The functions in this one, then itself."""
        self._text()  # the source
        line, _ = self._take("<i"), self._take("<i")
        upvalues = self._take("B")
        self._at += 3  # parameters, whether there may be more, registers
        steps = [self._take("<I") for _ in range(self._take("<i"))]
        constants = [self._constant() for _ in range(self._take("<i"))]
        for _ in range(self._take("<i")):
            yield from self.function()
        for _ in range(self._take("<i")):
            self._at += 4  # the line of a step
        spans = [(self._text(), self._take("<i"), self._take("<i"))[1:] for _ in range(self._take("<i"))]
        for _ in range(self._take("<i")):
            self._text()  # the name of an upvalue
        yield Function(
            line,
            max((sum(first <= begin < end for first, end in spans) for begin, _ in spans), default=0),
            upvalues,
            frozenset(constants[step >> 14] for step in steps if step & 63 == GET_GLOBAL),
            frozenset(constants[step >> 14] for step in steps if step & 63 == SET_GLOBAL),
        )
