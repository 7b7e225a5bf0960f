"""The web page: the files of `page/` and the files of uPlot, read once, by name. Other names are not found.

`$DOCUMENTATION` in index.html is the address of the documentation.
"""

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files
from itertools import chain
from typing import NamedTuple

from aiohttp import web

from ..version import DOCUMENTATION
from .http.authorization import AdminAuthorization

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".js": "text/javascript; charset=utf-8",
}
FOLDERS = ("admin/page", "uplot")
INDEX = "index.html"
WORTH_PACKING = 1000  # bytes


class File(NamedTuple):
    """A file of the page."""

    kind: str
    tag: str
    data: bytes
    packed: bytes  # by gzip


def read() -> dict[str, File]:
    """All files, by name."""
    found = {}
    for entry in chain(*(files("flockmq.broker").joinpath(folder).iterdir() for folder in FOLDERS)):
        kind = KINDS.get(entry.name[entry.name.rfind(".") :])
        if kind is not None and entry.is_file():
            data = entry.read_bytes()
            if entry.name == INDEX:
                data = data.replace(b"$DOCUMENTATION", DOCUMENTATION.encode())
            packed = gzip.compress(data, mtime=0) if len(data) >= WORTH_PACKING else b""
            found[entry.name] = File(kind, f'"{hashlib.sha256(data).hexdigest()[:20]}"', data, packed)
    return found


def routes(authorization: AdminAuthorization) -> list[web.RouteDef]:
    """/ and each file. The files hold no data of this broker, so they need no token."""
    return [
        web.get(f"/{'' if name == INDEX else name}", _handler(file, authorization)) for name, file in read().items()
    ]


def _handler(file: File, authorization: AdminAuthorization) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        authorization.judge_page(request)
        headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Content-Type": file.kind, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        if file.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=file.packed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=file.data, headers=headers)

    return handle
