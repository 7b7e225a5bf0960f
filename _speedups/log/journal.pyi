from ..session.journal import Journal
from .message_log import MessageLog

class Block:
    records: bytes
    entry: tuple[bytes, bytes]
    def __len__(self) -> int: ...

class LoggedJournal(Journal):
    log: MessageLog | None
    def attach(self, log: MessageLog) -> None: ...
