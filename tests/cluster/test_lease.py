"""The lease of a node: how long it serves without word from Redis, and its end when the lease is over."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from flockmq._speedups.codec.packets import Pingreq, Pingresp
from flockmq.cluster.membership.lease import AWAY_LEASES, PACE, STILL, USED, Lease
from flockmq.cluster.state import Membership, State
from tests.harness.inprocess import Client, Node


class Link:
    """Notes what is asked, and whether it was hung up."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[Any], bool], str]] = []
        self.hung_up = False
        self.why = ""
        self.reached_at = time.monotonic()

    def call_function_first(self, then: Callable[[Any], bool], name: str) -> None:
        self.asked.append((then, name))

    def hang_up(self, why: str = "") -> None:
        self.hung_up = True
        self.why = why


class World:
    """A lease of a real reactor, whose loop runs nothing by itself."""

    def __init__(self, seconds: float = 10.0, timeout: float = 60.0) -> None:
        self.node, self.link, self.loop = Node(), Link(), asyncio.new_event_loop()
        self.fenced: list[str] = []
        self.membership = Membership("a", lambda reason, before: self.fenced.append(reason))
        self.membership.become_ready()
        self.membership.become_member()
        self.given_up = 0  # how often the membership could not be confirmed
        self.node.reactor.start()
        self.lease = Lease(
            seconds,
            timeout,
            loop=self.loop,
            reactor=self.node.reactor,
            link=cast(Any, self.link),
            membership=self.membership,
            close_persistent=self.give_up,
        )
        self.node.reactor.attach_lease(lambda: self.lease.expire(time.monotonic()))

    def lose_link(self) -> None:
        """As the recovery of the link begins."""
        self.membership.lose_link()
        self.lease.link_lost()

    def give_up(self, reason: str) -> None:
        assert not self.is_read or self.membership.state is State.CUT_OFF  # else clients get something before
        self.given_up += 1
        self.loop.stop()

    @property
    def is_read(self) -> bool:
        """Whether the clients are served."""
        return self.node.is_served

    def close(self) -> None:
        self.loop.close()
        self.node.close()


def test_it_lasts_from_when_the_heartbeat_was_sent_and_ends_before_others_notice() -> None:
    world = World()
    sent_at = time.monotonic() - 4
    world.lease.renew(sent_at)
    assert world.lease.valid_until == sent_at + 10 * USED < sent_at + 10
    world.close()


def test_nobody_is_served_after_it_until_redis_confirms() -> None:
    world = World(seconds=0.01)
    client = Client(world.node, "client")
    client.connack()
    world.lease.renew(time.monotonic())
    time.sleep(0.02)  # the process stands still
    client.write(Pingreq())
    world.node.reactor.run()
    assert world.membership.state is State.SUSPENDED and not world.is_read
    (then, name) = world.link.asked.pop()
    assert name == "confirm"
    with pytest.raises(BlockingIOError):
        client.socket.recv(1)
    world.lease.seconds = 10.0
    assert then([1, 1])
    assert world.membership.serves and world.is_read
    assert isinstance(client.take_one(Pingresp), Pingresp)
    world.close()


def test_a_late_turn_begins_with_a_call_and_the_next_one_serves_clients() -> None:
    """Deadlines of clients are times of the clock of the cluster, which stands still some seconds after a heartbeat."""
    world = World()
    late: list[bool] = []
    world.node.reactor.attach_lease(lambda: late.append(world.lease.expire(time.monotonic())))
    client = Client(world.node, "client")
    client.connack()
    world.lease.renew(time.monotonic() - PACE)
    client.write(Pingreq())
    world.node.reactor.run()
    assert late == [True] and world.membership.serves
    with pytest.raises(BlockingIOError):
        client.socket.recv(1)
    assert isinstance(client.take_one(Pingresp), Pingresp)
    assert late == [True]
    world.close()


@pytest.mark.parametrize(("reply", "fenced", "hung_up"), [([b"gone"], 1, False), (ConnectionError("lost"), 0, True)])
def test_a_node_that_is_no_member_serves_nobody_again(reply: Any, fenced: int, hung_up: bool) -> None:
    world = World()
    assert world.lease.expire(time.monotonic())
    assert not world.lease.expire(time.monotonic())  # each turn calls it
    ((then, _),) = world.link.asked
    assert not then(reply)
    assert (len(world.fenced), world.link.hung_up, world.link.why) == (fenced, hung_up, "lost" * hung_up)
    assert not world.membership.serves and not world.is_read
    world.close()


