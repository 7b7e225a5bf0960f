"""Reclaim: when the link is back, the claims of this node and those in Redis become the same again."""

from functools import partial

from ..._speedups.protocol import close_reasons
from ..peers.node_link import NodeLink
from ..redis.link import LinkLost, Reply, ReplyError
from .claim import Claim, Claims
from .takeover import TakeOver
from .wills import Wills

AT_ONCE = 1000  # claims read with one call


class ClaimReconciliation:
    """Compares the claims of this node with those in Redis.

    Args:
        link: of this node.
        claims: of this node.
        wills: of this node.
        takeover: of this node.
    """

    def __init__(self, link: NodeLink, claims: Claims, wills: Wills, takeover: TakeOver) -> None:
        self._link = link
        self._claims = claims
        self._wills = wills
        self._takeover = takeover

    def start(self) -> None:
        """Compare all claims, and claim the sessions that were admitted without Redis."""
        self._read(frozenset(self._claims.epochs), set(), b"0")
        for claim in self._claims:
            if not claim.epoch and claim.admitted:
                self._takeover.request(claim, partial(self._granted, claim))

    def _read(self, known: frozenset[int], seen: set[int], cursor: bytes) -> None:
        """Read this node's claims in Redis. `known`: its epochs at the start; `seen`: the epochs that a reply had so
        far."""
        self._link.function(partial(self._compare, known, seen), "owned", cursor, AT_ONCE)

    def _compare(self, known: frozenset[int], seen: set[int], reply: Reply) -> None:
        if isinstance(reply, (LinkLost, ReplyError)):
            return  # the link is lost again; if not, `taken` follows when another connection claims one of them
        cursor, owned = reply
        for client_id, epoch, is_taken in zip(owned[::3], owned[1::3], owned[2::3], strict=True):
            seen.add(epoch)
            is_here = self._claims.with_epoch(epoch) is not None
            if (is_here and is_taken) or (not is_here and epoch not in known):  # else its release follows this call
                self._takeover.taken(client_id, epoch)
        if cursor != b"0":
            self._read(known, seen, cursor)
            return
        for epoch in known - seen:
            claim = self._claims.with_epoch(epoch)
            if claim is not None:
                claim.connection.close(close_reasons.SESSION_LOST)
        self._wills.publish_missed()

    def _granted(self, claim: Claim, reply: Reply) -> None:
        if isinstance(reply, (LinkLost, ReplyError)) or reply[0] != b"ok":
            is_taken = isinstance(reply, list) and reply[0] == b"taken"
            claim.connection.close(close_reasons.TAKEN_OVER if is_taken else close_reasons.CLAIM_REFUSED)
            return
        _, epoch, *_, old_will, will_epoch, _ = reply
        self._claims.grant(claim, epoch)
        if old_will:
            self._wills.publish(will_epoch, old_will)
        if claim.connection.closed:
            self._takeover.give_up(claim)
