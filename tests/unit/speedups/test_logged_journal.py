"""The journal of a node alone that logs messages."""

from flockmq._speedups.codec.packets import Puback, Publish, Subscribe
from flockmq._speedups.log.journal import Block
from flockmq._speedups.log.message_log import MessageLog
from tests.harness.inprocess import Client, KeepingStore, Node


class LoggingStore(KeepingStore):
    """Keeps the records of blocks, and the number of entries of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def commit(self, block: bytes | Block) -> None:
        self.entries += isinstance(block, Block)
        super().commit(block.records if isinstance(block, Block) else block)


def test_puback_waits_for_the_log_also_in_a_turn_with_other_records() -> None:
    node = Node(LoggingStore())
    log = MessageLog(node.turn, lambda entry_id, block: None, lambda: None)
    node.turn.journal.attach(log)
    node.router.filters.subscribe(log, b"logged", 0)
    subscriber = Client(node, "subscriber", clean_start=False)
    subscriber.send(Subscribe(1, [("queued", 1)]))
    other, publisher = Client(node, "other"), Client(node, "publisher")
    other.connack()
    publisher.connack()
    node.auto = False
    other.write(Publish("queued", b"", 1, packet_id=1))
    publisher.write(Publish("logged", b"", 1, packet_id=2))
    node.run()  # one turn
    assert publisher.take() == other.take() == []
    assert node.unconfirmed == node.store.entries == 1
    node.confirm()
    assert (other.take(), publisher.take()) == ([Puback(1)], [Puback(2)])
    publisher.send(Publish("logged", b"", 1, packet_id=3))
    assert publisher.take() == []
    node.confirm()
    assert publisher.take() == [Puback(3)]
