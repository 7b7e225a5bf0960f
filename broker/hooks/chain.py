"""The hooks of a node: calls them in their order, waits for `async def` hooks, and logs failures."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import cache
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar, cast

from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.codec.tables import REASON_CODES
from ..._speedups.net.connection import Connection
from .. import logs
from .api import NO_PROPERTIES, Client, Hooks, Message, Refusal

T = TypeVar("T")

FAILURE = 0x80  # the first reason code of refusals
SLOW_SECONDS = 0.05  # duration of a call from which on it is logged
SLOW_INTERVAL = 60.0  # seconds between these lines

log = logs.get("flockmq.hooks")


class Refused(NamedTuple):
    """The result of a filter when a hook has refused."""

    method: str
    refusal: Refusal | None = None  # None: the hook returned False, or failed

    @property
    def reason(self) -> str:
        """In words."""
        return (self.refusal or BY_A_HOOK).reason

    def code_of(self, packet_type: int) -> ReasonCode:
        """The reason code for the acknowledgement of this type."""
        if self.refusal is None:
            return (
                ReasonCode.UNSPECIFIED_ERROR if self.method in ("publish", "subscribe") else ReasonCode.NOT_AUTHORIZED
            )
        if self.refusal.code in _codes_of(packet_type):
            return ReasonCode(self.refusal.code)
        log.error("a hook refused with a code that the packet can't carry", hook=self.method, code=self.refusal.code)
        return ReasonCode.UNSPECIFIED_ERROR


BY_A_HOOK = Refusal()
DECIDES = ("connect", "authorize", "publish", "subscribe")  # methods that may return a Refusal
ANSWERS: dict[str, type] = {"publish": Message, "subscribe": int}  # results of filters, besides None, True and False
NAMES = tuple(name for name in vars(Hooks) if not name.startswith("_"))
Question = tuple[str, Callable[[T], tuple[Any, ...]]]  # method name, arguments from value


class HookChain:
    """The hooks of a node.

    Args:
        hooks: in the order in which they are called.
        timeout: seconds that one call of an `async def` may take.
        run: runs a coroutine beside the packets.
    """

    def __init__(
        self, hooks: Iterable[Hooks] = (), timeout: float = 5.0, run: Callable[..., None] | None = None
    ) -> None:
        self._run = run
        self._logged_slow = -SLOW_INTERVAL
        self.use(hooks, timeout)

    def use(self, hooks: Iterable[Hooks], timeout: float) -> None:
        """Call these hooks from now on, with arguments as of the class."""
        given = tuple(hooks)
        self.timeout = timeout
        self._methods = {name: tuple(_overriding(given, name)) for name in NAMES}
        self._overridden = frozenset(name for name, methods in self._methods.items() if methods)

    def has(self, *names: str) -> bool:
        """Whether a hook overrides one of these methods."""
        return not self._overridden.isdisjoint(names)

    # ---- calls ----

    def filter(self, value: T, *questions: Question[T]) -> T | Refused | Awaitable[T | Refused]:
        """Call all hooks that override the method of the first question, then of the next.

        The result of a hook is the next value; None and True leave it as it is; False and a failure refuse. The result
        is awaitable only if a hook's result is.
        """
        rest = ((name, hook, arguments) for name, arguments in questions for hook in self._methods[name])
        for name, hook, arguments in rest:
            answer = self._call(name, hook, arguments(value))
            if isawaitable(answer):
                return self._filter_later(value, name, answer, rest)
            following = _next_value(value, name, answer)
            if isinstance(following, Refused):
                return following
            value = following
        return value

    async def _filter_later(
        self, value: T, name: str, answer: Awaitable[Any], rest: Iterator[tuple[str, Any, Any]]
    ) -> T | Refused:
        settled = await self._wait(name, answer)
        while not isinstance(found := _next_value(value, name, settled), Refused):
            value = found
            following = next(rest, None)
            if following is None:
                return value
            name, hook, arguments = following
            settled = self._call(name, hook, arguments(value))
            if isawaitable(settled):
                settled = await self._wait(name, settled)
        return found

    async def answers(self, name: str, *arguments: Any) -> AsyncIterator[Any]:
        """The results of the hooks that override `name`, one after the other; False where one fails."""
        for hook in self._methods[name]:
            answer = self._call(name, hook, arguments)
            yield await self._wait(name, answer) if isawaitable(answer) else answer

    def each(self, name: str, *arguments: Any) -> Iterator[Any]:
        """As `answers`, of a method that is not `async def`."""
        for hook in self._methods[name]:
            yield self._call(name, hook, arguments)

    async def ask(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a method of an object that a hook has made; False if it fails."""
        answer = self._call(name, method, arguments)
        return await self._wait(name, answer) if isawaitable(answer) else answer

    def notify(self, name: str, *arguments: Any) -> None:
        """Call all hooks that override `name`; their results are ignored."""
        for hook in self._methods[name]:
            answer = self._call(name, hook, arguments)
            if isawaitable(answer) and self._run is not None:
                self._run(self._notify_later(name, answer))

    async def _notify_later(self, name: str, answer: Awaitable[Any]) -> None:
        await self._wait(name, answer)

    # ---- one call ----

    def _call(self, name: str, hook: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        began = time.monotonic()
        try:
            return hook(*arguments)
        except Exception:
            log.exception("a hook failed", hook=name)
            return False
        finally:
            now = time.monotonic()
            if now - began > SLOW_SECONDS and now - self._logged_slow > SLOW_INTERVAL:
                self._logged_slow = now
                log.warning(
                    "a hook blocks the node: it should be `async def`, or use a thread",
                    hook=name,
                    seconds=round(now - began, 3),
                )

    async def _wait(self, name: str, answer: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(answer, self.timeout)
        except TimeoutError:
            log.error("a hook took too long, which counts as a refusal", hook=name, seconds=self.timeout)
        except Exception:
            log.exception("a hook failed", hook=name)
        return False


def _next_value(value: T, name: str, answer: Any) -> T | Refused:
    """The value after a hook; a result of a wrong type refuses."""
    if answer is None or answer is True:
        return value
    if answer is False:
        return Refused(name)
    if isinstance(answer, Refusal) and name in DECIDES:
        return Refused(name, answer)
    if name in ANSWERS and isinstance(answer, ANSWERS[name]):
        return cast(T, answer)
    log.error("a hook returned a wrong type, which counts as a refusal", hook=name, type=type(answer).__name__)
    return Refused(name)


@cache
def _codes_of(packet_type: int) -> frozenset[int]:
    """The reason codes of refusals that a packet may carry."""
    return frozenset(row.code for row in REASON_CODES if row.packets >> packet_type & 1 and row.code >= FAILURE)


def _overriding(given: tuple[Hooks, ...], name: str) -> Iterator[Callable[..., Any]]:
    """The methods of this name that hooks override."""
    for hooks in given:
        method = getattr(hooks, name, None)
        if method is not None and getattr(method, "__func__", method) is not getattr(Hooks, name):
            yield method


def client_of(connection: Connection) -> Client:
    """An admitted client, in the form that hooks receive."""
    session = connection.claimed
    client_id = session.client_id.decode() if session is not None else ""
    return Client(
        client_id,
        connection.identity.username,
        connection.address,
        connection.listener,
        connection.protocol_level or 4,  # 0: CONNACK was not sent yet
        connection.connect_properties or NO_PROPERTIES,
    )
