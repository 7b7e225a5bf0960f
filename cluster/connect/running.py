"""Runs the pipes of a file, each in a thread: a target that is away holds up its pipe only."""

import threading
from collections.abc import Iterator

import pyarrow as pa

from ..follow.follower import Follower, first_rows, follow
from .dead_letters import DeadLetters
from .metrics import Running, serve
from .pipe import ConnectConfig, Pipe, PipeConfig, connector_of
from .query import json_lines


def run_pipes(config: ConnectConfig, *, once: bool, stopped: threading.Event) -> list[Running]:
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
            errors.append(error)
            stopped.set()

    threads = [threading.Thread(target=run, args=(each.follower,)) for each in running]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if server is not None:
        server.shutdown()
        server.server_close()
    if errors:
        raise errors[0]
    return running


def preview(config: ConnectConfig, pipe: PipeConfig, count: int) -> Iterator[str]:
    """The first rows of a pipe as JSON, from the oldest message of the log. Nothing is written or registered."""
    messages = first_rows(config.log, filters=pipe.filters, columns=pipe.columns, count=count)
    refused: list[str] = []

    def refuse(rows: pa.Table, reason: str) -> None:
        refused.extend(f"dead letter: {reason}: {line}" for line in json_lines(rows))

    found = messages if pipe.query is None else pipe.query.rows(messages, refuse)
    yield from json_lines(found.slice(0, count))
    yield from refused


def _running(config: ConnectConfig, pipe: PipeConfig) -> Running:
    dead = DeadLetters(pipe.name, pipe.dead_letters)
    target = Pipe(pipe, connector_of(pipe, config.log, dead), dead)
    follower = Follower(
        config.log, pipe.name, job=f"connect:{pipe.name}", filters=pipe.filters, columns=pipe.columns, target=target
    )
    return Running(follower, target, dead)
