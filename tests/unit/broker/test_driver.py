"""Drivers: a reactor in an event loop. There are no timers: a wake-up that is missed lasts until the deadline."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from flockmq._speedups.codec.packets import Pingreq, Pingresp, Publish, Subscribe
from flockmq._speedups.net.uvloop_driver import UvloopDriver
from flockmq.broker.core.driver import Driver, ReaderDriver, make_driver
from flockmq.broker.hooks.api import Hooks, Message
from tests.harness.deadline import DEADLINE
from tests.harness.inprocess import Client, Node

LOOPS = {UvloopDriver: uvloop.new_event_loop, ReaderDriver: asyncio.SelectorEventLoop}


class Acting(Hooks):
    """Does something within a turn."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def deliver(self, client_id: str, message: Message) -> None:
        self.act()


class World:
    """A node in a loop, a client that subscribes to all topics, and a pair of sockets."""

    def __init__(self, kind: type) -> None:
        self.loop = LOOPS[kind]()
        self.driver: Driver = make_driver(self.loop)
        assert isinstance(self.driver, kind)
        self.node, self.hooks = Node(), Acting()
        self.node.broker.use([self.hooks])
        self.client = Client(self.node, "client")
        self.client.send(Subscribe(packet_id=1, topic_filters=[("#", 0)]))
        self.client.take()
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.happened = asyncio.Event()
        self.start()

    def start(self) -> None:
        self.driver.start(self.node.reactor)

    def stop(self) -> None:
        self.driver.stop(self.node.reactor)

    def publish(self) -> None:
        """Have the node call the hook; the loop learns of it by the reactor only."""
        self.client.write(Publish("t", b"x"))

    def run(self, trigger: Callable[[], object]) -> None:
        """Run until `happened` is set."""

        async def wait() -> None:
            for _ in range(3):
                await asyncio.sleep(0)  # the loop has nothing to do any more
            thread = threading.Timer(0.01, trigger)
            thread.start()
            await asyncio.wait_for(self.happened.wait(), DEADLINE)
            thread.join()

        self.loop.run_until_complete(wait())

    def close(self) -> None:
        self.stop()
        self.node.close()
        self.near.close()
        self.far.close()
        self.loop.close()


@pytest.fixture(params=[UvloopDriver, ReaderDriver])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.close()


def call_soon(world: World) -> None:
    world.loop.call_soon(world.happened.set)


def call_later(world: World) -> None:
    world.loop.call_later(0.02, world.happened.set)


def watch_a_descriptor(world: World) -> None:
    def received() -> None:
        world.near.recv(1)
        world.loop.remove_reader(world.near)
        world.happened.set()

    world.far.send(b"x")
    world.loop.add_reader(world.near, received)


def call_from_a_thread(world: World) -> None:
    threading.Timer(0.02, world.loop.call_soon_threadsafe, (world.happened.set,)).start()


def run_a_task(world: World) -> None:
    async def work() -> None:
        await world.loop.run_in_executor(None, lambda: None)
        world.happened.set()

    world.task = world.loop.create_task(work())  # type: ignore[attr-defined]


@pytest.mark.parametrize("act", [call_soon, call_later, watch_a_descriptor, call_from_a_thread, run_a_task])
def test_a_turn_gives_the_loop_work(world: World, act: Callable[[World], None]) -> None:
    world.hooks.act = lambda: act(world)
    world.run(world.publish)


def test_a_turn_writes_to_a_transport(world: World) -> None:
    transport, _ = world.loop.run_until_complete(
        world.loop.create_connection(asyncio.Protocol, sock=world.near)  # type: ignore[arg-type]
    )
    world.hooks.act = lambda: transport.write(b"x")
    world.loop.add_reader(world.far, world.happened.set)
    world.run(world.publish)
    world.loop.remove_reader(world.far)
    transport.abort()
    world.loop.run_until_complete(asyncio.sleep(0))


def test_callbacks_of_the_loop_run_while_the_node_is_busy(world: World) -> None:
    world.hooks.act = world.publish  # each turn brings the next one
    world.run(lambda: (world.publish(), world.loop.call_soon_threadsafe(world.happened.set)))
    world.hooks.act = lambda: None


def test_output_of_a_callback_is_sent_by_a_turn(world: World) -> None:
    def wake() -> None:
        world.driver.wake(world.node.reactor)

    world.stop()
    world.client.write(Pingreq())
    world.loop.add_reader(world.client.socket, world.happened.set)
    world.run(lambda: world.loop.call_soon_threadsafe(wake))
    world.loop.remove_reader(world.client.socket)
    assert isinstance(world.client.take_one(Pingresp), Pingresp)


def test_a_reactor_that_is_stopped_is_not_served(world: World) -> None:
    world.hooks.act = lambda: (world.stop(), world.happened.set())
    world.run(world.publish)
    world.client.socket.recv(100)
    world.hooks.act = lambda: None
    world.publish()
    world.happened.clear()
    world.run(lambda: world.loop.call_soon_threadsafe(world.happened.set))
    with pytest.raises(BlockingIOError):
        world.client.socket.recv(1)
    world.start()
    world.loop.add_reader(world.client.socket, world.happened.set)
    world.happened.clear()
    world.run(lambda: None)
    world.loop.remove_reader(world.client.socket)
    assert world.client.socket.recv(100)


def test_a_failure_goes_to_the_handler_of_the_loop(world: World) -> None:
    failures: list[dict[str, Any]] = []

    def fail() -> None:
        world.node.reactor.set_lease(0)
        raise RuntimeError("on purpose")

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context)
        world.happened.set()

    world.loop.set_exception_handler(note)
    world.node.reactor.attach_lease(fail)
    world.node.reactor.set_lease(1e-9)
    world.run(world.publish)
    assert str(failures[0]["exception"]) == "on purpose"
    world.loop.set_exception_handler(None)
    world.happened.clear()
    world.loop.add_reader(world.client.socket, world.happened.set)
    world.run(lambda: None)  # and the reactor is still served
    world.loop.remove_reader(world.client.socket)
