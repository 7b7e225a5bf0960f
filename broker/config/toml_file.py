"""The configuration file: TOML, with the line of each setting for error messages."""

import re
import tomllib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from ..errors import ConfigError
from .keys import KEYS, LISTENER_KEYS, SECTIONS, TABLES, Key, check_listener_name, read, unknown
from .schema import PER_LISTENER


class TomlFile:
    """A configuration file that has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_text("utf-8")
            self._document = tomllib.loads(text)
        except OSError as error:
            raise ConfigError(
                f"cannot read the configuration file {path}: {error.strerror}",
                "`flockmq sample-config` prints one to start from",
            ) from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{path}:{line} is not UTF-8: {error.reason}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        self._places = _places(text)

    def keys(self) -> Iterator[tuple[Key, object, str]]:
        """The settings outside of the tables of listeners: key, value, place."""
        for name, raw in _flatten(self._document, SECTIONS):
            if name != "listeners":
                yield self._key(name, raw, "", KEYS)

    def listeners(self) -> Iterator[tuple[str, Key, object, str]]:
        """The settings of each [listeners.NAME] table: name, key, value, place."""
        tables = self._document.get("listeners", {})
        if not isinstance(tables, dict):
            raise ConfigError(f"listeners ({self._path}): expected tables such as [listeners.public]")
        for name, table in tables.items():
            prefix = f"{TABLES}{name}."
            origin = self._place(prefix[:-1])
            check_listener_name(name if isinstance(table, dict) else f"{name} = {table!r}", origin)
            if "listen" not in table:
                raise ConfigError(f"listeners.{name} ({origin}) has no addresses", 'give it `listen = ["HOST:PORT"]`')
            for key, raw in _flatten(table, PER_LISTENER):
                yield (name, *self._key(key, raw, prefix, LISTENER_KEYS))

    def _place(self, name: str) -> str:
        return f"{self._path}:{self._places[name]}" if name in self._places else str(self._path)

    def _key(self, name: str, raw: object, prefix: str, known: Mapping[str, Key]) -> tuple[Key, object, str]:
        origin = self._place(prefix + name)
        key = known.get(name)
        if key is None:
            raise unknown("key", name, origin, known, prefix)
        return key, read(key, raw, origin, is_text=False), origin


def _flatten(document: Mapping[str, object], sections: Container[str]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name in sections and isinstance(value, dict):
            yield from ((f"{name}.{inner}", raw) for inner, raw in value.items())
        else:
            yield name, value


def _places(text: str) -> dict[str, int]:
    """The line of each key and table; tomllib keeps none, so these are the lines that set them, as people write it."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line):
            section = header[1].replace('"', "")
            found.setdefault(section, number)
        elif setting := re.match(r"\s*([\w\".-]+)\s*=", line):
            name = setting[1].replace('"', "")
            found.setdefault(name, number)
            found.setdefault(f"{section}.{name}", number)
    return found
