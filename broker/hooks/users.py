"""Authentication by hooks (`flockmq.hooks.Hooks.authenticate` and `authentication`)."""

from typing import Any

from ..auth.authenticator import Challenge, Credentials, Identity, ReasonCode, Step, Verdict
from .chain import HookChain

FAILED = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="a hook failed to authenticate it")


class HookUsers:
    """Calls the hooks, before the other ways to authenticate.

    Args:
        hooks: of the node.
    """

    name = "hooks"
    dummy_hash = None

    def __init__(self, hooks: HookChain) -> None:
        self._hooks = hooks

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        async for answer in self._hooks.answers("authenticate", credentials):
            if isinstance(answer, Verdict):
                return answer
            if answer is not None:
                return FAILED  # it raised, took too long, or returned no verdict
        return None

    def exchange(self, name: str) -> "HookExchange | None":
        """An exchange of the first hook that has this method; None: no hook has it."""
        for answer in self._hooks.each("authentication", name):
            if answer is not None:
                return HookExchange(self._hooks, answer)
        return None

    def renew(self, identity: Identity) -> Identity:
        return identity


class HookExchange:
    """An exchange of a hook.

    Args:
        hooks: of the node.
        exchange: made by the hook; one without the methods of an exchange refuses, as a hook that fails does.
    """

    def __init__(self, hooks: HookChain, exchange: Any) -> None:
        self._hooks = hooks
        self._exchange = exchange

    async def start(self, client: Credentials, data: bytes) -> Step:
        return await self._ask("start", client, data)

    async def step(self, data: bytes) -> Step:
        return await self._ask("step", data)

    async def _ask(self, name: str, *arguments: Any) -> Step:
        method = getattr(self._exchange, name, None)
        answer = None if method is None else await self._hooks.ask("authentication", method, *arguments)
        return answer if isinstance(answer, Challenge | Verdict) else FAILED
