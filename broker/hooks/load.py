"""Loads hooks by the names in the configuration."""

import sys
from collections.abc import Iterable
from importlib import import_module
from inspect import isclass
from typing import Any

from ..errors import UsageError
from .api import Hooks


def load(names: Iterable[str]) -> list[Hooks]:
    """The objects with these names, MODULE:OBJECT each; a class is called to make one.

    Raises:
        UsageError: a name leads to no object, or to one that is no Hooks.
    """
    found = []
    for name in names:
        if "" not in sys.path:
            sys.path.insert(0, "")  # the directory in which the node was started
        module, _, path = name.partition(":")
        try:
            thing: Any = import_module(module)
            for part in path.split("."):
                thing = getattr(thing, part)
            thing = thing() if isclass(thing) else thing
        except Exception as error:
            raise UsageError(
                f"hooks {name}: {type(error).__name__}: {error}", "expected MODULE:OBJECT that Python can import"
            ) from error
        strange = [part for part in dir(thing) if not part.startswith("_") and callable(getattr(thing, part))]
        if not isinstance(thing, Hooks):
            raise UsageError(
                f"hooks {name}: {type(thing).__name__} is no subclass of flockmq.hooks.Hooks",
                f"it has {', '.join(strange) or 'no methods'}; make it `class MyHooks(flockmq.hooks.Hooks)`",
            )
        found.append(thing)
    return found
