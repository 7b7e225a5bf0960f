"""The Supervisor's API, as far as the add-on uses it (https://developers.home-assistant.io/docs/api/supervisor)."""

import socket
from typing import Any

import aiohttp

from .errors import SupervisorError

Config = dict[str, Any]


class Supervisor:
    """The Supervisor.

    Args:
        http: the session of requests.
        url: of its API.
        token: that the add-on got from it.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str) -> None:
        self._http = http
        self._url = url
        self.provides = False  # whether this add-on is the broker of others
        self._headers = {"X-Supervisor-Token": token}  # `Authorization` is the user's at /auth

    async def is_user(self, username: str, password: str) -> bool:
        """Whether Home Assistant has this user with this password.

        Raises:
            SupervisorError: it is not known.
        """
        status, _ = await self._ask("POST", "/auth", {"username": username, "password": password})
        if status not in (200, 401):
            raise SupervisorError(f"POST /auth has status {status}")
        return status == 200

    async def discover(self, config: Config) -> None:
        """Show the broker to Home Assistant, which then offers the integration MQTT. Raises SupervisorError."""
        await self._expect("POST", "/discovery", {"service": "mqtt", "config": config})

    async def provide(self, config: Config) -> None:
        """Offer the broker to other add-ons.

        Raises:
            SupervisorError: another add-on is their broker.
        """
        status, answer = await self._ask("POST", "/services/mqtt", config)
        if status == 409 and self._is_own(answer.get("extra_fields", {}).get("app", "")):
            await self.withdraw()  # what an end without warning has left
            status, answer = await self._ask("POST", "/services/mqtt", config)
        if status != 200:
            raise SupervisorError(answer.get("message") or f"POST /services/mqtt has status {status}")
        self.provides = True

    async def withdraw(self) -> None:
        """Take the offer back; the Supervisor does not ask whose it is. Raises SupervisorError."""
        await self._expect("DELETE", "/services/mqtt")

    @staticmethod
    def _is_own(slug: str) -> bool:
        """Whether this add-on has the slug: the Supervisor makes the host's name of it."""
        return slug.replace("_", "-") == socket.gethostname()

    async def _expect(self, method: str, path: str, body: Config | None = None) -> None:
        status, answer = await self._ask(method, path, body)
        if status != 200:
            raise SupervisorError(answer.get("message") or f"{method} {path} has status {status}")

    async def _ask(self, method: str, path: str, body: Config | None = None) -> tuple[int, Config]:
        try:
            async with self._http.request(method, self._url + path, json=body, headers=self._headers) as answer:
                text = await answer.json() if answer.content_type == "application/json" else {}
                return answer.status, text if isinstance(text, dict) else {}
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise SupervisorError(f"{method} {path}: {error or type(error).__name__}") from error
