"""Messages of QoS 0 to another node: one batch a turn, and a count of messages that are lost."""

import pytest

from flockmq._speedups.cluster.peer import Peer
from flockmq._speedups.routing.router import Router
from flockmq._speedups.session.journal import Journal
from flockmq._speedups.session.turn import Turn
from flockmq._speedups.session.turn_limits import TurnLimits
from tests.unit.speedups.test_cluster_group import LIMITS


@pytest.mark.parametrize("linked", [True, False])
def test_a_batch_without_a_link_is_lost_and_its_messages_are_counted(linked: bool) -> None:
    turn = Turn(Journal())
    turn.set_limits(TurnLimits(**LIMITS))
    router = Router(turn)
    batches: list[bytes] = []
    peer = Peer(turn, 1, b"n2", lambda batch: batches.append(batch) or linked)
    router.filters.subscribe(peer, b"#", 0)
    for turns in (1, 2):
        for payload in (b"1", b"2", b"3"):
            router.publish(b"t", payload)
        peer.hold(False)  # its turn ends
        assert len(batches) == turns
        counted = turn.counted()
        assert counted["dropped_unlinked"] == (0 if linked else 3 * turns)
        assert counted["dropped_slow"] == counted["publish_unrouted"] == 0


def test_messages_of_the_node_itself_are_not_unrouted() -> None:
    turn = Turn(Journal())
    turn.set_limits(TurnLimits(**LIMITS))
    router = Router(turn)
    for topic in (b"$SYS/broker/uptime", b"$SYSTEM/x", b"a"):
        router.publish(topic, b"x")
    assert turn.counted()["publish_unrouted"] == 2
