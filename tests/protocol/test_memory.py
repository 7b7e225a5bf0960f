"""Memory is returned: each case does the same again and again in a fresh process, which must not grow."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.deadline import DEADLINE

ROOT = Path(__file__).resolve().parents[2]
MAX_GROWTH = 3_000_000  # bytes that a process may grow by, for the allocator's reasons

MEASURE = """
import gc, itertools, resource
from pathlib import Path
from flockmq._speedups.codec.packets import *
from tests.harness.inprocess import Client, Node

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def forget(node):
    # The store of the tests keeps all; the node is measured.
    node.store.told.clear()
    node.store.done = 0

{setup}
grown = []
for attempt in range(5):
    before = rss()
    for _ in range({rounds}):
        once()
    gc.collect()
    grown.append(rss() - before)
print(min(grown[1:]), max(grown[2:]))
"""

CASES = {
    "filters": (
        2,
        """
from flockmq._speedups.routing.subscriptions import SubscriptionTree
from tests.unit.speedups.test_subscriptions import new_session
tree = SubscriptionTree()
session = new_session(1)
names = itertools.count()
def once():
    mine = [b"%d/+/%d/#" % (next(names) % 300, next(names)) for _ in range(30_000)]
    for name in mine:
        tree.subscribe(session, name, 1)
    for name in mine[::2]:
        tree.unsubscribe(session, name)
    tree.unsubscribe_all(session)
""",
    ),
    "retained": (
        2,
        """
from flockmq._speedups.routing.retained import RetainedTree
tree = RetainedTree()
names = itertools.count()
def once():
    mine = [b"%d/t/%d" % (next(names) % 300, next(names)) for _ in range(30_000)]
    for name in mine:
        tree.set(name, b"value")
    searches = [tree.matching(b"+/t/#") for _ in range(1000)]
    for index, search in enumerate(searches):
        for _ in range(index % 50 + 1):
            next(search)
    assert len(list(tree.matching(b"#"))) == len(mine)
    for name in mine:
        tree.set(name, b"")
""",
    ),
    "retained, each for a short time": (
        2,
        """
from flockmq._speedups.routing.retained import RetainedTree
tree = RetainedTree()
names = itertools.count()
waiting = []
def once():
    for _ in range(50_000):
        number = next(names)
        waiting.append(b"%d/%d/%d" % (number % 3, number // 5, number))
        tree.set(waiting[-1], bytes(number % 500 + 1))
        if len(waiting) > 5000:
            tree.set(waiting.pop(0), b"")
    assert tree.count == 5000
""",
    ),
    "connections": (
        1500,
        """
node = Node()
def once():
    client = Client(node, "client", clean_start=False, will_topic="w", will_payload=b"x" * 100)
    client.send(Subscribe(packet_id=1, topic_filters=[("a/#", 1), ("b", 2)]))
    client.take()
    Client(node, "client", clean_start=True).close()
    client.close()
    Client(node).send(b"not MQTT")
    node.clients.clear()
    forget(node)
""",
    ),
    "QoS 1 and 2 to a client that acknowledges": (
        30,
        """
node = Node()
publisher = Client(node, "publisher", clean_start=False)
subscriber = Client(node, "subscriber", clean_start=False)
subscriber.send(Subscribe(packet_id=1, topic_filters=[("t/#", 2)]))
subscriber.take()
publisher.take()
def once():
    for first in range(1, 200, 20):
        publisher.send(*(Publish("t/1", bytes(500), qos=2, packet_id=first + n) for n in range(20)))
        publisher.send(*(Pubrel(packet_id=first + n) for n in range(20)))
        publisher.send(*(Publish("t/2", bytes(500), qos=1, packet_id=first + n) for n in range(20)))
    publisher.take()
    while packets := subscriber.take():
        for packet in packets:
            if isinstance(packet, Publish):
                subscriber.write((Puback if packet.qos == 1 else Pubrec)(packet_id=packet.packet_id))
            else:
                subscriber.write(Pubcomp(packet_id=packet.packet_id))
        node.run()
    assert node.sessions.get(b"subscriber").queue_length == 0
    forget(node)
""",
    ),
    **{
        f"QoS 1 and 2 to a dead client, {policy}": (
            20,
            f"""
node = Node(queue_policy={policy!r}, max_queued_messages=1000)
publisher = Client(node, "publisher", clean_start=False)
subscriber = Client(node, "subscriber", clean_start=False)
subscriber.send(Subscribe(packet_id=1, topic_filters=[("t/#", 2)]))
subscriber.take()
publisher.take()
def once():
    # More than 65536 in all, so that the numbers of those dropped have come to their bound before it counts.
    for first in range(1, 4000, 400):
        publisher.send(*(Publish("t/2", bytes(300), qos=1, packet_id=first + n) for n in range(400)))
        publisher.take()
    publisher.send(Publish("t/2", bytes(300), qos=2, packet_id=9))
    publisher.send(Pubrel(packet_id=9))
    publisher.take()
    assert node.sessions.get(b"subscriber").queue_length == 1000
    forget(node)
""",
        )
        for policy in ("drop-new", "drop-old")
    },
    "retained values that change": (
        20,
        """
node = Node()
publisher = Client(node, "publisher")
publisher.take()
def once():
    for number in range(500):
        publisher.send(Publish(f"kept/{number % 50}", bytes(1000), retain=True))
    for number in range(50):
        publisher.send(Publish(f"kept/{number}", b"", retain=True))
    forget(node)
""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_process_does_not_grow(name: str) -> None:
    rounds, setup = CASES[name]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(setup=setup, rounds=rounds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    least, most = map(int, done.stdout.split())
    print(name, least, most)
    assert least < MAX_GROWTH / 10, f"it grows by {least} bytes each time"
    assert most < MAX_GROWTH
