"""`flockmq check-config`: the effective configuration, and the origin of each value."""

from ..auth import listener_exposure
from ..config.keys import KEYS, TABLES, Key
from ..config.load import Loaded, trace
from .parser import Parser
from .settings import add_settings, overrides

EXAMPLES = """\
  flockmq check-config --config /etc/flockmq.toml
  FLOCKMQ_STORE_URL=memory flockmq check-config --set limits.max_inflight=20"""


def run(arguments: list[str]) -> int:
    """Print the configuration as TOML with origins; an error raises ConfigError."""
    parser = Parser("check-config", "Check the configuration a node would start with.", "[OPTION...]", EXAMPLES)
    add_settings(parser)
    args = parser.parse(arguments)
    loaded = trace(overrides(args), file=args.config)
    print(render(loaded), end="")
    listener_exposure.check(loaded.config, asked=bool(loaded.config.hooks.load))
    return 0


def render(loaded: Loaded) -> str:
    """The configuration as TOML, each line with its origin as comment."""
    lines: list[str] = []

    def add(key: Key, value: object, origin: str) -> None:
        setting = f"{key.field.name} = {key.kind.write(value)}"
        lines.append(f"{setting:<40} # {origin}")

    section = ""
    for key in KEYS.values():
        if key.section != section:
            section = key.section
            lines += ["", f"[{section}]"]
        add(key, key.of(loaded.config), loaded.origins[key.name])
    for name, table in loaded.config.tables:
        section = ""
        lines += ["", f"[{TABLES}{name}]"]
        for key_name, value in sorted(table, key=lambda each: "." in each[0]):
            key = KEYS[key_name]
            if key.section != section:
                section = key.section
                lines += ["", f"[{TABLES}{name}.{section}]"]
            add(key, value, loaded.origins[f"{TABLES}{name}.{key_name}"])
    return "\n".join(lines) + "\n"
