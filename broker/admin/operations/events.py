"""What goes on, as server-sent events."""

import asyncio
from contextlib import aclosing, suppress
from http import HTTPStatus

from aiohttp import web

from broker.admin.operation import Operation, Request
from broker.admin.problems import Problem
from broker.admin.pulse import Pulse

SEND_SECONDS = 10.0  # that a reader may take for an event
PULSE = web.AppKey("pulse", Pulse)


async def events(request: Request) -> web.StreamResponse:
    """The figures of all nodes, each second."""
    pulse = request.raw.app[PULSE]
    if pulse.is_full:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many watch already", Retry_After="10")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request.raw)
    with suppress(ConnectionError, TimeoutError):  # nobody looks any more
        async with aclosing(pulse.watch()) as beats:
            async for beat in beats:
                async with asyncio.timeout(SEND_SECONDS):
                    await response.write(f"data: {beat}\n\n".encode())
    return response


OPERATIONS = (
    Operation("GET", "/events", "events", "The figures of all nodes, each second.", events, stream=True),
)  # fmt: skip
