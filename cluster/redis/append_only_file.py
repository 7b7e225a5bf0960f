"""Has Redis rewrite its append-only file after a start, against a transaction that was cut off.

A crash in the middle of a write leaves a part of a transaction at the end of the file. Redis up to 8 removes only the
command that is cut off, and keeps the MULTI and the commands before it (valkey-io/valkey#4342). All later blocks follow
that MULTI. Redis reports no error at that start; the next start applies the cut-off transaction together with the block
after it, although its messages were sent again and stored once more. A rewrite replaces the file by the data in memory.
"""

from ...broker import logs
from .link import Link, LinkLost, Reply, ReplyError, info_fields, is_forbidden

log = logs.get("flockmq.cluster")


def rewrite_after_restart(connection: Link) -> None:
    """Let Redis rewrite its append-only file, unless it has done so since its start. Nothing waits for it."""

    def decide(reply: Reply) -> None:
        if isinstance(reply, ReplyError):
            _report(reply)
        elif isinstance(reply, bytes | str) and _is_due(info_fields(reply)):
            connection.call(asked, "BGREWRITEAOF")

    def asked(reply: Reply) -> None:
        if isinstance(reply, ReplyError):
            _report(reply)
        elif not isinstance(reply, LinkLost):
            log.info("Redis rewrites its append-only file, as it has not since it was started")

    connection.call(decide, "INFO", "persistence")


def _is_due(fields: dict[str, str]) -> bool:
    return (
        fields.get("aof_enabled") == "1"
        and fields.get("aof_last_rewrite_time_sec") == "-1"
        and fields.get("aof_rewrite_in_progress") == fields.get("aof_rewrite_scheduled") == "0"
    )


def _report(error: ReplyError) -> None:
    if is_forbidden(str(error)):  # else another node was first
        log.warning(
            "Redis does not rewrite its append-only file after its restart: a crash may have damaged its end. "
            "Allow this user +info and +bgrewriteaof"
        )
