"""Long forms: memory is flat over ten million messages, a million connects, 100 000 groups and 100 000 topic aliases.

The first rounds fill what a node keeps for reuse. After them it may grow by 2 MiB in all; or by a fifth where each
round takes and frees 100 MiB and more, since the kernel gets back only pages that are free as a whole.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Publish, Subscribe
from flockmq.loadtest.generator.runs import find_faults, publish_load
from flockmq.loadtest.generator.target import Target, Workload
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.socket_client import SocketClient
from tests.protocol.test_client_limits import CONNECT_BYTES, by_different_clients, hammer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]
MIB = 1 << 20
MESSAGES, CONNECTS, MANY = 10_000_000, 1_000_000, 100_000
CLIENTS = 400  # that have the groups or the aliases together
ROUNDS = 10
SMALL = 100 * MIB
FIRST = 3  # rounds before the round that later ones are compared with


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    aliases = {"mqtt.topic_alias_maximum": 250, "flockmq.broker.handlers.connack.TOPIC_ALIASES": 250}
    node = BrokerProcess(tmp_path, settings=aliases).start()
    yield node
    status = node.stop()
    node.check()
    assert status == 0, node.log_text()


def is_flat(node: BrokerProcess, what: str, once: Callable[[], None]) -> None:
    """Do it again and again; print and judge the memory after each round."""
    sizes = []
    for _ in range(ROUNDS):
        files = node.open_files()
        once()
        until(lambda: node.open_files() <= files)  # noqa: B023
        sizes.append(node.rss())
    print(f"soak: {what}: {', '.join(f'{size / MIB:.1f}' for size in sizes)} MiB")
    most = 2 * MIB if sizes[0] < SMALL else sizes[FIRST - 1] // 5
    assert max(sizes[FIRST:]) - sizes[FIRST - 1] < most


@pytest.mark.parametrize(("qos", "share"), [(0, 0.8), (1, 0.1), (2, 0.1)])
def test_messages(node: BrokerProcess, qos: int, share: float) -> None:
    count = int(MESSAGES * share)
    load = Workload(qos=qos, count=count // ROUNDS, seconds=3600, drain_limit=60, batch=20, window=100, alias="both")

    def once() -> None:
        figures = publish_load(Target(port=node.port, level=5), load)
        assert find_faults(figures) == []
        assert figures["received"] == figures["expected"] == count // ROUNDS

    is_flat(node, f"{count} messages of QoS {qos}", once)


def test_connects(node: BrokerProcess) -> None:
    """Clean sessions that subscribe, publish, and leave politely."""
    life = (CONNECT_BYTES, b"\x82\x06\x00\x01\x00\x01t\x01", b"\x32\x06\x00\x01t\x00\x01x", b"\xe0\x00")
    streams = by_different_clients(life)
    is_flat(node, f"{CONNECTS} connects", lambda: hammer(node, CONNECTS // ROUNDS, streams))


def test_groups(node: BrokerProcess) -> None:
    """So many groups with a subscriber at a time, in each round."""
    each = MANY // CLIENTS

    def once() -> None:
        with ExitStack() as stack:
            for number in range(CLIENTS):
                client = stack.enter_context(SocketClient(node.port, f"subscriber {number}"))
                names = [f"$share/{number} {n}/t/{n}" for n in range(each)]
                client.send(Subscribe(1, [(name, 1) for name in names]))
                assert client.receive().reason_codes == [1] * each  # type: ignore[union-attr]

    is_flat(node, f"{ROUNDS} times {MANY} groups", once)


def test_aliases(node: BrokerProcess) -> None:
    """So many aliases at a time that clients have set, and about half as many that the node has set, in each round."""
    each = MANY // CLIENTS

    def once() -> None:
        with ExitStack() as stack:
            for number in range(CLIENTS):
                most = {"topic_alias_maximum": each}
                client = stack.enter_context(SocketClient(node.port, f"client {number}", level=5, properties=most))
                client.subscribe((f"{number}/#", 0))
                for again in range(2):
                    for n in range(1, each + 1):
                        topic = "" if again else f"{number}/{n}"
                        client.send(Publish(topic, b"x", properties={"topic_alias": n}))
                    found = client.ping()
                    assert len(found) == each
                # Of names that share a place in the node's table one has an alias.
                assert sum("topic_alias" in packet.properties for packet in found) > each / 4  # type: ignore[union-attr]

    is_flat(node, f"{ROUNDS} times {MANY} aliases of clients", once)
