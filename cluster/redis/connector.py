"""How a link is opened: the place of Redis, who we are, and that Redis has the functions of this version."""

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from cluster.redis.clients import RedisAddress
from cluster.redis.keys import LIBRARY
from cluster.redis.link import Link, LinkError

FUNCTIONS = Path(__file__).with_name("functions.lua")
# Errors of Redis that waiting doesn't cure.
FINAL = ("WRONGPASS", "NOAUTH", "NOPERM", "ERR unknown command", "ERR AUTH", "ERR DB index", "NOPROTO")


class Refused(LinkError):
    """Redis will not have this node, whenever it is asked."""


class Connector:
    """Opens the links of a node, one after the other.

    Args:
        address: of Redis.
        me: this node's id.
        patience: seconds that Redis may take for all of it.
    """

    def __init__(self, address: RedisAddress, me: bytes, patience: float) -> None:
        self._address = address
        self._name = b"flockmq-" + me
        self._patience = patience
        self._number = 0  # by which Redis knows the last link
        self.reached = True  # Redis' machine answered when it was last tried

    async def connect(self, link: Link) -> None:
        """Reach Redis.

        Raises:
            OSError, TimeoutError: it can't be reached.
        """
        try:
            await link.connect(await self._address.endpoint(), self._address.ssl_context())
        except (ConnectionRefusedError, FileNotFoundError):
            self.reached = True
            raise
        except (OSError, TimeoutError):
            self.reached = False
            raise
        self.reached = True

    async def introduce(self, link: Link, channels: Iterable[bytes]) -> None:
        """Speak RESP3, say who this is, load the functions, listen to the channels.

        Raises:
            Refused: Redis never will.
            LinkError, LinkLost, TimeoutError: it doesn't now.
        """
        address = self._address
        hello: list[bytes | str | int] = ["HELLO", "3"]
        if address.password:
            hello += ["AUTH", address.username or "default", address.password]
        try:
            async with asyncio.timeout(self._patience):
                said = await link.ask(*hello)
                if address.db:
                    await link.ask("SELECT", address.db)
                await link.ask("CLIENT", "SETNAME", self._name)
                await self._load_functions(link)
                with contextlib.suppress(LinkError):  # it may not be allowed
                    await self._end_link_before(link, said[b"id"])
        except LinkError as error:
            if str(error).startswith(FINAL):
                raise Refused(str(error)) from error
            raise
        for channel in channels:
            link.subscribe(channel)

    async def _end_link_before(self, link: Link, number: int) -> None:
        """End the connection that was the link before, if Redis still has it: what it has yet to read is late."""
        before, self._number = self._number, number
        if before and (b"name=" + self._name + b" ") in await link.ask("CLIENT", "LIST", "ID", before):
            await link.ask("CLIENT", "KILL", "ID", before)

    async def _load_functions(self, link: Link) -> None:
        code = FUNCTIONS.read_bytes()
        found = await link.ask("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
        for library in found:
            fields = library if isinstance(library, dict) else dict(zip(library[::2], library[1::2], strict=True))
            theirs = fields[b"library_code"]
            if theirs == code or _revision(theirs) > _revision(code):
                return
        await link.ask("FUNCTION", "LOAD", "REPLACE", code)


def _revision(code: bytes) -> int:
    """Of the functions: later ones replace earlier ones."""
    for line in code.splitlines()[:4]:
        if line.startswith(b"-- revision "):
            return int(line.split()[2])
    return 0
