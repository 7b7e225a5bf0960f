"""Delayed messages of a node against a list: random delays, restarts, compactions; each comes once, none early."""

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flockmq._speedups.base.tick import TICKS_PER_SECOND
from flockmq._speedups.codec.packets import Puback, Publish, Pubrec, Pubrel, Subscribe
from flockmq._speedups.session import session_view
from flockmq.broker.coordination import delayed, expiry
from flockmq.broker.storage import compaction
from tests.harness.inprocess import Client, KeepingStore, Node

MS_PER_TICK = 1000 // TICKS_PER_SECOND
MACHINE = [1_700_000_000_000]  # milliseconds of all clocks of the machine, which go with the clock of the node
RESTART = 1000  # milliseconds


class Sent(NamedTuple):
    """A message that the node has acknowledged."""

    due: int  # by the clock of the machine
    payload: bytes
    qos: int
    retain: bool
    expires: bool


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_wall", lambda: MACHINE[0])
    monkeypatch.setattr(delayed, "_machine_clock", lambda: MACHINE[0])
    monkeypatch.setattr(compaction, "DELAYED_BATCH", 2)
    monkeypatch.setattr(compaction, "SLICE", 1)


class DelayedMachine(RuleBasedStateMachine):
    """The subscriber is away all the time: its queue shows what was published, and in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.sent: list[Sent] = []
        self.restarts = 0
        subscriber = Client(
            self.node, "s", level=5, clean_start=False, properties={"session_expiry_interval": 2**32 - 1}
        )
        subscriber.send(Subscribe(packet_id=1, topic_filters=[("t/#", 2)]))
        subscriber.close()

    @initialize(compacts=st.booleans())
    def start(self, compacts: bool) -> None:
        self.smallest = 1 if compacts else 1 << 40
        self.restart()

    def teardown(self) -> None:
        """All that waits is published, in the order in which it was due, with all its fields."""
        latest = max((sent.due for sent in self.sent), default=MACHINE[0])
        self.time_passes((latest - MACHINE[0]) // MS_PER_TICK + 2 + 4 * self.restarts)
        assert self.node.router.delayed.count == self.node.router.delayed.size == 0
        found = self.queued(self.node)
        assert sorted(found) == sorted(sent.payload for sent in self.sent)
        retained = {topic for topic, _, _ in self.node.router.retained.matching(b"t/#")}
        assert retained == {b"t/" + sent.payload for sent in self.sent if sent.retain and not sent.expires}
        self.node.close()

    @staticmethod
    def queued(node: Node) -> list[bytes]:
        """The payloads in the subscriber's queue."""
        session = node.sessions.get(b"s")
        assert session is not None
        return [payload for *_, payload in session_view.entries(session)]

    @rule(
        seconds=st.integers(0, 6),
        qos=st.integers(1, 2),
        retain=st.booleans(),
        expires=st.booleans(),
        count=st.integers(1, 4),
    )
    def publish(self, seconds: int, qos: int, retain: bool, expires: bool, count: int) -> None:
        publisher = Client(self.node, "p", level=5)
        publisher.connack()
        for _ in range(count):
            payload = b"%06d" % len(self.sent)
            properties = {"user_property": [("n", "1")], **({"message_expiry_interval": 3600} if expires else {})}
            publisher.send(
                Publish(
                    f"$delayed/{seconds}/t/{payload.decode()}",
                    payload,
                    qos,
                    retain and not expires,
                    packet_id=1,
                    properties=properties,
                )
            )
            publisher.take_one(Pubrec if qos == 2 else Puback)
            if qos == 2:
                publisher.send(Pubrel(1))
                publisher.take()
            self.sent.append(Sent(MACHINE[0] + 1000 * seconds, payload, qos, retain and not expires, expires))
        publisher.close()

    @rule(ticks=st.integers(1, 8))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            MACHINE[0] += MS_PER_TICK
            self.node.advance(1)

    @rule()
    def compact_a_little(self) -> None:
        self.node.compaction.step()
        self.node.end_turn()
        self.node.run()

    @rule()
    def restart(self) -> None:
        blocks = self.node.store.after(len(self.node.store.told))
        self.node.close()
        MACHINE[0] += RESTART
        self.restarts += 1
        self.node = Node(KeepingStore(blocks), smallest=self.smallest)

    @rule(back=st.integers(0, 6))
    def look_at_a_crash(self, back: int) -> None:
        """At any moment a message waits, or is published, and never both: all of it comes once later."""
        told = len(self.node.store.told)
        after = Node(KeepingStore(self.node.store.after(max(0, told - back))))
        waits = len(after.router.delayed)
        if after.sessions.get(b"s") is not None:
            published = self.queued(after)
            assert len(set(published)) == len(published)
            after.advance(7 * TICKS_PER_SECOND)
            now, MACHINE[0] = MACHINE[0], MACHINE[0] + 60_000
            after.advance(1)
            MACHINE[0] = now
            found = self.queued(after)
            assert len(found) == len(set(found)) == len(published) + waits
            if back == 0:
                assert sorted(found) == sorted(sent.payload for sent in self.sent)
        after.close()

    @invariant()
    def none_is_early_and_the_order_is_that_of_due_times(self) -> None:
        found = self.queued(self.node)
        by_payload = {sent.payload: sent for sent in self.sent}
        assert all(by_payload[payload].due <= MACHINE[0] for payload in found)
        assert len(found) + len(self.node.router.delayed) == len(self.sent)
        dues = [(by_payload[payload].due, payload) for payload in found]
        if self.restarts <= 1:
            assert dues == sorted(dues)


class TestDelayedMessages(DelayedMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=100, stateful_step_count=40, suppress_health_check=list(HealthCheck))
