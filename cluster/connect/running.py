"""Runs the pipes of a file, each in a thread: a target that is away holds up its pipe only."""

import threading
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ...broker import logs
from ..follow.follower import Follower, first_rows, follow
from ..follow.stop import Stop
from .dead_letters import DeadLetters
from .metrics import Running, serve
from .pipe import ConnectConfig, Pipe, PipeConfig, connector_of
from .query import json_lines

PREVIEWED = 1000  # messages: the SQL may leave most of them out
ENDING_SECONDS = 5.0  # for the batches under way, after `stopped`

log = logs.get("flockmq.connect")


def run_pipes(config: ConnectConfig, *, once: bool, stopped: Stop) -> list[Running]:
    """Run all pipes until `stopped` is set. Returns them with their figures.

    Args:
        config: of the file.
        once: only the messages that are there at present.
        stopped: ends the pipes; a pipe that fails sets it, too.

    Raises:
        FlockError: an option is wrong, or messages are gone from the log; with `once` also: a target is away.
    """
    running = [_running(config, pipe) for pipe in config.pipes]
    server = serve(config.metrics, running) if config.metrics else None
    errors: list[BaseException] = []

    def run(follower: Follower) -> None:
        try:
            follow([follower], config.log, once=once, stopped=stopped.wait)
        except BaseException as error:
            log.error("the pipe ends", to=follower.name, reason=error)
            errors.append(error)
            stopped.set()

    threads = [
        threading.Thread(target=run, args=(each.follower,), name=each.follower.name, daemon=True) for each in running
    ]
    for thread in threads:
        thread.start()
    _wait(threads, stopped)
    if server is not None:
        server.shutdown()
        server.server_close()
    if errors:
        raise errors[0]
    return running


def _wait(threads: Sequence[threading.Thread], stopped: Stop) -> None:
    """Wait until all pipes have ended. After `stopped` a pipe that waits for its target is left alone: as after a
    kill -9, the next start sends the batch again."""
    while any(thread.is_alive() for thread in threads) and not stopped.wait(0.1):
        pass
    end = time.monotonic() + ENDING_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            log.warning("the target does not reply; the next start sends the batch again", to=thread.name)


def preview(config: ConnectConfig, pipe: PipeConfig, count: int) -> Iterator[str]:
    """The first rows of a pipe as JSON, from the oldest messages of the log. Nothing is written or registered."""
    messages = first_rows(config.log, filters=pipe.filters, columns=pipe.columns, count=max(count, PREVIEWED))
    refused: list[str] = []

    def refuse(rows: pa.Table, reason: str) -> None:
        refused.extend(f"dead letter: {reason}: {line}" for line in json_lines(rows))

    found = messages if pipe.query is None else pipe.query.rows(messages, refuse)
    yield from json_lines(found.slice(0, count))
    yield from refused[:count]
    if not found.num_rows and not refused:
        yield f"no row, out of {messages.num_rows} messages"


def _running(config: ConnectConfig, pipe: PipeConfig) -> Running:
    dead = DeadLetters(pipe.name, pipe.dead_letters)
    target = Pipe(pipe, connector_of(pipe, config.log, dead), dead)
    follower = Follower(
        config.log, pipe.name, job=f"connect:{pipe.name}", filters=pipe.filters, columns=pipe.columns, target=target
    )
    return Running(follower, target, dead)
