"""Answers a node's question about a client (`auth.http_url`, deploy/docs/ACCESS.md) by asking the Supervisor.

A failure of the Supervisor is one of the back end: the node then says "server unavailable", and not "wrong password".
"""

import logging
from typing import Any

from aiohttp import web

from .errors import SupervisorError
from .supervisor import Supervisor

log = logging.getLogger(__name__)


class Bridge:
    """A server for the node alone, on the loopback interface."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        app = web.Application()
        app.router.add_post("/", self._answer)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> str:
        """Start it; returns its URL."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        return f"http://{host}:{port}/"

    async def stop(self) -> None:
        """Stop it."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        question: dict[str, Any] = await request.json()
        username, password = question["username"], question["password"]
        if not username or not password or not is_text(password):
            return web.json_response({"allow": False})  # Home Assistant has no such user
        try:
            return web.json_response({"allow": await self._supervisor.is_user(username, password)})
        except SupervisorError as error:
            log.error("users of Home Assistant can't log in: %s", error)
            return web.Response(status=502)


def is_text(password: str) -> bool:
    """Whether the password was UTF-8. A node writes other bytes as surrogates, which the Supervisor's JSON refuses."""
    try:
        password.encode()
    except UnicodeEncodeError:
        return False
    return True