def test_without_redis_it_goes_on() -> None:
    world = World()
    world.lease.renew(time.monotonic())
    world.lose_link()
    world.lease.look_for_pause(time.monotonic())
    assert world.membership.serves and world.is_read
    world.close()


def test_while_it_joins_it_has_no_lease_to_lose() -> None:
    world = World()
    world.membership = world.lease._membership = Membership("a", print)
    world.lease.renew(time.monotonic())
    world.lease.look_for_pause(time.monotonic() + 60)
    assert world.membership.state is State.JOINING and world.is_read
    world.close()


def test_a_node_that_stands_still_while_it_joins_begins_again() -> None:
    world = World()
    world.membership = world.lease._membership = Membership("a", print)
    world.membership.become_ready()
    world.lease.renew(time.monotonic() - 10)
    assert world.lease.expire(time.monotonic())
    assert world.link.hung_up and world.membership.state is State.READY and not world.link.asked
    world.close()


def test_a_node_that_stood_still_serves_nobody_when_its_link_is_lost_until_it_is_repaired() -> None:
    """Redis could not reply to it that other nodes have declared it dead."""
    world = World()
    world.lease.suspend()
    world.lose_link()
    assert world.membership.state is State.STRANDED and not world.is_read
    world.lease.renew(time.monotonic())  # the repair has asked Redis
    world.membership.regain_link()
    world.lease.resume()
    assert world.membership.serves and world.is_read and not world.given_up
    world.close()


def test_a_node_that_stands_still_without_redis_serves_nobody_until_it_is_back() -> None:
    """The next turn finds it, or the next tick of the clock, whichever is first."""
    world = World()
    world.lose_link()
    world.lease.look_for_pause(time.monotonic() + 10 * STILL + 0.1)
    assert world.membership.state is State.STRANDED and not world.is_read
    world.close()

    world = World(seconds=0.01)
    world.node.reactor.attach_lease(lambda: world.lease.look_for_pause(time.monotonic()))
    client = Client(world.node, "client")
    client.connack()
    world.lose_link()
    time.sleep(0.02)  # the process stands still
    client.write(Pingreq())
    world.node.reactor.run()
    assert world.membership.state is State.STRANDED and not world.is_read
    with pytest.raises(BlockingIOError):
        client.socket.recv(1)
    world.close()


def test_a_node_that_stood_still_gives_up_its_persistent_clients_if_redis_stays_away() -> None:
    world = World(timeout=0.01)
    world.lease.suspend()
    world.lose_link()
    world.loop.run_forever()  # until it gives up
    assert world.given_up == 1
    assert world.membership.serves and world.is_read
    world.lease.look_for_pause(time.monotonic() + 10 * STILL + 0.1)  # it stands still again
    assert world.membership.state is State.STRANDED and not world.is_read
    world.loop.run_forever()
    assert world.given_up == 2
    assert world.membership.serves and world.is_read
    world.close()


def test_a_node_that_rejoins_gives_up_nothing() -> None:
    world = World(timeout=0.01)
    world.lease.suspend()
    world.lose_link()
    world.membership.become_fenced("a test")
    world.loop.call_later(0.05, world.loop.stop)  # after the timer of the lease, by the same clock
    world.loop.run_forever()
    assert not world.given_up and not world.is_read
    world.close()


@pytest.mark.parametrize(
    ("leases", "since_reached", "given_up"),
    [
        (0.5, math.inf, 0),
        (1.5, math.inf, 1),
        (1.5, 0.5, 0),  # other nodes have no link either
        (1.5, 0.95, 1),  # they may have had one since, for as long as a lease
        (AWAY_LEASES + 0.1, 0.1, 1),
    ],
)
def test_a_node_without_a_link_gives_up_its_persistent_clients(
    leases: float, since_reached: float, given_up: int
) -> None:
    world, now = World(), time.monotonic()
    world.lease.renew(now - 10 * leases)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now - 10 * leases)
        world.lose_link()
    world.link.reached_at = now - 10 * since_reached
    world.lease.tick_without_redis(now - 10 * leases)
    assert world.given_up == given_up
    world.close()
