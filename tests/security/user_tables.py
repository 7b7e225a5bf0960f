"""Databases with a table of users, for tests: PostgreSQL, MariaDB and SQLite."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from flockmq.broker.auth.authenticator import Verdict
from flockmq.broker.auth.chain_builder import MAX_WAITING, SQL_THREADS
from flockmq.broker.auth.sql_database import open_database
from flockmq.broker.auth.sql_users import SqlSettings, SqlUsers
from flockmq.broker.auth.verifier import Verifier
from flockmq.broker.auth.work_pool import WorkPool
from tests.harness.database_processes import MariaDbProcess, PostgreSqlProcess
from tests.security.access_files import quick_hash
from tests.security.one_method import ADDRESS, ask

COLUMNS = "username VARCHAR(200), password_hash VARCHAR(200), rules TEXT, roles TEXT, disabled BOOLEAN, org TEXT"
QUERY = "SELECT username, password_hash, rules, roles, disabled FROM users WHERE username = ${username}"


class UserTables:
    """The tables `users` and `rules` of a database.

    Args:
        kind: "postgresql", "mariadb" or "sqlite".
        url: of it.
        server: None: there is none.
    """

    def __init__(self, kind: str, url: str, server: PostgreSqlProcess | MariaDbProcess | None = None) -> None:
        self.kind, self.url, self.server = kind, url, server

    def make(self) -> "UserTables":
        """Make the tables, without rows."""
        for name, columns in (("users", COLUMNS), ("rules", "username VARCHAR(200), access INT, topic TEXT")):
            self.run(f"DROP TABLE IF EXISTS {name}")
            self.run(f"CREATE TABLE {name} ({columns})")
        return self

    def add(self, name: str, password: str | None = None, **columns: object) -> None:
        """Add a user; the password is its name unless another is given, or its hash."""
        row = {"username": name, "password_hash": quick_hash(password or name), "disabled": False, **columns}
        self.run(
            f"INSERT INTO users ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",
            *row.values(),
        )

    def run(self, statement: str, *values: object) -> None:
        """Run a statement, with %s for its values."""
        if self.server is None:
            with contextlib.closing(sqlite3.connect(self.url.partition(":")[2])) as file:
                file.execute(statement.replace("%s", "?"), values)
                file.commit()
        elif isinstance(self.server, PostgreSqlProcess):
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(statement.encode(), values)
        else:
            with (
                pymysql.connect(
                    unix_socket=self.server.socket, user="root", database="mqtt", charset="utf8mb4", autocommit=True
                ) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(statement, values)

    def settings(self, **more: object) -> dict[str, object]:
        """The settings of a broker that uses the tables."""
        found: dict[str, object] = {"sql_url": self.url, "sql_user_query": QUERY, "failure_delay": 0, **more}
        return {f"auth.{name}": value for name, value in found.items()}


class Method:
    """The authentication method by itself, within the test's process.

    Args:
        tables: that it reads.
        query: of a user.
        timeout: seconds.
        more: settings of the queries.
    """

    def __init__(self, tables: UserTables, query: str = QUERY, *, timeout: float = 30.0, **more: Any) -> None:
        self.verifier = Verifier()
        self.verifier.configure(300)
        self.pool = WorkPool("sql", SQL_THREADS, MAX_WAITING)
        self.database = open_database(tables.url, "", timeout)
        self.users = SqlUsers(self.database, SqlSettings(query, **more), self.pool, self.verifier)

    async def ask(
        self, username: str | None, password: bytes | None = None, client_id: str = "c", address: str = ADDRESS
    ) -> Verdict | None:
        """The verdict over a client; its password is its name unless another is given."""
        return await ask(self.users, username, password, client_id, address)

    def __enter__(self) -> "Method":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.database.close()
        self.verifier.close()


def sqlite_tables(directory: Path) -> UserTables:
    """The tables in a file."""
    return UserTables("sqlite", f"sqlite:{directory / 'users.db'}")
