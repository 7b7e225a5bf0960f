"""Cookies of the page: scripts can't read them (HttpOnly), and they travel over https only if the page does."""

from typing import Literal, NamedTuple

from aiohttp import web


class Cookie(NamedTuple):
    """A cookie."""

    name: str
    path: str
    same_site: Literal["Strict", "Lax"]  # Lax: also when a page of another site sends the browser here

    def of(self, request: web.Request) -> str:
        """Its value in a request; empty: it has none."""
        return request.cookies.get(self.name, "")

    def put(self, response: web.Response, request: web.Request, public_url: str, value: str, seconds: int) -> None:
        """Set it.

        Args:
            response: that sets it.
            request: of this response.
            public_url: as `http.public_url`.
            value: of the cookie.
            seconds: for which the browser has it; 0: the browser deletes it.
        """
        response.set_cookie(
            self.name,
            value,
            max_age=seconds,
            path=self.path,
            httponly=True,
            secure=is_https(request, public_url),
            samesite=self.same_site,
        )


def is_https(request: web.Request, public_url: str) -> bool:
    """Whether the browser reaches the node by https, perhaps through a proxy."""
    return request.secure or (public_url or request.headers.get("Origin", "")).startswith("https://")
