"""Names of tenants' clients within the broker: `$tenant/NAME/` and the name that the client knows.

The handlers put the prefix in front of topics and client identifiers of a client's packets. A session knows its tenant
by its own client identifier, in the store and in Redis too. `_speedups/codec/tenants.pxd` has the same for PUBLISH.
"""

from ..._speedups.codec.topics import split_tenant
from ..._speedups.routing.delayed import split_delayed

ROOT = "$tenant/"  # no client may write it
LEVELS = 2  # of a prefix


def prefix_of(tenant: str) -> str:
    """The prefix of a tenant's names; empty for clients without a tenant."""
    return f"{ROOT}{tenant}/" if tenant else ""


def name_of(prefix: str) -> str:
    """The tenant of a prefix; the reverse of `prefix_of`."""
    return prefix.removeprefix(ROOT).removesuffix("/")


def is_whole(name: str) -> bool:
    """Whether a name, if it begins as one of a tenant, has the tenant and a name that its clients know."""
    return not name.startswith(ROOT) or all(split(name.encode()))


def split(name: bytes) -> tuple[str, str]:
    """The prefix of a name, empty if it has none, and the name that clients know."""
    prefix, rest = split_tenant(name)
    return prefix.decode(), rest.decode()


def with_prefix(prefix: str, topic: str) -> str:
    """The topic name within the broker of a message that a client wants published; its delay stays in front.

    Raises:
        ValueError: it is a wrong `$delayed/SECONDS/TOPIC`, or it begins as a name of a tenant, also behind a delay.
    """
    delay, name = split_delayed(topic.encode())
    if name.startswith(ROOT.encode()):
        raise ValueError(f"no client publishes to {ROOT}")
    return delay.decode() + prefix + name.decode()
