"""`flockmq serve`: start a node with the effective configuration."""

from ..config.load import load
from ..config.schema import Config
from .parser import Parser
from .settings import add_settings, overrides

EXAMPLES = """\
  flockmq serve
  flockmq serve --listen :1883 --password-file passwords
  flockmq serve --store sqlite:/var/lib/flockmq/state.db
  flockmq serve --listen 127.0.0.1:0 --store memory --log-format json
  flockmq serve --config /etc/flockmq.toml --set limits.max_packet_size=64KiB
  flockmq serve --workers auto
  flockmq serve --listen :1883 --redis redis://10.0.0.5:6379 --workers 4 --set auth.users=true

signals: INT and TERM stop the node, HUP reads the configuration again."""


def run(arguments: list[str]) -> int:
    """Serve until stopped; returns the exit status."""
    parser = Parser("serve", "Start a node: one broker process.", "[OPTION...]", EXAMPLES)
    add_settings(parser)
    args = parser.parse(arguments)
    settings = overrides(args)

    def reload() -> Config:
        return load(settings, file=args.config)

    effective = reload()
    if effective.cluster.workers > 1:
        from ..supervisor import supervise  # late, as below

        return supervise(effective, arguments)
    from ..process import serve  # late: a wrong configuration is reported without loading the broker

    return int(serve(effective, reload=reload))
