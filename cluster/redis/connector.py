"""Opens a link: connects to Redis, authenticates, loads the function library of this version, subscribes."""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import redis

from ...broker import logs
from .clients import RedisAddress
from .keys import LIBRARY
from .link import Link, LinkError, LinkLost

log = logs.get("flockmq.cluster")

REVISION = 1  # of the library: nodes load a later one in place of an earlier one
FUNCTIONS = Path(__file__).with_name("functions")
# The files of the library, in the order in which they need each other.
MODULES = (
    "library",
    "damage",
    "nodes",
    "clock",
    "tenants",
    "packed_sessions",
    "redis_restarts",
    "downtime",
    "wills",
    "changes",
    "barrier",
    "once",
    "queues",
    "expiry",
    "session_ends",
    "backlog",
    "returns",
    "subscribers",
    "rotation",
    "assignments",
    "shared_publishes",
    "transfers",
    "groups",
    "delayed",
    "transactions",
    "access",
    "log",
    "queue_appends",
    "records",
    "disconnects",
    "acknowledgements",
    "commits",
    "claims",
    "sessions",
    "snapshot",
    "membership",
)
# Lasting errors of Redis: waiting does not resolve them.
NEVER = -math.inf  # a time
FINAL = ("WRONGPASS", "NOAUTH", "NOPERM", "ERR unknown command", "ERR AUTH", "ERR DB index", "NOPROTO")


class Refused(LinkError):
    """Redis refuses this node for a lasting reason."""


def function_library() -> bytes:
    """The code of the function library: each function is an atomic step of the cluster."""
    modules = (f"local {name} = (function()\n{(FUNCTIONS / f'{name}.lua').read_text()}end)()\n" for name in MODULES)
    return f"#!lua name={LIBRARY}\n-- revision {REVISION}\n{''.join(modules)}".encode()


class Connector:
    """Opens the links of a node, one after the other.

    Args:
        address: of Redis.
        me: this node's id.
        patience: seconds that Redis may take for all steps.
    """

    def __init__(self, address: RedisAddress, me: bytes, patience: float) -> None:
        self._address = address
        self._name = b"flockmq-" + me
        self._patience = patience
        self._place: tuple[str, int] | str = ""  # of the current link
        self._numbers: dict[tuple[str, int] | str, int] = {}  # the client id of the last link, by server
        self._refused = False  # CLIENT is refused, and the log has it
        self.reached_at = NEVER  # monotonic: Redis replied, or its machine refused, at the last attempt that ended

    async def connect(self, link: Link) -> None:
        """Connect to Redis.

        Raises:
            OSError, TimeoutError: Redis is unreachable.
            Refused: every server of a Redis Cluster refuses to name the primary.
        """
        try:
            self._place = await self._address.endpoint()
            await link.connect(self._place, self._address.ssl_context())
        except (redis.ResponseError, redis.AuthenticationError) as error:
            raise Refused(str(error)) from error
        except (ConnectionRefusedError, FileNotFoundError):
            self.reached_at = time.monotonic()
            raise
        except (OSError, TimeoutError):
            self.reached_at = NEVER
            raise

    async def introduce(self, link: Link, subscribe: bytes, channels: Iterable[bytes]) -> None:
        """Switch to RESP3, authenticate, load the functions, subscribe to the channels by that command.

        Raises:
            Refused: Redis refuses for a lasting reason.
            LinkError, LinkLost, TimeoutError: Redis refuses for now, or does not reply.
        """
        address = self._address
        hello: list[bytes | str | int] = ["HELLO", "3"]
        if address.password:
            hello += ["AUTH", address.username or "default", address.password]
        hello += ["SETNAME", self._name]
        try:
            async with asyncio.timeout(self._patience):
                greeting = await link.ask(*hello)
                if address.db:
                    await link.ask("SELECT", address.db)
                await self._load_functions(link)
                await self._end_link_before(link, greeting[b"id"])
                if not address.keys.tag:  # else a reply may be the first sign that the slot has moved
                    await self._skip_replies(link, greeting)
        except LinkError as error:
            self.reached_at = time.monotonic()
            if str(error).startswith(FINAL):
                raise Refused(str(error)) from error
            raise
        except (LinkLost, TimeoutError):  # the connection was perhaps one to a proxy, or nothing comes back
            self.reached_at = NEVER
            raise
        self.reached_at = time.monotonic()
        for channel in channels:
            link.write(subscribe, channel)

    async def _end_link_before(self, link: Link, number: int) -> None:
        """Close the previous link's connection if Redis still has it: its unread commands must not run later."""
        before = self._numbers.get(self._place, number)
        self._numbers[self._place] = number
        if before == number:
            return
        try:
            if (b"name=" + self._name + b" ") in await link.ask("CLIENT", "LIST", "ID", before):
                await link.ask("CLIENT", "KILL", "ID", before)
        except LinkError as error:  # a user without the right, or a rented service
            if not self._refused:
                self._refused = True
                log.info("Redis refuses CLIENT: the node rejoins if it finds commands of an ended link", reason=error)

    async def _skip_replies(self, link: Link, greeting: dict[bytes, Any]) -> None:
        """Let Redis leave out the replies to PUBLISH, if it can. Before 7.0.10 it would leave out pushes, too."""
        version = re.match(rb"(\d+)\.(\d+)\.(\d+)", greeting[b"version"])
        if version is None or tuple(map(int, version.groups())) < (7, 0, 10):
            return
        with contextlib.suppress(LinkError):  # a user without the right, or a rented service
            await link.ask("CLIENT", "REPLY", "ON")
            link.skip_replies()

    async def _load_functions(self, link: Link) -> None:
        code = function_library()
        found = await link.ask("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
        for library in found:
            fields = library if isinstance(library, dict) else dict(zip(library[::2], library[1::2], strict=True))
            loaded = fields[b"library_code"]
            if loaded == code or _revision(loaded) > _revision(code):  # later revisions also serve earlier nodes
                return
        await link.ask("FUNCTION", "LOAD", "REPLACE", code)


def _revision(code: bytes) -> int:
    """The revision of a library; a later one replaces an earlier one."""
    for line in code.splitlines()[:4]:
        if line.startswith(b"-- revision "):
            return int(line.split()[2])
    return 0
