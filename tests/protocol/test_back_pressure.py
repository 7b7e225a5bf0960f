"""Publishers that are faster than the store are not read for a while, and lose nothing by it."""

import contextlib
import resource
import threading
import time

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Puback, Publish
from tests.conftest import StartBroker
from tests.harness.socket_client import SocketClient

PUBLISHERS = 4
MESSAGES = 500


def test_all_publishers_that_were_held_back_are_read_again(start_broker: StartBroker) -> None:
    """Publishers that were held back once more while they were let go were forgotten, and hung for ever."""
    broker = start_broker({"flockmq.broker.core.data_plane.MAX_UNCOMMITTED_BYTES": 1 << 16})
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


def test_a_publisher_that_is_not_read_is_not_found_silent(start_broker: StartBroker, store: str) -> None:
    """While the disk was full its keep alive ran out, and its will was published without a death."""
    if store != "sqlite":
        pytest.skip("needs a full disk; a Redis that stands still is in tests/faults")
    broker = start_broker({"flockmq.broker.core.data_plane.MAX_UNCOMMITTED_BYTES": 1 << 16})
    with SocketClient(broker.port, "absent", clean_start=False) as subscriber:
        subscriber.subscribe(("t", 1))
    watcher = SocketClient(broker.port, "watcher")
    watcher.subscribe(("will", 0))
    publisher = SocketClient(broker.port, "publisher", keep_alive=1, will_topic="will", will_payload=b"gone")
    full = (broker.directory / "flockmq.db-wal").stat().st_size
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
    sent = 0
    publisher.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            publisher.socket.sendall(encode(Publish("t", bytes(60000), qos=1, packet_id=sent + 1), 4))
            sent += 1
    time.sleep(3)  # twice what the keep alive allows
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert [publisher.receive() for _ in range(sent)] == [Puback(packet_id=i + 1) for i in range(sent)]
    assert watcher.ping() == []
