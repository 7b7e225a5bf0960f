from _speedups.log.message_log import MessageLog
from _speedups.session.journal import Journal

class Block:
    records: bytes
    entry: tuple[bytes, bytes]
    def __len__(self) -> int: ...

class LoggedJournal(Journal):
    log: MessageLog | None
    def attach(self, log: MessageLog) -> None: ...
