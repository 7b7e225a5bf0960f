"""Metrics and traces as server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from http import HTTPStatus

from aiohttp import web

from ....errors import UsageError
from ....rpc.node_view import NodeView
from ....tracing import check, follow
from ...http.problems import Problem, unfit
from ..figures_stream import FiguresStream
from ..operation import EVENTS, MAX_NAME, Operation, Request
from ..schema import text
from ..tenant_scope import step_shown

SEND_SECONDS = 10.0  # that a reader may take for an event
MAX_STREAMS = 32
MAX_OF_TENANTS = 16  # of these, for tokens of tenants ...
MAX_OF_TENANT = 4  # ... and of one tenant
FIGURES = web.AppKey("figures", FiguresStream)
STREAMS = web.AppKey("streams", dict[object, str])  # connections with an open stream, and the tenants of their tokens


async def events(request: Request) -> web.StreamResponse:
    """The figures of all nodes, each second."""
    return await _stream(request, request.raw.app[FIGURES].watch())


async def trace(request: Request) -> web.StreamResponse:
    """The steps of messages, at all nodes."""
    client, topic = request.arguments.get("client"), request.arguments.get("topic")
    own = request.holder.tenant and request.prefix
    try:
        check(client, topic)
    except UsageError as error:
        raise unfit(str(error)) from None
    if own and topic is None:
        topic = f"{own}#"  # a step of another topic is not the tenant's
    return await _stream(request, trace_events(request.node, client, topic, own))


async def trace_events(node: NodeView, client: str | None, topic: str | None, own: str = "") -> AsyncGenerator[str]:
    """The steps as JSON; it ends when the node has rejoined. `own`: the prefix of a tenant that reads them."""
    broker = node.broker
    async with aclosing(follow(broker.coordinator.nodes.call_all, broker.data_plane.run, client, topic)) as batches:
        async for batch, missed in batches:
            if node.broker is not broker:
                return
            steps = [step._asdict() for step in batch]
            yield json.dumps({"steps": [step_shown(own, step) for step in steps] if own else steps, "missed": missed})


async def _stream(request: Request, events: AsyncGenerator[str]) -> web.StreamResponse:
    """Send events until the client disconnects."""
    streams = request.raw.app[STREAMS]
    tenant = request.holder.tenant
    of_tenants = [other for other in streams.values() if other]
    if len(streams) >= MAX_STREAMS or (
        tenant and (len(of_tenants) >= MAX_OF_TENANTS or of_tenants.count(tenant) >= MAX_OF_TENANT)
    ):
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many streams are open", Retry_After="10")
    streams[request.raw.protocol] = tenant
    try:
        return await _send(request, events)
    finally:
        streams.pop(request.raw.protocol, None)


async def _send(request: Request, events: AsyncGenerator[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": EVENTS, "Cache-Control": "no-store"})
    await response.prepare(request.raw)
    with suppress(ConnectionError, TimeoutError):
        async with aclosing(events) as found:
            async for event in found:
                async with asyncio.timeout(SEND_SECONDS):
                    await response.write(f"data: {event}\n\n".encode())
    return response


OPERATIONS = (
    Operation("GET", "/events", "events", "The figures of all nodes, each second.", events, stream=EVENTS),
    Operation(
        "GET",
        "/trace",
        "trace",
        "Each step of messages at all nodes, from the first event on.",
        trace,
        arguments={
            "client": text("a client identifier of a publisher or receiver", minLength=1, maxLength=MAX_NAME),
            "topic": text("a topic filter; with a client too, both must match", minLength=1, maxLength=MAX_NAME),
        },
        stream=EVENTS,
        problems=(HTTPStatus.UNPROCESSABLE_ENTITY,),
    ),
)
