"""The effective configuration: flags win over the environment, the environment over the file, the file over defaults.

Only this module reads the environment.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .checks import check
from .keys import (
    KEYS,
    LISTENER_KEYS,
    PREFIX,
    SECTIONS,
    TABLES,
    VARIABLES,
    Key,
    check_listener_name,
    read,
    unknown,
)
from .schema import Config
from .toml_file import TomlFile

FILE_VARIABLE = "FLOCKMQ_CONFIG"
# Variables with this prefix that are not keys: of the build, of the tests, and variables that Kubernetes sets in every
# container beside a Service called flockmq or flockmq-something.
FOREIGN_VARIABLE = re.compile(
    r"FLOCKMQ_(CONFIG|TOKEN_FILE|SANITIZE|TEST_.*|(.*_)?SERVICE_(HOST|PORT(_.*)?)|(.*_)?PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)"
)


def environment() -> dict[str, str]:
    """The environment of the process, for the processes that it starts and for variables of others."""
    return dict(os.environ)


def allows_colour() -> bool:
    """Whether the environment allows colour on a terminal: https://no-color.org."""
    return not os.environ.get("NO_COLOR")


class Loaded(NamedTuple):
    """A configuration and, for each key, the origin of its value ("default", "file.toml:3", ...)."""

    config: Config
    origins: dict[str, str]


def load(
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Config:
    """The effective configuration. Raises ConfigError."""
    return trace(overrides, env, file).config


def trace(
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Loaded:
    """As `load`, with the origin of every value.

    `overrides` maps key names to values of flags (text, or a list of text); `env` is the process's environment unless
    given; without `file`, FLOCKMQ_CONFIG may name one. Raises ConfigError.
    """
    environment = os.environ if env is None else env
    path = file or environment.get(FILE_VARIABLE)
    values: dict[str, object] = {}
    origins = dict.fromkeys(KEYS, "default")
    document = TomlFile(Path(path)) if path else None
    sources = (
        *(document.keys() if document else ()),
        *_from_environment(environment),
        *_from_overrides(overrides or {}),
    )
    for key, value, origin in sources:
        values[key.name] = value
        origins[key.name] = origin
    tables: dict[str, dict[str, object]] = {}
    listeners = document.listeners() if document else ()
    for name, key, value, origin in (*listeners, *_tables_from_overrides(overrides or {})):
        tables.setdefault(name, {})[key.name] = value
        origins[f"listeners.{name}.{key.name}"] = origin
    frozen = tuple((name, tuple(table.items())) for name, table in tables.items())
    config = replace(_build(values), tables=frozen)
    check(config, origins)
    return Loaded(config, origins)


def _build(values: Mapping[str, object]) -> Config:
    grouped: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    for name, value in values.items():
        grouped[KEYS[name].section][KEYS[name].field.name] = value
    sections: dict[str, Any] = {section: cls(**grouped[section]) for section, cls in SECTIONS.items()}
    return Config(**grouped[""], **sections)


def _from_overrides(overrides: Mapping[str, object]) -> Iterator[tuple[Key, object, str]]:
    for name, raw in overrides.items():
        if not name.startswith(TABLES):
            yield (*_override(name, raw, "", KEYS), "command line")


def _tables_from_overrides(overrides: Mapping[str, object]) -> Iterator[tuple[str, Key, object, str]]:
    for full, raw in overrides.items():
        if full.startswith(TABLES):
            name, _, key = full.removeprefix(TABLES).partition(".")
            check_listener_name(name, "the command line")
            yield (name, *_override(key, raw, f"{TABLES}{name}.", LISTENER_KEYS), "command line")


def _override(name: str, raw: object, prefix: str, known: Mapping[str, Key]) -> tuple[Key, object]:
    key = known.get(name)
    if key is None:
        raise unknown("key", name, "the command line", known, prefix)
    return key, read(key, raw, "the command line", is_text=True)


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[Key, object, str]]:
    for variable in sorted(name for name in env if name.startswith(PREFIX)):
        key = VARIABLES.get(variable)
        if key is not None:
            yield key, read(key, env[variable], f"environment variable {variable}", is_text=True), variable
        elif not FOREIGN_VARIABLE.fullmatch(variable):
            raise unknown("variable", variable, "the environment", VARIABLES)
