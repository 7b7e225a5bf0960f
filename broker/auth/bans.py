"""Bans of client identifiers, user names and networks, each until a time or forever.

A ban is stored as a hidden retained message, so the store and all nodes of a cluster have it. Bans are read again when
a node reports a change, and periodically. Connected clients that are banned then are closed.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.net.connection import Connection
from ..._speedups.protocol.close_reasons import CloseReason
from .. import logs
from ..config.kinds import split_address
from ..core.calls import Arguments, CallAll
from ..core.data_plane import DataPlane
from ..core.hidden_messages import HiddenMessages
from ..core.tenants import prefix_of

KINDS = ("client_id", "username", "address")
MAX_BANS = 10_000
MAPPED = 96  # bits before an IPv4 address that is written as IPv6's
REFRESH_SECONDS = 5.0
SLICE = 500  # connections looked at in one go
Networks = dict[tuple[int, int], dict[int, str]]  # IP version and bits that count -> these bits -> the ban's value

log = logs.get("flockmq.bans")


class Ban(NamedTuple):
    """A ban."""

    kind: str
    value: str  # of an address: its network
    reason: str
    since: float  # seconds since 1970
    until: float | None  # None = forever
    by: str  # name of the token

    @property
    def key(self) -> str:
        """Name of its hidden message."""
        return key(self.kind, self.value)

    @property
    def is_over(self) -> bool:
        """Whether its time has passed."""
        return self.until is not None and time.time() >= self.until


def key(kind: str, value: str) -> str:
    """Name of the hidden message of a ban."""
    return f"{kind}/{hashlib.sha256(value.encode()).hexdigest()}"


def network(address: str) -> str:
    """The canonical form of an address or network.

    Raises:
        ValueError: it is neither.
    """
    found = ip_network(address.strip(), strict=False)
    if isinstance(found, IPv6Network) and found.prefixlen >= MAPPED and found.network_address.ipv4_mapped:
        found = IPv4Network((found.network_address.ipv4_mapped, found.prefixlen - MAPPED))
    return str(found)


class Bans:
    """The bans in force.

    Args:
        data_plane: of the node.
        call_all: calls a method of all nodes.
        claims: the client id whose session a connection claims; in a cluster that may take a while.
    """

    def __init__(self, data_plane: DataPlane, call_all: CallAll, claims: Callable[[Connection], bytes | None]) -> None:
        self._data_plane = data_plane
        self._call_all = call_all
        self._claims = claims
        self._messages = HiddenMessages(data_plane, "bans")
        self._kept: dict[str, bytes] = {}  # as read last
        self._bans: dict[str, Ban] = {}
        self._networks: Networks = {}
        self._refresh_at = 0.0

    def __len__(self) -> int:
        return len(self._bans)

    def __iter__(self) -> Any:
        return iter(sorted(ban for ban in self._bans.values() if not ban.is_over))

    # ---- lookup ----

    def covering(self, client_id: str | None, username: str | None, address: str, tenant: str = "") -> Ban | None:
        """The ban of this client, if there is one.

        Args:
            client_id: with the prefix of its tenant; None: it is not known yet.
            username: as the client gives it; None: it gives none. A ban may be of users of that name in all tenants, or
                have the prefix of one tenant.
            address: of the client.
            tenant: name of its tenant; empty: it has none, or it is not known yet.
        """
        if not self._bans:
            return None
        names = [("client_id", client_id), ("username", username)]
        if tenant and username is not None:
            names.append(("username", prefix_of(tenant) + username))
        for kind, value in names:
            ban = self._bans.get(key(kind, value)) if value is not None else None
            if ban is not None and not ban.is_over:
                return ban
        return self._covering_address(address) if self._networks else None

    def _covering_address(self, address: str) -> Ban | None:
        try:
            found = ip_address(split_address(address)[0])
        except ValueError:
            return None  # of a socket without an address
        found = getattr(found, "ipv4_mapped", None) or found
        for (version, length), banned in self._networks.items():
            value = banned.get(int(found) >> (found.max_prefixlen - length)) if version == found.version else None
            if value is not None and not (ban := self._bans[key("address", value)]).is_over:
                return ban
        return None

    # ---- changing ----

    async def add(self, ban: Ban) -> None:
        """Store a ban, in place of an earlier one of the same value, and notify all nodes."""
        await self._store(ban.key, json.dumps(ban._asdict()).encode())

    async def remove(self, kind: str, value: str) -> bool:
        """Remove a ban; whether there was one."""
        known = key(kind, value) in self._kept
        if known:
            await self._store(key(kind, value), b"")
        return known

    async def _store(self, name: str, payload: bytes) -> None:
        stored = asyncio.Event()
        self._messages.put(name, payload, on_stored=stored.set)
        await stored.wait()
        await self._call_all("bans", {})

    # ---- refreshing ----

    def on_changed(self, arguments: Arguments) -> None:
        """A node has added or removed a ban."""
        self.refresh()

    def tick(self) -> None:
        """Called periodically."""
        if time.monotonic() >= self._refresh_at:
            self.refresh()

    def refresh(self) -> None:
        """Read the stored bans; close connected clients that a new one covers."""
        self._refresh_at = time.monotonic() + REFRESH_SECONDS
        kept = self._messages.all()
        new = {name for name, payload in kept.items() if self._kept.get(name) != payload}
        if kept != self._kept:
            bans = {name: self._bans[name] if name not in new else read(kept[name]) for name in kept}
            self._kept, self._bans = kept, {name: ban for name, ban in bans.items() if ban is not None}
            self._networks = _networks(ban.value for ban in self._bans.values() if ban.kind == KINDS[2])
        for name, ban in self._bans.items():
            if ban.is_over:
                self._messages.remove(name)
        if new:
            self._data_plane.run(self._close())

    async def _close(self) -> None:
        connections = list(self._data_plane.reactor)
        for start in range(0, len(connections), SLICE):
            for connection in connections[start : start + SLICE]:
                session = connection.claimed
                username = getattr(connection.identity, "username", None)
                tenant = getattr(connection.identity, "tenant", "")
                client_id = self._claims(connection) if session is None else session.client_id
                if client_id is None or connection.closed:  # its CONNECT is judged before it claims a session
                    continue
                ban = self.covering(client_id.decode(), username, connection.address, tenant)
                if ban is not None:
                    connection.close(CloseReason(ReasonCode.ADMINISTRATIVE_ACTION, f"banned by {ban.kind}"))
            self._data_plane.end_turn()
            await asyncio.sleep(0)


def _networks(values: Iterable[str]) -> Networks:
    found: Networks = {}
    for value in values:
        one = ip_network(value)
        first_bits = int(one.network_address) >> (one.max_prefixlen - one.prefixlen)
        found.setdefault((one.version, one.prefixlen), {})[first_bits] = value
    return found


def read(payload: bytes) -> Ban | None:
    """A stored ban; None if it is invalid."""
    try:
        ban = Ban(**json.loads(payload))
        if ban.kind == KINDS[2]:
            ip_network(ban.value)
    except (ValueError, TypeError) as error:
        log.error("a stored ban is invalid", reason=error)
        return None
    return ban
