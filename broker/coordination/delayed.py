"""The delayed messages of a node alone: a timer for the first that is due."""

import secrets
import time
from asyncio import TimerHandle
from collections.abc import Callable, Iterable

from ..._speedups.base.tick import MS_PER_TICK
from ..._speedups.session.journal import Journal
from ..._speedups.session.session_store import Restored
from ..core.data_plane import DataPlane
from .coordinator import Delayed, DelayedMessages

CallLater = Callable[[float, Callable[[], object]], TimerHandle]
AT_ONCE = 1000  # messages that are published before other clients have their turn


class LocalDelayed(DelayedMessages):
    """Publishes the messages to `$delayed/SECONDS/TOPIC` when they are due.

    Args:
        data_plane: of the node.
        journal: of the node, whose clock it continues in milliseconds.
        call_later: calls a function after seconds; None: only ticks publish messages.
    """

    def __init__(self, data_plane: DataPlane, journal: Journal, call_later: CallLater | None) -> None:
        self._data_plane = data_plane
        self._journal = journal
        self._call_later = call_later
        self._offset = 0  # milliseconds between the store's clock and the machine's
        self._timer: TimerHandle | None = None
        self._run = secrets.token_hex(4)  # before the numbers of messages, which begin at 1 with each start

    def start(self, stored: Iterable[tuple[Restored, int, bytes]]) -> None:
        """Take the messages of the store, and let further ones wait.

        Args:
            stored: message, when it is due in milliseconds of the store's clock, client id of its publisher; in the
                order in which they are published.
        """
        self._offset = self._journal.time - _machine_clock()
        delayed = self._data_plane.router.delayed
        delayed.open(self.now, self._arm)
        for message, due, publisher in stored:
            delayed.restore(message, due, publisher)
        if delayed.due is not None:
            self._arm(delayed.due)

    def tick(self) -> None:
        """A quarter of a second has passed: no timer counts the time for which the machine sleeps."""
        ahead = self._journal.time - self.now()
        if ahead > MS_PER_TICK:  # the turn's clock was moved: it counts the time for which the process was stopped
            self._offset += ahead
        due = self._data_plane.router.delayed.due
        if due is not None and due <= self.now():
            self._publish()

    def stop(self) -> None:
        """Publish no more."""
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> int:
        """The store's clock, in milliseconds."""
        return _machine_clock() + self._offset

    async def waiting(self, prefix: bytes, without: bytes, after: str, limit: int) -> list[Delayed]:
        due, _, number = after.partition("-")
        now = self.now()
        found = self._data_plane.router.delayed.find(prefix, without, int(due or -1), int(number or 0), limit)
        return [
            Delayed(f"{self._run}-{number}", f"{due}-{number}", due - now, publisher, topic, qos, retain, size)
            for due, number, publisher, topic, qos, retain, size in found
        ]

    async def cancel(self, message: str, prefix: bytes) -> bool:
        run, _, number = message.partition("-")
        if run != self._run or not self._data_plane.router.delayed.cancel(int(number), prefix):
            return False
        await self._data_plane.stored()
        return True

    def _arm(self, due: int) -> None:
        self.stop()
        if self._call_later is not None:
            self._timer = self._call_later(max(0, due - self.now()) / 1000, self._publish)

    def _publish(self) -> None:
        if self._data_plane.router.publish_delayed(AT_ONCE):
            self._data_plane.end_turn()
        due = self._data_plane.router.delayed.due
        if due is not None:
            self._arm(due)


def _machine_clock() -> int:
    """Milliseconds since the machine began, its sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
