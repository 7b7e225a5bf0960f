"""The state of this node in its cluster, which only the methods of `Membership` change.

The table of transitions is also in deploy/docs/CLUSTER.md, "The state of a node"; a test compares the two. Timers,
deadlines and tasks are where they are used: in the lease, the heartbeat and the recovery of the link.
"""

from collections.abc import Callable
from enum import Enum

from ..broker.state_machine import StateMachine


class State(Enum):
    """The state of a node in its cluster."""

    JOINING = "joining"  # it reads the state of the cluster
    READY = "ready"  # it is up to date, and its link carries calls; its first heartbeat has no reply yet
    MEMBER = "member"  # it serves clients
    SUSPENDED = "suspended"  # its lease has expired: it serves no client until Redis has confirmed its membership
    CUT_OFF = "cut off"  # its link is lost: it serves clients as far as that needs no other node
    STRANDED = "stranded"  # its link is lost, and it stood still: it serves no client
    LEAVING = "leaving"  # it has stored all, and reports to Redis that it leaves
    FENCED = "fenced"  # it is no member any more, or its state is not the cluster's: final
    LEFT = "left"  # it has left, or has given up joining: final


class Event(Enum):
    """Something after which a node may be something else."""

    CAUGHT_UP = "it has read the state"
    ADMITTED = "Redis has replied to its first heartbeat"
    LEASE_EXPIRED = "its lease has expired"
    CONFIRMED = "Redis has confirmed its membership"
    LINK_LOST = "its link is lost"
    LINK_BACK = "its link is back, and it has caught up"
    STOOD_STILL = "it stood still"
    UNCONFIRMED = "Redis stays away: its persistent clients are closed"
    LEAVES = "it stops, and has stored all"
    ENDED = "it has left, or has given up"
    FENCED = "it was declared dead, or can't continue"


NOT_FINAL = tuple(state for state in State if state not in (State.FENCED, State.LEFT))
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.JOINING, Event.CAUGHT_UP): State.READY,
    (State.READY, Event.ADMITTED): State.MEMBER,
    (State.MEMBER, Event.LEASE_EXPIRED): State.SUSPENDED,
    (State.SUSPENDED, Event.CONFIRMED): State.MEMBER,
    (State.LEAVING, Event.CONFIRMED): State.LEAVING,  # its lease had expired before
    (State.MEMBER, Event.LINK_LOST): State.CUT_OFF,
    (State.SUSPENDED, Event.LINK_LOST): State.STRANDED,
    (State.CUT_OFF, Event.STOOD_STILL): State.STRANDED,
    (State.STRANDED, Event.UNCONFIRMED): State.CUT_OFF,
    (State.CUT_OFF, Event.LINK_BACK): State.MEMBER,
    (State.STRANDED, Event.LINK_BACK): State.MEMBER,
    (State.MEMBER, Event.LEAVES): State.LEAVING,
    (State.SUSPENDED, Event.LEAVES): State.LEAVING,
    (State.CUT_OFF, Event.LEAVES): State.LEAVING,
    (State.STRANDED, Event.LEAVES): State.LEAVING,
    (State.JOINING, Event.ENDED): State.LEFT,
    (State.READY, Event.ENDED): State.LEFT,
    (State.LEAVING, Event.ENDED): State.LEFT,
    **{(state, Event.FENCED): State.FENCED for state in NOT_FINAL},
}


OVER = (State.FENCED, State.LEFT)


class Membership:
    """The state of this node in its cluster. Each method but `become_fenced` raises IllegalTransition.

    Args:
        node_id: of this node.
        on_fenced: called with the reason, once, when the node has become fenced; the second argument is the state
            before.
    """

    def __init__(self, node_id: str, on_fenced: Callable[[str, State], object]) -> None:
        self._machine = StateMachine(node_id, TRANSITIONS, State.JOINING)
        self._on_fenced = on_fenced
        self.why_fenced = ""

    # ---- what it is ----

    @property
    def state(self) -> State:
        """The present state."""
        return self._machine.state

    @property
    def joins(self) -> bool:
        """Whether it is not a member yet."""
        return self.state in (State.JOINING, State.READY)

    @property
    def is_member(self) -> bool:
        """Whether it is a member as far as it knows, and goes on: with a link or without one."""
        return self.state in (State.MEMBER, State.SUSPENDED, State.CUT_OFF, State.STRANDED)

    @property
    def has_link(self) -> bool:
        """Whether its link carries calls."""
        return self.state in (State.READY, State.MEMBER, State.SUSPENDED, State.LEAVING)

    @property
    def has_lost_link(self) -> bool:
        """Whether its link is being repaired."""
        return self.state in (State.CUT_OFF, State.STRANDED)

    @property
    def serves(self) -> bool:
        """Whether it may serve clients."""
        return self.state in (State.MEMBER, State.CUT_OFF)

    @property
    def is_over(self) -> bool:
        """Whether it takes no part in the cluster any more."""
        return self._machine.state in OVER

    # ---- what happens ----

    def become_ready(self) -> None:
        """It has read the state of the cluster, and is up to date."""
        self._machine.take(Event.CAUGHT_UP)

    def become_member(self) -> None:
        """Redis has replied to its first heartbeat."""
        self._machine.take(Event.ADMITTED)

    def become_suspended(self) -> None:
        """Its lease has expired."""
        self._machine.take(Event.LEASE_EXPIRED)

    def become_confirmed(self) -> None:
        """Redis has confirmed the membership of a node whose lease had expired."""
        self._machine.take(Event.CONFIRMED)

    def lose_link(self) -> None:
        """Its link is lost: a member is cut off, a suspended node is stranded."""
        self._machine.take(Event.LINK_LOST)

    def regain_link(self) -> None:
        """Its link is back, and it has caught up."""
        self._machine.take(Event.LINK_BACK)

    def become_stranded(self) -> None:
        """It stood still without a link."""
        self._machine.take(Event.STOOD_STILL)

    def give_up_waiting(self) -> None:
        """Redis stays away: a stranded node is cut off like others, without persistent clients."""
        self._machine.take(Event.UNCONFIRMED)

    def become_leaving(self) -> None:
        """It stops, and has stored all that it could."""
        self._machine.take(Event.LEAVES)

    def become_left(self) -> None:
        """It has left the cluster, or has given up joining it."""
        self._machine.take(Event.ENDED)

    def become_fenced(self, reason: str) -> None:
        """It was declared dead, or can't continue with its state. Does nothing if it is no member any more."""
        if self.is_over:
            return
        before = self.state
        self.why_fenced = reason
        self._machine.take(Event.FENCED)
        self._on_fenced(reason, before)
