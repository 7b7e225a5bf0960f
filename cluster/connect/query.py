"""The SQL of a pipe, by DuckDB: each batch of messages is the table `messages`."""

from collections.abc import Callable

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ..follow.target import TargetError, told

Refuse = Callable[[pa.Table, str], None]  # rows, and the reason
# Errors of values; all others are of the statement, or of the machine.
OF_VALUES = (
    duckdb.ConversionException,
    duckdb.DataError,
    duckdb.InvalidInputException,
    duckdb.InvalidTypeException,
    duckdb.OutOfRangeException,
)


class Query:
    """A statement over batches.

    Args:
        sql: the statement.
        messages: the columns of the messages, as `schema_of` has them.

    Raises:
        ValueError: the statement is wrong.
    """

    def __init__(self, sql: str, messages: pa.Schema) -> None:
        self._sql = sql
        self._database = duckdb.connect()
        self._database.execute("set timezone = 'UTC'")
        try:
            self.schema = self._run(messages.empty_table()).schema
        except duckdb.Error as error:
            raise ValueError(told(error)) from None

    def rows(self, messages: pa.Table, refuse: Refuse) -> pa.Table:
        """The result over a batch. Messages on which the statement fails are refused one by one.

        Raises:
            TargetError: the statement can't be run now.
        """
        parts: list[pa.Table] = []
        waiting = [messages]
        while waiting:
            some = waiting.pop()
            try:
                parts.append(self._run(some).cast(self.schema))
            except OF_VALUES as error:
                if some.num_rows > 1:
                    middle = some.num_rows // 2
                    waiting += [some.slice(middle), some.slice(0, middle)]
                else:
                    refuse(some, told(error))
            except duckdb.Error as error:
                raise TargetError(f"the SQL of the pipe: {told(error)}") from None
        return pa.concat_tables(parts) if parts else self.schema.empty_table()

    def _run(self, messages: pa.Table) -> pa.Table:
        self._database.register("messages", with_texts(messages))
        return self._database.sql(self._sql).to_arrow_table()


def with_texts(messages: pa.Table) -> pa.Table:
    """Messages whose `payload` is text, null if it is not UTF-8, and whose `payload_bytes` are the bytes."""
    if "payload" not in messages.column_names:
        return messages
    payloads = messages["payload"]
    try:
        texts = payloads.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.chunked_array([pa.array([_text(each) for each in payloads.to_pylist()], pa.string())])
    place = messages.column_names.index("payload")
    return messages.set_column(place, "payload", texts).add_column(place + 1, "payload_bytes", payloads)


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def json_lines(rows: pa.Table) -> list[str]:
    """Each row as a JSON object. Times are in RFC 3339, bytes that are no printable ASCII are written as \\xNN."""
    if not rows.num_rows:
        return []
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            texts = pc.strftime(rows[column.name].cast(pa.timestamp("us", "UTC")), "%Y-%m-%dT%H:%M:%SZ")
            rows = rows.set_column(place, column.name, texts)
    return _query(rows, "select to_json(rows)::varchar from rows").to_pylist()  # type: ignore[no-any-return]


def json_column(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as JSON; null stays null."""
    rows = pa.table({"value": values})
    texts = "select case when value is not null then to_json(value)::varchar end from rows"
    return _query(rows, texts)


def _query(rows: pa.Table, sql: str) -> pa.ChunkedArray:
    """The only column of a query over the table `rows`."""
    found = duckdb.from_arrow(rows).query("rows", sql)
    assert found is not None
    return found.to_arrow_table().column(0)
