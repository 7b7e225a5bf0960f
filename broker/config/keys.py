"""Configuration keys, derived from the fields of the schema; and how one value is read, wherever it stands.

A wrong value raises `ConfigError` with one line: key, value, place, and the expected value.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from typing import Any, NamedTuple, cast

from ..errors import ConfigError, nearest
from .kinds import Addresses, Kind, Networks, PythonObjects, Texts, TopicFilters
from .schema import PER_LISTENER, Config

PREFIX = "FLOCKMQ_"
LISTS = (Addresses, Networks, PythonObjects, Texts, TopicFilters)
TOML_LIST = re.compile(r"""\s*\[\s*["'].*\]\s*""", re.DOTALL)
TOP_OF_LISTENER = ("listen", "proxied", "socket_mode")  # keys of a [listeners.NAME] table outside of sections


class Key(NamedTuple):
    """One configuration key, as derived from its field."""

    name: str  # "limits.max_inflight", or "listen" at the top
    section: str  # "limits", or "" at the top
    field: Field[Any]

    @property
    def kind(self) -> Kind:
        return cast(Kind, self.field.metadata["kind"])

    @property
    def help(self) -> str:
        return cast(str, self.field.metadata["help"])

    @property
    def reloadable(self) -> bool:
        return cast(bool, self.field.metadata["reloadable"])

    @property
    def flag(self) -> str:
        return cast(str, self.field.metadata["flag"])

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace(".", "_").upper()

    def of(self, config: Config) -> object:
        """This key's value in `config`."""
        owner = getattr(config, self.section) if self.section else config
        return getattr(owner, self.field.name)


def _keys() -> Iterator[Key]:
    for top in fields(Config):
        if "kind" in top.metadata:
            yield Key(top.name, "", top)
        elif top.name != "tables":
            for inner in fields(cast(Any, top.default)):
                yield Key(f"{top.name}.{inner.name}", top.name, inner)


KEYS = {key.name: key for key in _keys()}
SECTIONS: dict[str, type[Any]] = {
    key.section: type(getattr(Config, key.section)) for key in KEYS.values() if key.section
}
LISTENER_KEYS = {name: key for name, key in KEYS.items() if name in TOP_OF_LISTENER or key.section in PER_LISTENER}
TABLES = "listeners."  # begins the full name of a key of a [listeners.NAME] table
LISTENER_NAME = re.compile(r"[a-z0-9_-]{1,32}", re.ASCII)
VARIABLES = {key.variable: key for key in KEYS.values()}


def check_listener_name(name: str, origin: str) -> None:
    """Raises ConfigError: no table may have this name."""
    if not LISTENER_NAME.fullmatch(name) or name == "default":
        raise ConfigError(
            f"listeners.{shorten(name)} ({origin}): expected a table named by small letters, digits, - and _",
            'such as [listeners.public]; "default" is that of `listen`',
        )


def read(key: Key, raw: object, origin: str, *, is_text: bool) -> object:
    """The value of a key as it stands at `origin`. Raises ConfigError."""
    try:
        # A repeatable flag arrives as a list: of the same form as TOML's.
        return key.kind.read(raw, is_text=is_text and isinstance(raw, str))
    except (ValueError, OverflowError) as error:
        wanted = str(error) if type(error) is ValueError and str(error) else key.kind.expected
        text = shorten(key.kind.shown(raw))
        hint = _list_hint(key.name, raw) if is_text and isinstance(key.kind, LISTS) else ""
        raise ConfigError(f"{key.name} = {text} ({origin}): expected {wanted}", hint) from None


def _list_hint(name: str, raw: object) -> str:
    """How a list that is written as in TOML is written as text; empty: it is not."""
    if not (isinstance(raw, str) and TOML_LIST.fullmatch(raw)):
        return ""
    plain = ",".join(part.strip().strip("\"'") for part in raw.strip()[1:-1].split(","))
    return f"outside of the file commas separate the elements of a list, without brackets and quotes: {name}={plain}"


def shorten(text: str) -> str:
    """A text for an error message."""
    return text if len(text) <= 80 else text[:77] + "..."


def unknown(kind: str, name: str, origin: str, known: Mapping[str, Key], prefix: str = "") -> ConfigError:
    """The error for a key or variable that does not exist, with the nearest one that does. `prefix`: of a table."""
    sections = {key.section for key in known.values() if key.section}
    shown = shorten(repr(prefix + name))[1:-1]
    if name in sections:
        return ConfigError(f"{shown} ({origin}): expected a section, [{shown}], with keys of its own")
    near = _nearest_variable(name, known) if name.startswith(PREFIX) else _nearest_key(name, known, sections)
    hint = f"did you mean {near}?" if near else "`flockmq sample-config` shows every key"
    return ConfigError(f"unknown {kind} {shown} ({origin})", hint)


def _nearest_variable(name: str, known: Iterable[str]) -> str:
    near = nearest(name.removeprefix(PREFIX), [full.removeprefix(PREFIX) for full in known])
    return PREFIX + near if near else ""


def _nearest_key(name: str, known: Iterable[str], sections: set[str]) -> str:
    """The key or section that is most like this name; empty: none is."""
    section, _, own = name.rpartition(".")
    right = next((full for full in known if full.rpartition(".")[2] == own), "")  # in the wrong section, or in none
    if section in sections:
        near = nearest(own, [full.rpartition(".")[2] for full in known if full.startswith(f"{section}.")])
        return f"{section}.{near}" if near else right
    near = nearest(section or own, sections)
    if section and f"{near}.{own}" in known:
        return f"{near}.{own}"
    if near:
        return f"[{near}]"
    return right or nearest(own, [full for full in known if "." not in full])
