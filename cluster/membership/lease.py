"""For how long this node may serve without having heard that it is still one of the cluster.

A process that stood still (SIGSTOP, a paused machine) may have been taken for dead meanwhile, and its clients' sessions
may be elsewhere. So when the lease has run out nobody is served, nor is what Redis has pushed acted on, until Redis has
answered whether the node is still one.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from _speedups.net.reactor import Reactor
from broker import logs
from cluster.redis.link import Reply

USED = 0.9  # of the lease, after which a node that was not heard counts itself as dead

log = logs.get("flockmq.cluster")


class Lease:
    """The lease of a node.

    Args:
        seconds: how long it is.
        patience: seconds that an answer may take.
        loop: of the node.
        reactor: gives that of the node's clients.
        ask: calls back with Redis' answer to a heartbeat, before anything else that came is acted on.
        hang_up: ends the link.
        displaced: called with the reason when the node is no longer one of the cluster.
    """

    def __init__(
        self,
        seconds: float,
        patience: float,
        loop: asyncio.AbstractEventLoop,
        *,
        reactor: Callable[[], Reactor],
        ask: Callable[[Callable[[Reply], bool]], object],
        hang_up: Callable[[], object],
        displaced: Callable[[str], object],
    ) -> None:
        self.seconds = seconds
        self.valid_until = 0.0  # monotonic
        self.suspended = False  # clients are not served until it is known whether the node is still one
        self._patience = patience
        self._loop = loop
        self._reactor = reactor
        self._ask = ask
        self._hang_up = hang_up
        self._displaced = displaced
        self._unanswered: asyncio.TimerHandle | None = None  # ends the link if that stays unknown

    def renew(self, heard_at: float) -> None:
        """Redis has answered a heartbeat that was sent then."""
        self.valid_until = heard_at + self.seconds * USED
        self._reactor().valid_for(self.valid_until - time.monotonic())

    def suspend(self) -> None:
        """It ran out before anything else was noticed: this process stood still. Ask before serving anybody."""
        if self.suspended:
            return
        self.suspended = True
        log.warning("this node stood still for longer than its lease; asking whether it is still one of the cluster")
        self._loop.remove_reader(self._reactor().fileno())
        self._ask(partial(self._judge, time.monotonic()))
        self._unanswered = self._loop.call_later(self._patience, self._hang_up)

    def resume(self) -> None:
        """Serve clients again, whether it is known or there is nobody to ask."""
        if self.suspended:
            self.suspended = False
            if self._unanswered is not None:
                self._unanswered.cancel()
            reactor = self._reactor()
            self._loop.add_reader(reactor.fileno(), reactor.run)

    def without_link(self) -> None:
        """Redis is away: what needs nobody goes on, the rest waits."""
        self._reactor().valid_for(0)
        self.resume()

    def _judge(self, asked_at: float, reply: Reply) -> bool:
        """Whether what came while the node stood still may be acted on."""
        if isinstance(reply, list) and reply[0] != b"gone":
            self.renew(asked_at)
            self.resume()
            return True
        if isinstance(reply, list):
            self._displaced("it stood still, and the others took it for dead")
        else:
            self._hang_up()
        return False
