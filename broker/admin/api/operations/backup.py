"""A backup of the node, as the body of the response."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from shlex import quote

from aiohttp import web

from ....backup.node_backup import head_of, of_running
from ....config.redis_url import masked
from ....errors import StoreError
from ....storage.store import Store
from ...http.problems import Problem
from ..operation import Operation, Request
from ..schema import boolean

TAR = "application/x-tar"
SEND_SECONDS = 60.0  # that a client may take for a piece
UNDER_WAY = web.AppKey("backup", asyncio.Lock)  # held by the request that makes a backup


async def backup(request: Request) -> web.StreamResponse:
    """Copy the store, and send it."""
    node = request.node
    store = node.broker.store
    if store.file is None:
        redis = node.config.cluster.redis
        way = f"`flockmq backup FILE {quote(masked(redis))}` copies it" if redis else "a restart loses it"
        raise Problem(HTTPStatus.CONFLICT, f"this node has no state in a file: {store.describe()}; {way}")
    under_way = request.raw.app[UNDER_WAY]
    if under_way.locked():
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "another backup is being made", Retry_After="10")
    pieces = of_running(store, node.config, head_of(node.version, node.name), with_log=request.arguments["log"])
    async with under_way, aclosing(pieces):
        return await _send(request, await _first(pieces, store), pieces)


async def _first(pieces: AsyncGenerator[bytes], store: Store) -> bytes:
    """The first piece, behind the copy of the store."""
    try:
        return await anext(pieces)
    except (OSError, sqlite3.Error, StoreError) as error:
        reason = f"the store can't be copied beside {store.file}: {error}"
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, reason) from error


async def _send(request: Request, piece: bytes, pieces: AsyncGenerator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": TAR, "Cache-Control": "no-store"})
    await response.prepare(request.raw)
    try:
        while piece:
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(piece)
            piece = await anext(pieces, b"")
    except (OSError, TimeoutError) as error:  # the client has to see that the archive is not whole
        raise ConnectionResetError from error
    return response


OPERATIONS = (
    Operation(
        "POST",
        "/backup",
        "backup",
        "A backup of this node as a tar archive, for `flockmq restore`: the node goes on.",
        backup,
        role="admin",
        arguments={"log": boolean("whether the log of messages is in it", default=True)},
        problems=(HTTPStatus.CONFLICT,),
        stream=TAR,
    ),
)
