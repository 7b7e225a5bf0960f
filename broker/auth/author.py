"""The author of a will, as it is stored beside it.

A will may be published long after its CONNECT: by the node that starts again, or by another one. Whether its client may
still publish it is decided then, by the rules of then. For that the store has who the client was: listener, method,
user name and roles, and the rules that no file has: rules of a token, of an HTTP back end or of a hook.
"""

import json

from ..._speedups.session.rights import Rights
from .authenticator import Identity
from .rules import Rule


def pack_author(identity: Identity) -> bytes:
    """The identity as it is stored: a JSON array."""
    rules = None if identity.rules is None else [list(rule) for rule in identity.rules]
    granted = None if identity.granted is None else [[*rule[:2], rule[2].decode()] for rule in identity.granted.key]
    roles = list(identity.roles) or None
    found = [identity.listener, identity.method, identity.username, rules, granted, roles]
    while found[-1] is None:
        found.pop()
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()


def parse_author(data: bytes, tenant: str) -> Identity:
    """The identity of the author of a will.

    Args:
        data: as `pack_author` returns it.
        tenant: the name of its tenant, empty if it has none.

    Raises:
        ValueError: it is something else.
    """
    try:
        listener, method, username, rules, granted, roles = (*json.loads(data), None, None, None, None)[:6]
        if rules is not None:
            rules = tuple(Rule(*rule) for rule in rules)
        if granted is not None:
            granted = Rights([(allow, access, name.encode()) for allow, access, name in granted])
        return Identity(
            username,
            rules=rules,
            roles=tuple(roles or ()),
            granted=granted,
            method=method,
            listener=listener,
            tenant=tenant,
        )
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
