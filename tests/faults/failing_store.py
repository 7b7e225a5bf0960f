"""`flockmq` whose store fails with an exception that no code expects: at the first block that has the word POISON."""

import sqlite3
import sys

from flockmq.broker import cli
from flockmq.broker.storage import sqlite_file

POISON = b"poison"


def install() -> None:
    """Let the thread of the store meet a fault."""
    insert = sqlite_file.insert

    def insert_or_fail(database: sqlite3.Connection, position: int, block: bytes) -> None:
        if POISON in block:
            raise AttributeError("a fault of the code")
        insert(database, position, block)

    sqlite_file.insert = insert_or_fail


if __name__ == "__main__":
    install()
    sys.exit(cli.main(sys.argv[1:]))
