"""Runs a node whose function library has the next revision number: `python -m tests.faults.next_revision serve ...`.

It stands for the node of a later version: it loads its library over its neighbours' library, and their calls go on.
"""

import re
import sys
from unittest.mock import patch

from flockmq.broker.cli import main
from flockmq.cluster.redis import connector


def next_library() -> bytes:
    """The function library with the next revision number."""
    library, count = re.subn(
        rb"(?m)^-- revision (\d+)$", lambda found: b"-- revision %d" % (int(found[1]) + 1), connector.function_library()
    )
    assert count == 1
    return library


if __name__ == "__main__":
    patch("flockmq.cluster.redis.connector.function_library", return_value=next_library()).start()
    sys.exit(main(sys.argv[1:]))
