"""Hooks: what users' own code may hear and decide. A closed list: the methods of `Hooks`.

A subclass overrides what it needs; what nobody overrides costs nothing. Every method but `deliver` may be `async def`:
the connection whose packet it is waits, the others go on. Rules:
- Several hooks are asked in their order; the first that refuses has decided.
- One that raises, or takes longer than `hooks.timeout`, is logged and counts as a refusal where it decides: it harms
  nobody but the client whose packet it was asked about.
- Hooks run on the node's loop: what takes long or waits belongs into `async def`, or into a thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from importlib import import_module
from inspect import isawaitable, isclass
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from broker import logs
from broker.auth.authenticator import Credentials, Verdict
from broker.errors import UsageError

T = TypeVar("T")

SLOW_SECONDS = 0.05  # that a call may hold up everybody before it is logged
SLOW_EVERY = 60.0  # seconds between these lines

log = logs.get("flockmq.hooks")


class Client(NamedTuple):
    """A client that has been let in."""

    client_id: str
    username: str | None  # verified; None = anonymous
    address: str
    listener: str = "default"


class Message(NamedTuple):
    """An application message; `_replace` makes another one."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Hooks:
    """Does nothing; override what you need."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict | None] | None:
        """A client says CONNECT. A verdict, or None: others may know."""

    def connect(self, client: Client) -> bool | Awaitable[bool | None] | None:
        """A client is who it says. False refuses it (return code 5)."""

    def authorize(
        self, client: Client, action: Literal["publish", "subscribe"], topic: str
    ) -> bool | Awaitable[bool | None] | None:
        """A client publishes to a topic name (its will too), or subscribes to a topic filter. False refuses."""

    def publish(self, client: Client, message: Message) -> Message | bool | Awaitable[Message | bool | None] | None:
        """A client publishes. Another message takes its place, False drops it (it is acknowledged all the same)."""

    def deliver(self, client_id: str, message: Message) -> bool | None:
        """A message is about to be sent to a client. False drops it for that client. Called for each receiver."""

    def subscribe(
        self, client: Client, topic_filter: str, qos: int
    ) -> int | bool | Awaitable[int | bool | None] | None:
        """A client subscribes. Another QoS is granted, False refuses (code 0x80)."""

    def connected(self, client: Client) -> Awaitable[None] | None:
        """A client has got CONNACK."""

    def disconnected(self, client: Client, reason: str) -> Awaitable[None] | None:
        """Its connection has ended."""

    def session_started(self, client_id: str, persistent: bool) -> Awaitable[None] | None:
        """A new session has begun at this node."""

    def session_ended(self, client_id: str) -> Awaitable[None] | None:
        """A session has ended, or has left this node, which is the same for a node alone."""


class _Refused:
    """The value of what a hook has refused."""


REFUSED: Final = _Refused()
ANSWERS: dict[str, type] = {"publish": Message, "subscribe": int}  # of decisions, besides None, True and False
Question = tuple[str, Callable[[T], tuple[Any, ...]]]  # name of a method, and what makes its arguments of the value


class HookChain:
    """The hooks of a node.

    Args:
        hooks: in the order in which they are asked.
        timeout: seconds that one call of an `async def` may take.
        run: lets a coroutine go on beside the packets.
    """

    def __init__(
        self, hooks: Iterable[Hooks] = (), timeout: float = 5.0, run: Callable[..., None] | None = None
    ) -> None:
        self._hooks = tuple(hooks)
        self.timeout = timeout
        self._run = run
        self._heard = {name: tuple(self._overriding(name)) for name in NAMES}
        self._told_slow = -SLOW_EVERY

    def _overriding(self, name: str) -> Iterator[Callable[..., Any]]:
        for hooks in self._hooks:
            method = getattr(hooks, name, None)
            if method is not None and getattr(method, "__func__", method) is not getattr(Hooks, name):
                yield method

    def hears(self, *names: str) -> bool:
        """Whether a hook overrides one of these methods."""
        return any(self._heard[name] for name in names)

    # ---- decisions ----

    def decide(self, value: T, *questions: Question[T]) -> T | _Refused | Awaitable[T | _Refused]:
        """Ask all hooks that override the method of the first question, then those of the next.

        What one returns is the next value; None and True leave it as it is; False and a failure refuse. The answer is
        awaitable only if a hook's is.
        """
        rest = ((name, hook, arguments) for name, arguments in questions for hook in self._heard[name])
        for name, hook, arguments in rest:
            answer = self._call(name, hook, arguments(value))
            if isawaitable(answer):
                return self._decide_later(value, name, answer, rest)
            following = _next_value(value, name, answer)
            if isinstance(following, _Refused):
                return following
            value = following
        return value

    async def _decide_later(
        self, value: T, name: str, answer: Awaitable[Any], rest: Iterator[tuple[str, Any, Any]]
    ) -> T | _Refused:
        settled = await self._wait(name, answer)
        while not isinstance(found := _next_value(value, name, settled), _Refused):
            value = found
            following = next(rest, None)
            if following is None:
                return value
            name, hook, arguments = following
            settled = self._call(name, hook, arguments(value))
            if isawaitable(settled):
                settled = await self._wait(name, settled)
        return REFUSED

    async def answers(self, name: str, *arguments: Any) -> AsyncIterator[Any]:
        """What the hooks that override `name` say, one after the other; False where one fails."""
        for hook in self._heard[name]:
            answer = self._call(name, hook, arguments)
            yield await self._wait(name, answer) if isawaitable(answer) else answer

    def tell(self, name: str, *arguments: Any) -> None:
        """Tell all hooks that override `name` what has happened."""
        for hook in self._heard[name]:
            answer = self._call(name, hook, arguments)
            if isawaitable(answer) and self._run is not None:
                self._run(self._told(name, answer))

    async def _told(self, name: str, answer: Awaitable[Any]) -> None:
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
            if now - began > SLOW_SECONDS and now - self._told_slow > SLOW_EVERY:
                self._told_slow = now
                log.warning(
                    "a hook holds up everybody: it should be `async def`, or use a thread",
                    hook=name,
                    seconds=f"{now - began:.3f}",
                )

    async def _wait(self, name: str, answer: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(answer, self.timeout)
        except TimeoutError:
            log.error("a hook took too long, which counts as a refusal", hook=name, seconds=self.timeout)
        except Exception:
            log.exception("a hook failed", hook=name)
        return False


def _next_value(value: T, name: str, answer: Any) -> T | _Refused:
    """What a hook's answer makes of the value; what is no answer to its question refuses."""
    if answer is None or answer is True:
        return value
    if answer is False:
        return REFUSED
    if name in ANSWERS and isinstance(answer, ANSWERS[name]):
        return cast(T, answer)
    log.error("a hook gave an answer of a wrong type, which counts as a refusal", hook=name, type=type(answer).__name__)
    return REFUSED


NAMES = tuple(name for name in vars(Hooks) if not name.startswith("_"))


def load(names: Iterable[str]) -> list[Hooks]:
    """The objects that these MODULE:OBJECT name; a class is called to make one.

    Raises:
        UsageError: there is none, or it is of another kind.
    """
    found = []
    for name in names:
        if "" not in sys.path:
            sys.path.insert(0, "")  # the directory in which the node was started
        module, _, path = name.partition(":")
        try:
            thing: Any = import_module(module)
            for part in path.split("."):
                thing = getattr(thing, part)
            thing = thing() if isclass(thing) else thing
        except Exception as error:
            raise UsageError(
                f"hooks {name}: {type(error).__name__}: {error}", "expected MODULE:OBJECT that Python can import"
            ) from error
        strange = [part for part in dir(thing) if not part.startswith("_") and callable(getattr(thing, part))]
        if not isinstance(thing, Hooks):
            raise UsageError(
                f"hooks {name}: {type(thing).__name__} is no subclass of flockmq.hooks.Hooks",
                f"it has {', '.join(strange) or 'no methods'}; make it `class MyHooks(flockmq.hooks.Hooks)`",
            )
        found.append(thing)
    return found
