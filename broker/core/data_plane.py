"""The data plane of one node: turn, router, sessions and reactor, and the limits that the configuration sets for them.

Whatever publishes, subscribes, closes connections or waits for the store gets the data plane, not the whole broker.
"""

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ..._speedups.base.tick import TICKS_PER_SECOND
from ..._speedups.net.connection import Connection
from ..._speedups.net.reactor import Reactor
from ..._speedups.routing.router import Router
from ..._speedups.session.journal import Journal
from ..._speedups.session.session import Session
from ..._speedups.session.turn import Turn
from ..._speedups.session.turn_limits import TurnLimits
from .. import logs
from ..config.schema import Config
from ..config.tenants import limits_of
from . import tenants
from .dead_letters import DeadLetters
from .driver import Driver
from .group_settings import refresh
from .log_limiter import LogLimiter
from .rewriter import Rewriter
from .sessions import Sessions
from .stuck_sessions import StuckSessions
from .will import Everybody, WillRights

MAX_UNCOMMITTED_BYTES = 32 << 20  # given to the store and not committed: above, publishers are not read

log = logs.get("flockmq.connection")


class DataPlane:
    """Turn, router, sessions and reactor of a node.

    Args:
        config: of the node.
        journal: records of the node, which the turn hands to `commit`.
        commit: stores a block of records.
        driver: runs the reactor.
    """

    def __init__(self, config: Config, journal: Journal, commit: Callable[[bytes], object], driver: Driver) -> None:
        self.turn = Turn(journal, commit, report)
        self.router = Router(self.turn)
        self.dead_letters = DeadLetters(self.router)
        self.sessions = Sessions(self.turn, self.router)
        self.stuck_sessions = StuckSessions(self.turn, self.sessions)
        self.reactor = Reactor(self.router, None, driver)
        self.log_limiter = LogLimiter()
        self.router.filters.set_later(lambda work: driver.call_soon(partial(self._run_turn, work)))
        self.will_rights: WillRights = Everybody()
        self._tasks: set[asyncio.Task[None]] = set()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply the limits of a configuration, at the start and after a reload."""
        self.config = config
        limits = config.limits
        self.rewriter = Rewriter(config.mqtt.rewrite, limits.max_topic_levels) if config.mqtt.rewrite else None
        renames = self.rewriter is not None and self.rewriter.renames_messages
        self.turn.set_rewrite(self.rewriter.on_publish if self.rewriter is not None and renames else None)
        self.turn.set_limits(
            TurnLimits(
                max_packet_size=limits.max_packet_size,
                max_topic_levels=limits.max_topic_levels,
                max_inflight=limits.max_inflight,
                max_queued_messages=limits.max_queued_messages,
                max_queued_bytes=limits.max_queued_bytes,
                drop_oldest=limits.queue_policy == "drop-old",
                max_awaiting_release=limits.max_awaiting_release,
                max_outgoing_bytes=limits.max_outgoing_bytes,
                control_characters=config.mqtt.control_characters,
                validate_payload=config.mqtt.validate_payload,
                receive_maximum=limits.receive_maximum,
                topic_alias_maximum=config.mqtt.topic_alias_maximum,
                max_uncommitted_bytes=MAX_UNCOMMITTED_BYTES,
            )
        )
        self.turn.shared.set(
            window=config.shared.window,
            max_messages=config.shared.max_queued_messages,
            max_bytes=config.shared.max_queued_bytes,
            drop_oldest=limits.queue_policy == "drop-old",
            max_deliveries=config.shared.max_deliveries,
            dead_letter_topic=config.shared.dead_letter_topic.encode(),
        )
        refresh(self.router, self.turn.shared)
        self.stuck_sessions.configure(limits.stuck_after)
        self.turn.tenants.set_limits(lambda prefix: limits_of(config.tenants, tenants.name_of(prefix.decode())))
        self.router.retained.set_limits(limits.max_retained_messages, limits.max_retained_bytes)
        self.router.delayed.set_limits(limits.max_delayed_messages, limits.max_delayed_bytes)
        self.reactor.set_limits(
            max_pending=limits.max_pending_connects,
            connect_ticks=max(1, round(limits.connect_timeout * TICKS_PER_SECOND)),
            retry_ticks=round(config.mqtt.retry_interval * TICKS_PER_SECOND),
        )
        self.reactor.apply_rate_limits()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the packets, and keep its task alive until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run_turn(self, work: Callable[[], object]) -> None:
        work()
        self.end_turn()

    def end_turn(self) -> None:
        """End a turn; to be called after a change that was made outside of one."""
        self.reactor.end_turn()

    def after_step(self, callback: Callable[[], object]) -> None:
        """Call when the store has what was recorded just now, for the packet or the call that is being handled."""
        self.turn.after_commit(callback, self.turn.journal.touched)

    def when_stored(self, connection: Connection, session: Session, callback: Callable[[], object]) -> None:
        """Call when all recorded changes are stored.

        At once for a clean session, which relies on nothing stored; unless other packets of its connection wait.
        """
        if session.persistent or connection.waits:
            self.turn.after_commit(callback)
        else:
            callback()

    async def stored(self) -> None:
        """End the turn, and wait until its records are stored."""
        done = asyncio.Event()
        self.turn.after_commit(done.set)
        self.end_turn()
        await done.wait()


def report(error: Exception, **where: object) -> None:
    """Log an exception that no code here should raise."""
    log.error("internal error", error="".join(traceback.format_exception(error)), **where)
