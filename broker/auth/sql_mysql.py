"""MySQL and MariaDB with users.

A value of a client stands in the query as a literal of hexadecimal digits, `_utf8mb4 X'616461'`. No character in such a
literal has a meaning for SQL, in any character set and mode of the server: nothing needs to be escaped. As a
literal it takes the collation of the column that it is compared with, so that the column's index is used.
"""

import ssl
from collections.abc import Sequence
from typing import Any

import pymysql

from ..config.placeholders import Template
from ..config.redis_url import masked
from ..config.sql_url import MYSQL_PORT, SqlUrl
from ..errors import ConfigError
from .connections import Connections, Lost, Refused
from .sql_database import MAX_ROWS, Rows, Value

# Errors that are not about a query: too many connections, handshake, access, no such database, shutdown, blocked host,
# network, users' limits, and a call that was interrupted.
AWAY = {
    *(1040, 1042, 1043, 1044, 1045, 1049, 1053, 1077, 1079, 1129, 1130),
    *range(1152, 1162),
    *(1184, 1203, 1205, 1226, 1317, 1698, 1927, 1969),
    *range(2000, 3000),  # of the client's side
    *(3024, 4031),
}


class MySql:
    """A MySQL or MariaDB.

    Args:
        url: as configured.
        password: empty: as in the URL.
        timeout: of each wait for the server, in seconds.

    Raises:
        ConfigError: a file of its options can't be used.
    """

    def __init__(self, url: str, password: str, timeout: float) -> None:
        self.place = masked(url)
        parsed = SqlUrl.parse(url)
        context = _tls(parsed)
        self._options: dict[str, Any] = {
            "host": parsed.host or "localhost",
            "port": parsed.port or MYSQL_PORT,
            "unix_socket": parsed.option("socket") or None,
            "user": parsed.username or None,
            "password": password or parsed.password,
            "database": parsed.database,
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": timeout,
            "read_timeout": timeout,
            "write_timeout": timeout,
            "ssl": context,
            "ssl_disabled": context is None,
        }
        self._connections: Connections[Any] = Connections(self._connect, lambda connection: connection.close())

    def _connect(self) -> Any:
        try:
            return pymysql.connect(**self._options)
        except (pymysql.Error, OSError, UnicodeError) as error:
            raise Lost(_reason(error)) from None

    def rows(self, query: Template, values: Sequence[Value]) -> Rows:
        text = query.filled(*map(_literal, values))
        return self._connections.call(lambda connection: self._ask(connection, text))

    def _ask(self, connection: Any, text: str) -> Rows:
        try:
            with connection.cursor() as cursor:
                cursor.execute(text)
                columns = tuple(str(column[0]).lower() for column in cursor.description or ())
                return Rows(columns, list(cursor.fetchmany(MAX_ROWS)) if columns else [])
        except pymysql.MySQLError as error:
            code = error.args[0] if error.args else 0
            if isinstance(error, pymysql.err.InterfaceError) or not code or code in AWAY:
                raise Lost(_reason(error)) from None
            raise Refused(_reason(error)) from None
        except OSError as error:
            raise Lost(_reason(error)) from None

    def close(self) -> None:
        self._connections.close()


open_database = MySql


def _literal(value: Value) -> str:
    """A value as it stands in a query."""
    return str(value) if isinstance(value, int) else f"_utf8mb4 X'{value.encode().hex()}'"


def _tls(url: SqlUrl) -> ssl.SSLContext | None:
    """How a connection is encrypted; None: not at all. Raises ConfigError."""
    verify = url.option("verify") or ("none" if url.is_local and not url.option("ca_file") else "full")
    if verify == "none":
        return None
    try:
        context = ssl.create_default_context(cafile=url.option("ca_file") or None)
        if url.option("cert_file"):
            context.load_cert_chain(url.option("cert_file"), url.option("key_file") or None)
    except OSError as error:
        fault = error.strerror or str(error)
        raise ConfigError(f"a file of the options of auth.sql_url can't be used: {fault}", "check its path") from None
    context.check_hostname = verify == "full"
    return context


def _reason(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error) or type(error).__name__
