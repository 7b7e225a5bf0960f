"""This node's link to the cluster: its id, its keys, and calls over the current connection to Redis."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..._speedups.net.reactor import Reactor
from ...broker.errors import NotNow
from ..redis.calls import CALLS
from ..redis.connector import NEVER, Connector
from ..redis.keys import Keys
from ..redis.link import Link, Reply
from ..state import Membership, State

WAIT_MILLISECONDS = 1000  # for replicas
WAITS = 10  # times


class NodeLink:
    """Carries calls to Redis and messages to other nodes; outlives the connections under it.

    Args:
        connector: opens the connections.
        keys: of the cluster.
        node_id: of this node.
        membership: of this node.
        patience: seconds without data after which a call counts as lost.
    """

    def __init__(
        self, connector: Connector, keys: Keys, node_id: bytes, membership: Membership, patience: float
    ) -> None:
        self.keys = keys
        self.node_id = node_id
        self.applied = 0  # the node's last commit that Redis had when the link was resumed
        self.membership = membership
        self._process = 0  # the number of the process of Redis that the node has compared itself with; 0 = not known
        self._connector = connector
        self._patience = patience

    def attach(
        self,
        reactor: Reactor,
        on_push: Callable[[bytes, bytes], int],
        on_drained: Callable[[], object],
        on_lost: Callable[[], object],
        before_call: Callable[[], object],
    ) -> None:
        """Connect the receivers.

        Args:
            reactor: of this node.
            on_push: called with channel and payload of each message to this node.
            on_drained: called when all received data is processed; the turn then ends.
            on_lost: called when the link of a member is lost.
            before_call: called before each call, to send the records that the call has to follow.
        """
        self._reactor = reactor
        self._on_push = on_push
        self._on_drained = on_drained
        self._on_lost = on_lost
        self._before_call = before_call
        self.connection = self._make()

    def _make(self) -> Link:
        return Link(
            self._reactor,
            self._on_push,
            self._on_drained,
            lambda: None,
            patience=self._patience,
            in_slot=bool(self.keys.tag),
        )

    # ---- life ----

    async def open(self) -> None:
        """Open a new connection, with the function library loaded and the channels subscribed; pushes are held.

        Raises:
            Refused: Redis refuses for a lasting reason.
            OSError, LinkError, LinkLost, TimeoutError: Redis is unreachable, or refuses for now.
        """
        link = self._make()
        await self._connector.connect(link)
        link.set_on_lost(partial(self._lost, link))
        link.hold()
        self.connection = link
        await self._connector.introduce(link, self.keys.subscribe, (self.keys.all, self.keys.to(self.node_id)))

    def _lost(self, link: Link) -> None:
        if link is self.connection and self.membership.state in (State.MEMBER, State.SUSPENDED):
            self._connector.reached_at = NEVER  # until an attempt has shown it
            self._on_lost()

    def release(self) -> None:
        """Process the held pushes; from now on none is held."""
        self.connection.release()

    def hang_up(self, why: str = "") -> None:
        """End the connection; the log gets the reason."""
        self.connection.close(why)

    @property
    def connected(self) -> bool:
        """Whether the link carries calls: the node is up to date, and Redis replies."""
        return self.membership.has_link

    @property
    def closed(self) -> bool:
        """Whether the node is fenced, or has left: nothing that arrives is for it."""
        return self.membership.is_over

    @property
    def silent_for(self) -> float:
        """Seconds that the oldest pending call has waited without any data arriving; 0 if none is pending."""
        return self.connection.silent_for

    @property
    def why_closed(self) -> str:
        """The reason why this node has ended the connection, if it has one."""
        return self.connection.why_closed

    @property
    def reached_at(self) -> float:
        """When Redis replied, or its machine refused, at the last attempt to connect since the link was lost.

        A time of `time.monotonic`; NEVER: neither, or there was no attempt.
        """
        return self._connector.reached_at

    # ---- calls ----

    def call(self, then: Callable[[Reply], object], *command: bytes | str | int) -> None:
        """Send a command; `then` gets the reply, an error of Redis, or LinkLost."""
        self._before_call()
        self.connection.call(then, *command)

    def function(self, then: Callable[[Reply], object], name: str, *arguments: Any) -> None:
        """Call a function of the library, with the arguments that `cluster/redis/calls.py` lists for it."""
        self._before_call()
        self.connection.call(then, *self._command(name, arguments))

    def call_function_first(self, decide: Callable[[Reply], bool], name: str) -> None:
        """Call a function, and process nothing before its reply; `decide` returns whether to process the rest."""
        self._before_call()
        self.connection.call_first(decide, *self._command(name, ()))

    async def ask(self, *command: bytes | str | int) -> Any:
        """Send a command and wait for its reply.

        Raises:
            LinkLost: the connection ended, or no data arrived for too long.
            LinkError: Redis replied with an error.
        """
        self._before_call()
        return await self.connection.ask(*command)

    async def ask_function(self, name: str, *arguments: Any) -> Any:
        """Call a function and wait for its reply. Raises as `ask`."""
        self._before_call()
        return await self.connection.ask(*self._command(name, arguments))

    async def ask_function_first(self, first: Callable[[Reply], object], name: str, *arguments: Any) -> Any:
        """Call a function and wait until `first` has its reply, before anything that arrives later. Raises as `ask`."""
        self._before_call()
        return await self.connection.ask(*self._command(name, arguments), first=first)

    async def copied(self, replicas: int) -> None:
        """Wait until so many replicas have all changes of this connection. Raises as `ask`, and NotNow: they do not."""
        for _ in range(WAITS if replicas else 0):
            if await self.ask("WAIT", replicas, WAIT_MILLISECONDS) >= replicas:
                return
        if replicas:
            raise NotNow("the change is made, but too few replicas of Redis have it")

    def publish(self, channel: bytes, message: bytes) -> None:
        """Send a message to other nodes."""
        self.connection.publish(self.keys.publish, channel, message)

    # ---- the process of Redis ----

    def note_process(self) -> None:
        """The node is up to date with the present process of Redis: remember its number."""
        self._process = 0
        self.call(self._noted, b"GET", self.keys.starts)

    def _noted(self, reply: Reply) -> None:
        if isinstance(reply, bytes) and reply.isdigit():
            self._process = int(reply)

    async def resume(self) -> Any:
        """The link is a new one: confirm the membership, and bring the number of the process back to Redis.

        Returns:
            The outcome, the number of the node's last commit (also kept in `applied`), the number of the last change,
            and the calls of the node that Redis has counted. Or `[b"gone"]`: the node is no member.

        Raises:
            LinkLost: the connection ended.
            LinkError: Redis replied with an error.
        """
        reply = await self.ask_function("resume", self._process)
        if reply[0] != b"gone":
            self.applied = reply[1]
        return reply

    def _command(self, name: str, arguments: Any) -> list[bytes | str | int]:
        node = [self.node_id] if CALLS[name].of_node else []
        return [*self.keys.function(name), *node, *arguments]
