"""A deliberate fault of the product.

A mutation replaces text of the Lua library before it is loaded, or a method of a Python class while a run goes on.
Nothing is changed on disk.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Mutation:
    """A fault.

    Attributes:
        name: of it.
        guarantee: that it breaks.
        text: the fault, in words.
        lua: pairs of a text of the library and its replacement; each stands there once.
        methods: class, name of the method, and a function that makes its replacement from it.
        plan: name of the plan that finds it (seeds.PLANS); empty: its own name, if that is one.
        needs_several: only runs of several clusters find it.
        needs_shards: only runs of a cluster with several shards find it.
    """

    name: str
    guarantee: str
    text: str
    lua: tuple[tuple[str, str], ...] = ()
    methods: tuple[tuple[type, str, Callable[[Any], Any]], ...] = field(default=())
    plan: str = ""
    needs_several: bool = False
    needs_shards: bool = False

    def change(self, code: bytes) -> bytes:
        """The library with the fault."""
        for old, new in self.lua:
            if code.count(old.encode()) != 1:
                raise ValueError(f"{self.name}: the library has this text {code.count(old.encode())} times: {old}")
            code = code.replace(old.encode(), new.encode())
        return code

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The product has the fault."""
        with ExitStack() as stack:
            for cls, name, make in self.methods:
                stack.enter_context(patch.object(cls, name, make(getattr(cls, name))))
            yield
