"""The options of commands that follow the log of messages: `flockmq lake` and `flockmq connect`."""

from argparse import _ArgumentGroup


def add_follow_options(group: _ArgumentGroup, *, done: str) -> None:
    """Add the options; `done`: when messages count as handled, such as "committed"."""
    group.add_argument("--once", action="store_true", help=f"end when the messages that are logged now are {done}")
    group.add_argument(
        "--skip-missing", action="store_true", help="go on if messages were deleted from the log before they were read"
    )
    group.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="[info]")
