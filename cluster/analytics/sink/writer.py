"""Writes rows to a broker, in executors: a task sends its rows, and is done when all are acknowledged.

Spark repeats a task that has failed, and the last batch of a stream after a restart. To a broker with transactions each
row is published once: a task stages its rows, as a part of the transaction of the batch, and the driver commits the
parts of the tasks that Spark has counted. To another broker rows may be there twice: at least once.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..errors import BrokerError
from .options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from .packets import Encoder
from .publisher import Publisher
from .staging import Transaction, commit_parts, stage

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of the tasks of a stream


@dataclass
class Written(WriterCommitMessage):
    """The rows of a task are published, or staged.

    Attributes:
        count: of rows.
        transaction: None: published.
        part, chunks: of the transaction.
    """

    count: int
    transaction: Transaction | None = None
    part: str = ""
    chunks: int = 0


def write_rows(options: SinkOptions, batches: Iterator[Any], transaction: Transaction) -> Written:
    """Stage the rows of record batches in a transaction, or publish them if the broker has none.

    Raises:
        BrokerError: the broker has refused them, or has no transactions and has to have them.
    """
    encoder = Encoder(options.level, options.qos, options.retain)
    rows = (row for batch in batches for row in encoder.packets(batch))
    with Publisher(options) as publisher:
        if options.delivery == AT_LEAST_ONCE or not publisher.has_transactions:
            if options.delivery == EXACTLY_ONCE:
                raise BrokerError(
                    f"{options.broker} has no transactions, so it can't publish exactly once",
                    'exactly-once needs FlockMQ; leave .option("delivery", "exactly-once") out for other brokers',
                )
            count = publisher.publish(rows)
            publisher.finish()
            return Written(count)
        part = stage(publisher, transaction, rows)
    return Written(part.rows, transaction, part.name, part.chunks)


def commit(options: SinkOptions, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Let the broker publish the rows that tasks have staged, all together.

    Raises:
        BrokerError: the broker is away, or has lost a part: it has waited for longer than the broker keeps it.
    """
    staged = [message for message in messages if isinstance(message, Written) and message.transaction is not None]
    if not staged:
        return
    transaction = staged[0].transaction
    assert transaction is not None
    parts = {message.part: message.chunks for message in staged if message.chunks}
    with Publisher(options) as publisher:
        commit_parts(publisher, transaction, parts)


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._transaction = Transaction(uuid.uuid4().hex, 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, iterator, self._transaction)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream. The query has the same id after a restart from its checkpoint."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        assert query is not None and batch is not None
        return write_rows(self._options, iterator, Transaction(query, int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task has failed: Spark repeats the batch when the stream starts again."""
