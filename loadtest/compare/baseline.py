"""`python -m flockmq.loadtest.compare.baseline PORT`: serve the baseline relay on 127.0.0.1 until interrupted."""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal

from .relay import Relay


def main() -> None:
    """Raise the open-file limit and relay."""
    parser = argparse.ArgumentParser(prog="python -m flockmq.loadtest.compare.baseline", description=__doc__)
    parser.add_argument("port", type=int, metavar="PORT")
    port = parser.parse_args().port
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        Relay(port).serve()


if __name__ == "__main__":
    main()
