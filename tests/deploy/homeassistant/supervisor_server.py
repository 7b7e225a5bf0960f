"""The Supervisor's API for the add-on, written after its source (github.com/home-assistant/supervisor, commit 090ef31).

api/middleware/security.py, api/utils.py    the token; answers; what a wrong body gets
api/auth.py, auth.py                        POST /auth
api/services.py, services/modules/mqtt.py   POST and DELETE /services/mqtt
api/discovery.py, discovery/__init__.py     POST /discovery
exceptions.py                               the status of each error
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

MQTT_VERSIONS = ("3.1", "3.1.1")  # that the service may name


class ApiError(Exception):
    """An error that the API answers, as APIError."""

    def __init__(self, status: int, message: str, **extra_fields: str) -> None:
        super().__init__(message)
        self.status = status
        self.extra_fields = extra_fields


class SupervisorServer:
    """A Supervisor with one add-on.

    Args:
        token: of the add-on.
        slug: of the add-on.
        host: where it listens.
    """

    def __init__(self, token: str, slug: str, host: str = "127.0.0.1") -> None:
        self._token = token
        self._slug = slug
        self._host = host
        self.users: dict[str, str] = {}  # of Home Assistant, with their passwords
        self.works = True  # whether Home Assistant answers
        self.asked: list[str] = []  # user names
        self.service: dict[str, Any] = {}  # what is registered, with the slug of its add-on
        self.discovered: list[dict[str, Any]] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> "SupervisorServer":
        """Start it on a free port."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def stop(self) -> None:
        """Stop it."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._judge])
        app.router.add_post("/auth", answers(self._auth))
        app.router.add_post("/services/mqtt", answers(self._set_service))
        app.router.add_delete("/services/mqtt", answers(self._delete_service))
        app.router.add_post("/discovery", answers(self._discover))
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"

    @web.middleware
    async def _judge(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """As SecurityMiddleware.token_validation: without the token of an add-on nothing is answered."""
        found = request.headers.get("X-Supervisor-Token") or request.headers.get("Authorization", "").split(" ")[-1]
        if not found:
            raise web.HTTPUnauthorized
        if found != self._token:
            raise web.HTTPForbidden
        return await handler(request)

    async def _auth(self, request: web.Request) -> dict[str, Any]:
        if "Authorization" in request.headers:
            raise web.HTTPUnauthorized  # of Basic: a Bearer token is no BasicAuth
        if request.headers.get("Content-Type") != "application/json":
            raise web.HTTPUnauthorized
        data = await body_of(request)
        username, password = data.get("username") or data.get("user"), data.get("password")
        if not isinstance(username, str) or not isinstance(password, str):
            raise ApiError(401, "Username and password must be strings")
        self.asked.append(username)
        if not self.works:
            raise ApiError(500, "Unable to validate authentication details with Home Assistant")
        if self.users.get(username) != password:
            raise web.HTTPUnauthorized
        return {}

    async def _set_service(self, request: web.Request) -> dict[str, Any]:
        data = await body_of(request)
        kinds = {"host": str, "port": int, "username": str, "password": str, "ssl": bool, "protocol": str}
        for name, value in data.items():
            if name not in kinds or not isinstance(value, kinds[name]):
                raise ApiError(400, f"not a valid value for dictionary value @ data['{name}']")
        if not {"host", "port"} <= data.keys() or data.get("protocol", "3.1.1") not in MQTT_VERSIONS:
            raise ApiError(400, "required key not provided, or value must be one of ['3.1', '3.1.1']")
        if self.service:
            owner = self.service["app"]
            raise ApiError(409, f"The mqtt service is already provided by {owner}", service="mqtt", app=owner)
        self.service = {"ssl": False, "protocol": "3.1.1", **data, "app": self._slug}
        return {}

    async def _delete_service(self, request: web.Request) -> dict[str, Any]:
        if not self.service:
            raise ApiError(404, "The mqtt service is not currently provided by any app")
        self.service = {}
        return {}

    async def _discover(self, request: web.Request) -> dict[str, Any]:
        data = await body_of(request)
        if data.keys() != {"service", "config"} or not isinstance(data["config"], dict):
            raise ApiError(400, "extra keys not allowed, or required key not provided")
        if data["service"] != "mqtt":
            raise ApiError(403, "Apps must list services they provide via discovery in their config!")
        self.discovered.append(data["config"])
        return {"uuid": "0" * 32}


async def body_of(request: web.Request) -> dict[str, Any]:
    """The body, by a parser that refuses what is not UTF-8, as orjson does."""
    try:
        data: dict[str, Any] = json.loads(await request.read())
        json.dumps(data, ensure_ascii=False).encode()
    except ValueError:
        raise ApiError(400, "Invalid json") from None
    return data


def answers(method: Callable[[web.Request], Awaitable[dict[str, Any]]]) -> Handler:
    """As api_process: what a method returns or raises, as an answer."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return web.json_response({"result": "ok", "data": await method(request)})
        except ApiError as error:
            found = {"result": "error", "message": str(error), "extra_fields": error.extra_fields}
            return web.json_response(found, status=error.status)

    return answer
