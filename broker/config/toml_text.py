"""A configuration as TOML; passwords in it are masked."""

from collections.abc import Callable

from .keys import KEYS, TABLES, Key
from .schema import Config


def to_toml(config: Config, origin: Callable[[str], str] | None = None, *, changed: bool = False) -> str:
    """A configuration as TOML.

    Args:
        config: to be written.
        origin: returns the comment of a key by its full name; None: there are no comments.
        changed: only the keys whose values are not the defaults.
    """
    lines: list[str] = []
    section = ""

    def add(key: Key, value: object, name: str, prefix: str = "") -> None:
        nonlocal section
        if prefix + key.section != section and key.section:
            section = prefix + key.section
            lines.extend(("", f"[{section}]"))
        setting = f"{key.field.name} = {key.kind.write(value)}"
        lines.append(f"{setting:<40} # {origin(name)}" if origin is not None else setting)

    for key in KEYS.values():
        if not (changed and key.of(config) == key.field.default):
            add(key, key.of(config), key.name)
    for name, table in config.tables:
        prefix = f"{TABLES}{name}."
        lines += ["", f"[{prefix[:-1]}]"]
        for key_name, value in sorted(table, key=lambda each: "." in each[0]):
            add(KEYS[key_name], value, prefix + key_name, prefix)
    return "\n".join(lines).lstrip("\n") + "\n"
