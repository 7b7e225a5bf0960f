"""The API of FlockMQ for other programs: `read_log` and `follow_log` for the log of messages, `flockmq.hooks` for
hooks, `flockmq.testing` for a broker in a test."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flockmq.log import follow_log as follow_log
    from flockmq.log import read_log as read_log

__all__ = ["follow_log", "read_log"]


def __getattr__(name: str) -> Any:
    """Load what is used: the node imports this module, too."""
    if name in __all__:
        from flockmq import log

        return getattr(log, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
