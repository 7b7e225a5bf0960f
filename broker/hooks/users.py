"""Authentication by hooks (`flockmq.hooks.Hooks.authenticate`)."""

from broker.auth.authenticator import Credentials, Identity, ReasonCode, Verdict
from broker.hooks.chain import HookChain

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

    def renew(self, identity: Identity) -> Identity:
        return identity
