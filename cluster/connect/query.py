"""The SQL of a pipe, by DuckDB: each batch of messages is the table `messages`."""

import json
from collections.abc import Callable

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ..follow.payload_texts import texts_of
from ..follow.target import TargetError
from ..tables.table import told
from .refusals import Refused, by_halves

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
            statements = self._database.extract_statements(sql)
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                raise ValueError("expected one statement, a select")
            self.schema = self._run(messages.empty_table()).schema
        except duckdb.Error as error:
            raise ValueError(told(error)) from None
        _check_columns(self.schema)

    def rows(self, messages: pa.Table, refuse: Refuse) -> pa.Table:
        """The result over a batch. Messages on which the statement fails are refused one by one.

        Raises:
            TargetError: the statement can't be run now.
        """
        parts: list[pa.Table] = []

        def run(some: pa.Table) -> None:
            try:
                parts.append(self._run(some).cast(self.schema))
            except OF_VALUES as error:
                raise Refused(told(error)) from None
            except duckdb.Error as error:
                raise TargetError(f"the SQL of the pipe: {told(error)}") from None

        by_halves(messages, run, refuse)
        return pa.concat_tables(parts) if parts else self.schema.empty_table()

    def _run(self, messages: pa.Table) -> pa.Table:
        self._database.register("messages", with_texts(messages))
        return self._database.sql(self._sql).to_arrow_table()


def _check_columns(schema: pa.Schema) -> None:
    """Refuse columns that targets can't take. Raises ValueError."""
    for column in schema:
        if schema.names.count(column.name) > 1:
            raise ValueError(f"two columns have the name {column.name}: give one another name, with `as`")
        if pa.types.is_interval(column.type) or isinstance(column.type, pa.BaseExtensionType):
            raise ValueError(f"no target takes the type of the column {column.name}: make it a text, with ::varchar")


def with_texts(messages: pa.Table) -> pa.Table:
    """Messages whose `payload` is text, null if it is not UTF-8, and whose `payload_bytes` are the bytes."""
    if "payload" not in messages.column_names:
        return messages
    payloads = messages["payload"]
    texts = texts_of(payloads, lambda _: None)
    place = messages.column_names.index("payload")
    return messages.set_column(place, "payload", texts).add_column(place + 1, "payload_bytes", payloads)


def json_lines(rows: pa.Table) -> list[str]:
    """Each row as a JSON object. Times are in RFC 3339, without a zone if the column has none. Bytes are text if they
    are UTF-8, else hexadecimal. Numbers that JSON does not have are the texts NaN, Infinity and -Infinity."""
    if not rows.num_rows:
        return []
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            zone = None if column.type.tz is None else "UTC"
            times = rows[column.name].cast(pa.timestamp("us", zone), safe=False)
            texts = pc.strftime(times, "%Y-%m-%dT%H:%M:%S" + ("Z" if zone else ""))
            rows = rows.set_column(place, column.name, texts)
        elif pa.types.is_binary(column.type):
            rows = rows.set_column(place, column.name, texts_of(rows[column.name], lambda value: f"\\x{value.hex()}"))
    return [_strict(line) for line in _query(rows, "select to_json(rows)::varchar from rows").to_pylist()]


def _strict(line: str) -> str:
    """JSON as DuckDB writes it, without its words for numbers that JSON does not have."""
    if "NaN" not in line and "Infinity" not in line:
        return line
    return json.dumps(json.loads(line, parse_constant=str), ensure_ascii=False)


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
