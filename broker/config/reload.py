"""Reload: the differences between two configurations, and the changes that a running node applies."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from .keys import KEYS, LISTENER_KEYS, TABLES, Key
from .schema import Config


class Change(NamedTuple):
    """One key whose value differs."""

    key: Key
    old: object  # None in the table of a listener: not set there
    new: object
    listener: str = ""  # whose table it is in

    def __str__(self) -> str:
        old, new = ("not set" if v is None else self.key.kind.write(v) for v in (self.old, self.new))
        return f"{f'{TABLES}{self.listener}.' if self.listener else ''}{self.key.name}: {old} -> {new}"


class Diff(NamedTuple):
    """The differences between two configurations."""

    reloadable: tuple[Change, ...]
    needs_restart: tuple[Change, ...]


def diff(old: Config, new: Config) -> Diff:
    """The changes of a reload: some take effect, the others need a restart."""
    changes = [Change(key, key.of(old), key.of(new)) for key in KEYS.values() if key.of(old) != key.of(new)]
    changes += _table_changes(dict(old.tables), dict(new.tables))
    return Diff(
        tuple(change for change in changes if change.key.reloadable),
        tuple(change for change in changes if not change.key.reloadable),
    )


def _table_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        before, after = dict(old.get(name, ())), dict(new.get(name, ()))
        # A listener that is added or removed is shown by its addresses.
        for key in LISTENER_KEYS.values() if before and after else (LISTENER_KEYS["listen"],):
            if before.get(key.name) != after.get(key.name):
                yield Change(key, before.get(key.name), after.get(key.name), name)


def follow(old: Config, changes: Diff) -> Config:
    """`old` with the reloadable changes applied: the configuration of a node after SIGHUP."""
    for key, _, value, listener in changes.reloadable:
        if listener:
            tables = {name: dict(table) for name, table in old.tables}
            tables[listener] = {**tables[listener], key.name: value}
            old = replace(old, tables=tuple((name, _without_none(table)) for name, table in tables.items()))
        elif key.section:
            section = replace(getattr(old, key.section), **{key.field.name: value})
            old = replace(old, **{key.section: section})
        else:
            old = replace(old, **{key.name: cast(Any, value)})
    return old


def _without_none(table: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in table.items() if value is not None)
