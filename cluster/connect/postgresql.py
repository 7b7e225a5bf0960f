"""PostgreSQL, and databases that speak its protocol, such as TimescaleDB: COPY, with the position in the same
transaction."""

import io
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pc
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from ..follow.settings import REQUIRED, Section, replaced
from ..follow.target import Progress, TargetError
from ..tables.table import Overtaken, told
from .connector import Connector, Outlet, need
from .query import json_column
from .refusals import Refused

POSITIONS = "flockmq_positions"
CONNECT_SECONDS = 10
REFUSED = ("22", "23")  # classes of SQLSTATE: data exception, integrity constraint violation
QUOTED = pc.WriteOptions(include_header=False, quoting_style="all_valid")  # null is the empty value without quotes
TYPES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_uint64, "numeric"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_decimal, "numeric"),
    (pa.types.is_floating, "double precision"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is None, "timestamp"),
    (pa.types.is_timestamp, "timestamptz"),
    (pa.types.is_date, "date"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_nested, "jsonb"),
)


class PostgreSql(Connector):
    """Rows in a table, which is made if it is not there.

    Args:
        outlet: of the pipe.
        options: `url`; `table`, with its schema before it if need be; `key`: columns; rows with the same key replace
            the earlier row.
    """

    def __init__(self, outlet: Outlet, options: Section) -> None:
        super().__init__(outlet, options)
        self._url = options.value("url", REQUIRED, _url)
        self._name = options.text("table")
        self._key = options.texts("key", ())
        options.end()
        need(options, outlet.schema, self._key)
        self._table = sql.Identifier(*self._name.split("."))
        self._columns = sql.SQL(", ").join(map(sql.Identifier, outlet.schema.names))
        self._connection: psycopg.Connection[Any] | None = None

    def progress(self) -> Progress:
        try:
            connection = self._opened()
            with connection.transaction():
                self._create(connection)
                connection.execute(
                    f"insert into {POSITIONS} (pipe, number) values (%s, 0) on conflict do nothing", (self.outlet.pipe,)
                )
                text = self._position(connection)
        except psycopg.Error as error:
            raise self._failed(error) from None
        return Progress() if text is None else Progress.parse(text)

    def append(self, rows: pa.Table, progress: Progress) -> None:
        try:
            connection = self._opened()
            with connection.transaction():
                text = self._position(connection, "for update")
                number = 0 if text is None else Progress.parse(text).number
                if number != progress.number - 1:
                    raise Overtaken(f"{self._name} has batch {number} already")
                self.split(rows, lambda some: self._copy(connection, some))
                connection.execute(
                    f"update {POSITIONS} set number = %s, position = %s, changed_at = now() where pipe = %s",
                    (progress.number, str(progress), self.outlet.pipe),
                )
        except psycopg.Error as error:
            raise self._failed(error) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> "psycopg.Connection[Any]":
        if self._connection is None:
            self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_SECONDS)
        return self._connection

    def _failed(self, error: psycopg.Error) -> TargetError:
        self.close()
        return TargetError(f"{self._name}: {told(error)}")

    def _position(self, connection: "psycopg.Connection[Any]", lock: str = "") -> str | None:
        command = f"select position::text from {POSITIONS} where pipe = %s {lock}"
        row = connection.execute(command, (self.outlet.pipe,)).fetchone()
        return None if row is None else row[0]

    def _create(self, connection: "psycopg.Connection[Any]") -> None:
        """Make the tables that are not there. A user without the right to make tables needs none if both are there.
        Pipes that start at once make them one after another."""
        connection.execute("select pg_advisory_xact_lock(hashtext(%s))", (POSITIONS,))
        if not self._is_there(connection, POSITIONS):
            connection.execute(
                f"create table if not exists {POSITIONS} "
                "(pipe text primary key, number bigint not null, position json, changed_at timestamptz)"
            )
        if not self._is_there(connection, self._name):
            columns = [
                sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(_type_of(column.type)))
                for column in self.outlet.schema
            ]
            if self._key:
                columns.append(sql.SQL("primary key ({})").format(sql.SQL(", ").join(map(sql.Identifier, self._key))))
            made = sql.SQL("create table if not exists {} ({})").format(self._table, sql.SQL(", ").join(columns))
            connection.execute(made)

    @staticmethod
    def _is_there(connection: "psycopg.Connection[Any]", name: str) -> bool:
        quoted = sql.Identifier(*name.split(".")).as_string()
        row = connection.execute("select to_regclass(%s)", (quoted,)).fetchone()
        return row is not None and row[0] is not None

    def _copy(self, connection: "psycopg.Connection[Any]", rows: pa.Table) -> None:
        """Raises Refused: the database does not take a value."""
        try:
            with connection.transaction():
                if self._key:
                    self._upsert(connection, rows)
                else:
                    self._copy_to(connection, self._table, rows)
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] in REFUSED:
                raise Refused(told(error)) from None
            raise

    def _copy_to(self, connection: "psycopg.Connection[Any]", table: sql.Composable, rows: pa.Table) -> None:
        command = sql.SQL("copy {} ({}) from stdin (format csv)").format(table, self._columns)
        with connection.cursor() as cursor, cursor.copy(command) as copy:
            copy.write(csv_of(rows))

    def _upsert(self, connection: "psycopg.Connection[Any]", rows: pa.Table) -> None:
        """Of the rows with a key the last one counts."""
        names = {
            "batch": sql.Identifier("flockmq_batch"),
            "table": self._table,
            "columns": self._columns,
            "key": sql.SQL(", ").join(map(sql.Identifier, self._key)),
            "set": sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
                for name in self.outlet.schema.names
                if name not in self._key
            ),
        }
        connection.execute(sql.SQL("create temp table {batch} (like {table} including defaults)").format(**names))
        connection.execute(sql.SQL("alter table {batch} add flockmq_order serial").format(**names))
        self._copy_to(connection, names["batch"], rows)
        found = sql.SQL(
            "insert into {table} ({columns}) select distinct on ({key}) {columns} from {batch} "
            "order by {key}, flockmq_order desc on conflict ({key}) do "
        ).format(**names)
        update = sql.SQL("update set {set}").format(**names) if len(self._key) < len(self.outlet.schema) else None
        connection.execute(found + (update or sql.SQL("nothing")))
        connection.execute(sql.SQL("drop table {batch}").format(**names))


def csv_of(rows: pa.Table) -> bytes:
    """Rows as CSV for COPY."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_nested(column.type):
            rows = rows.set_column(place, column.name, json_column(rows[column.name]))
        elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            texts = [None if each is None else "\\x" + each.hex() for each in rows[column.name].to_pylist()]
            rows = rows.set_column(place, column.name, pa.array(texts, pa.string()))
    out = io.BytesIO()
    pc.write_csv(rows, out, QUOTED)
    return out.getvalue()


def _url(given: Any) -> str:
    url = replaced(given)
    try:
        conninfo_to_dict(url)
    except psycopg.Error:  # its text may have the password
        raise ValueError("no connection string of libpq; percent-encode special characters of a password") from None
    return url


def _type_of(kind: pa.DataType) -> str:
    return next((name for is_kind, name in TYPES if is_kind(kind)), "text")
