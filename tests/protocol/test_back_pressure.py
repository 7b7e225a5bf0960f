"""Publishers that are faster than the store are not read for a while, and lose nothing by it."""

import threading

from _speedups.packets import Puback, Publish, encode
from tests.conftest import StartBroker
from tests.socket_client import SocketClient

PUBLISHERS = 4
MESSAGES = 500


def test_all_publishers_that_were_held_back_are_read_again(start_broker: StartBroker) -> None:
    """Those that were held back once more while they were let go were forgotten, and hung for ever."""
    broker = start_broker({"limits.max_uncommitted_bytes": "64KiB"})
    with SocketClient(broker.port, "absent", clean_start=False) as subscriber:
        subscriber.subscribe(("t", 1))
    burst = b"".join(encode(Publish("t", bytes(500), qos=1, packet_id=i + 1), 4) for i in range(MESSAGES))
    publishers = [SocketClient(broker.port, f"publisher {i}") for i in range(PUBLISHERS)]
    senders = [threading.Thread(target=p.send, args=(burst,), daemon=True) for p in publishers]
    for sender in senders:
        sender.start()
    for publisher in publishers:
        assert [publisher.receive() for _ in range(MESSAGES)] == [Puback(packet_id=i + 1) for i in range(MESSAGES)]
        publisher.close()
