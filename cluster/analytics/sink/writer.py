"""Writes rows to a broker, in executors: a task publishes its rows, and is done when all are acknowledged.

Spark repeats a task that has failed, and the last batch of a stream after a restart, so messages may be there twice:
at least once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from .options import SinkOptions
from .publisher import Publisher
from .rows import Encoder


@dataclass
class Published(WriterCommitMessage):
    """The rows of a task are published: so many."""

    count: int


def write_rows(options: SinkOptions, batches: Iterator[Any]) -> Published:
    """Publish the rows of record batches."""
    encoder = Encoder(options.level, options.qos, options.retain)
    count = 0
    with Publisher(options) as publisher:
        for batch in batches:
            count += publisher.publish(encoder.packets(batch))
        publisher.finish()
    return Published(count)


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        """All messages of the batch are acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task has failed: Spark repeats the batch when the stream starts again."""
