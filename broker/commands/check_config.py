"""`flockmq check-config`: the effective configuration, and the origin of each value."""

from ..auth import listener_exposure
from ..config.load import Loaded, trace
from ..config.toml_text import to_toml
from .parser import Parser
from .settings import add_settings, overrides

ABOUT = "Check the configuration a node would start with; `flockmq audit` examines the files that it names."
EXAMPLES = """\
  flockmq check-config --config /etc/flockmq.toml
  FLOCKMQ_STORE_URL=memory flockmq check-config --set limits.max_inflight=20"""


def run(arguments: list[str]) -> int:
    """Print the configuration as TOML with origins; an error raises ConfigError."""
    parser = Parser("check-config", ABOUT, "[OPTION...]", EXAMPLES)
    add_settings(parser)
    args = parser.parse(arguments)
    loaded = trace(overrides(args), file=args.config)
    print(render(loaded), end="")
    if loaded.config.schemas:
        from ..hooks.schemas import open_schemas  # loads the data path

        open_schemas(loaded.config.schemas)
    listener_exposure.check(loaded.config, asked=bool(loaded.config.hooks.load))
    return 0


def render(loaded: Loaded) -> str:
    """The configuration as TOML, each line with its origin as comment."""
    return to_toml(loaded.config, loaded.origins.__getitem__)
