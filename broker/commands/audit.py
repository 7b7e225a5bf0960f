"""`flockmq audit`: the weaknesses of a configuration, and their remedies."""

from ..audit import audit
from ..config.load import load
from .output import print_json
from .parser import Parser
from .settings import add_settings, overrides

EXAMPLES = """\
  flockmq audit --config /etc/flockmq.toml
  flockmq audit --listen :1883 --password-file passwords --json

exit status: 0 no finding is bad (some may be weak), 1 a finding is bad."""


def run(arguments: list[str]) -> int:
    """Print the findings; returns the exit status."""
    parser = Parser("audit", "List the weaknesses in the configuration of a node.", "[OPTION...]", EXAMPLES)
    parser.add_argument("--json", action="store_true", help="for machines")
    add_settings(parser)
    args = parser.parse(arguments)
    found = audit(load(overrides(args), file=args.config), args.config)
    if args.json:
        print_json([finding._asdict() for finding in found])
    else:
        for finding in found:
            print(f"{finding.severity:4}  {finding.where}: {finding.what}; {finding.way_out}")
        if not found:
            print("no weaknesses found")
    return int(any(finding.severity == "bad" for finding in found))
