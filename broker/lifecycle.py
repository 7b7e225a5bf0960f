"""The life of a node, from its start to its stop: one state, which only the methods of `Lifecycle` change.

The table of transitions is also in deploy/docs/CLUSTER.md, "The life of a node"; a test compares the two. A node alone
goes the same way, and never rejoins. Its state in the cluster is another one (cluster/state.py).
"""

import asyncio
from enum import Enum

from .state_machine import StateMachine


class Phase(Enum):
    """A part of a node's life."""

    STARTING = "starting"  # it reads the stored state, or joins the cluster, and repeats that until it is possible
    OPENING = "opening"  # the state is in memory; the sessions of links are prepared, and then clients are accepted
    SERVING = "serving"  # clients are accepted
    REJOINING = "rejoining"  # it was fenced: it has closed all clients, drops its state, and joins again
    STOPPING = "stopping"  # it is to stop: clients are still served, until load balancers have noticed
    CLOSING = "closing"  # it closes the clients that are left, stores all, and ends
    ABANDONED = "abandoned"  # it was to stop, or failed, before it had started


class Event(Enum):
    """Something that ends a part."""

    STARTED = "the state is in memory"
    OPENED = "clients are accepted"
    FENCED = "the cluster has fenced it"
    STOPPED = "it is to stop"
    FAILED = "it can't rejoin, or its store has failed"
    NOTICED = "load balancers have noticed"


TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.STARTING, Event.STARTED): Phase.OPENING,
    (Phase.REJOINING, Event.STARTED): Phase.OPENING,
    (Phase.OPENING, Event.OPENED): Phase.SERVING,
    (Phase.OPENING, Event.FENCED): Phase.REJOINING,
    (Phase.SERVING, Event.FENCED): Phase.REJOINING,
    (Phase.STARTING, Event.FENCED): Phase.STARTING,  # this attempt to join fails
    (Phase.REJOINING, Event.FENCED): Phase.REJOINING,
    (Phase.STOPPING, Event.FENCED): Phase.CLOSING,
    (Phase.CLOSING, Event.FENCED): Phase.CLOSING,
    (Phase.ABANDONED, Event.FENCED): Phase.ABANDONED,
    (Phase.STARTING, Event.STOPPED): Phase.ABANDONED,
    (Phase.OPENING, Event.STOPPED): Phase.CLOSING,
    (Phase.SERVING, Event.STOPPED): Phase.STOPPING,
    (Phase.REJOINING, Event.STOPPED): Phase.CLOSING,
    (Phase.STARTING, Event.FAILED): Phase.ABANDONED,
    (Phase.OPENING, Event.FAILED): Phase.CLOSING,
    (Phase.SERVING, Event.FAILED): Phase.CLOSING,
    (Phase.REJOINING, Event.FAILED): Phase.CLOSING,
    (Phase.STOPPING, Event.FAILED): Phase.CLOSING,
    (Phase.CLOSING, Event.FAILED): Phase.CLOSING,
    (Phase.ABANDONED, Event.FAILED): Phase.ABANDONED,
    (Phase.STOPPING, Event.NOTICED): Phase.CLOSING,
}


class Lifecycle:
    """The life of a node. Its methods raise IllegalTransition.

    Args:
        name: of the node.
    """

    def __init__(self, name: str) -> None:
        self._machine = StateMachine(name, TRANSITIONS, Phase.STARTING)
        self._is_to_stop = asyncio.Event()
        self._is_closing = asyncio.Event()
        self.failure: Exception | None = None  # the reason for which the node ends

    # ---- what it does ----

    @property
    def phase(self) -> Phase:
        """The present part."""
        return self._machine.state

    @property
    def has_started(self) -> bool:
        """Whether its state was in memory, at least once."""
        return self.phase not in (Phase.STARTING, Phase.ABANDONED)

    @property
    def has_state(self) -> bool:
        """Whether its state is in memory, and stays there for now."""
        return self.phase in (Phase.OPENING, Phase.SERVING, Phase.STOPPING)

    @property
    def ends(self) -> bool:
        """Whether it is to stop, or has failed."""
        return self.phase in (Phase.STOPPING, Phase.CLOSING, Phase.ABANDONED)

    async def until_end(self) -> None:
        """Wait until it is to stop, or has failed."""
        await self._is_to_stop.wait()

    async def until_closing(self) -> None:
        """Wait until it is to stop, and nothing is left to wait for."""
        await self._is_closing.wait()

    # ---- what happens ----

    def become_started(self) -> None:
        """The stored state is read, or the cluster is joined."""
        self._take(Event.STARTED)

    def become_serving(self) -> None:
        """Clients are accepted."""
        self._take(Event.OPENED)

    def become_fenced(self) -> bool:
        """The node has lost its place in the cluster. Returns whether it has to close its clients, and to rejoin."""
        before = self.phase
        self._take(Event.FENCED)
        return self.phase is Phase.REJOINING and before is not Phase.REJOINING

    def stop(self) -> None:
        """The node is to stop. Does nothing if it ends already."""
        if not self.ends:
            self._take(Event.STOPPED)

    def fail(self, failure: Exception) -> None:
        """The node can't go on."""
        self.failure = failure
        self._take(Event.FAILED)

    def close(self) -> None:
        """Load balancers have noticed that the node stops, or there are none. Does nothing if it closes already."""
        if self.phase is Phase.STOPPING:
            self._take(Event.NOTICED)

    def _take(self, event: Event) -> None:
        self._machine.take(event)
        if self.ends:
            self._is_to_stop.set()
        if self.phase in (Phase.CLOSING, Phase.ABANDONED):
            self._is_closing.set()
