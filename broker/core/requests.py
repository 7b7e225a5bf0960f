"""Requests to single clients: a message without a subscription, and the wait for its acknowledgement or a response.

The node that has the client's connection runs the request. Each message has correlation data of its own, so that its
steps and its response can't be taken for another message's. It expires when the wait is over: a client that is away for
a moment does not act on a request that its sender has given up.
"""

import asyncio
import base64
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..._speedups.codec.properties import decode_block, encode_block
from ..._speedups.session.request import DirectMessage, Tap
from ..._speedups.session.session import Session
from ..._speedups.session.trace import Watch
from ..errors import NotNow
from .calls import Arguments
from .data_plane import DataPlane
from .tenants import split

SENT, ACKNOWLEDGED, RESPONDED = "sent", "acknowledged", "responded"
WAITS = {"sent": SENT, "ack": ACKNOWLEDGED, "response": RESPONDED}  # by the word of a request
REFUSED, GONE, TIMEOUT = "refused", "gone", "timeout"
MAX_WAITING = 1000
CORRELATION_BYTES = 16
LOOK_SECONDS = 0.1  # between looks whether the client is still there
Take = Callable[[bytes, bytes, int, bytes], object]  # a response: topic name, payload, QoS, property block


class Requests:
    """The requests to the clients of a node.

    Args:
        plane: of the node.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._watch = Watch()
        self._tap = Tap(plane.turn, self._take)
        self._tapped: Counter[bytes] = Counter()  # waits for a response, by topic name
        self._takers: dict[tuple[bytes, bytes], list[Take]] = {}  # by client id and topic name

    async def send(self, arguments: Arguments) -> dict[str, Any] | None:
        """The method "send": send a message to a client of this node, and wait; None: it has no such connection.

        Arguments: `client_id` with the prefix of its tenant, `topic` as the client knows it, `payload` and `properties`
        (a block) in base64, `qos`, `wait`, `response_topic`, `seconds`.

        Raises:
            NotNow: too many requests wait.
        """
        session = self._plane.sessions.get(arguments["client_id"].encode())
        if session is None or not session.connected:
            return None
        if len(self._watch) >= MAX_WAITING:
            raise NotNow(f"{MAX_WAITING} requests wait at this node, the maximum")
        prefix = split(session.client_id)[0]
        properties = decode_block(base64.b64decode(arguments["properties"]))
        correlation = properties.setdefault("correlation_data", secrets.token_bytes(CORRELATION_BYTES))
        responds = arguments["wait"] == "response"
        if responds:
            properties["response_topic"] = arguments["response_topic"]
        block = encode_block(properties)
        topic = f"{prefix}{arguments['topic']}".encode()
        payload = base64.b64decode(arguments["payload"])
        message = DirectMessage(
            self._plane.turn, topic, payload, arguments["qos"], block, int(arguments["seconds"]) + 1
        )
        waiting = _Waiting(WAITS[arguments["wait"]], correlation if session.level == 5 else None)
        response_topic = f"{prefix}{arguments['response_topic']}".encode() if responds else b""
        self._watch.add(block, waiting.step)
        self._plane.turn.watch_messages(self._watch)
        if responds:
            self._tap_topic(session.client_id, response_topic, waiting.respond)
        try:
            session.pull_from(message)
            self._plane.end_turn()
            return await self._outcome(session, waiting, arguments["seconds"])
        finally:
            self._watch.remove(block)
            if not len(self._watch):
                self._plane.turn.watch_messages(None)
            if responds:
                self._release(session.client_id, response_topic, waiting.respond)

    async def _outcome(self, session: Session, waiting: "_Waiting", seconds: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not waiting.outcome.done():
            left = end - loop.time()
            if left <= 0:
                detail = (
                    "the client has acknowledged it, without a response"
                    if waiting.acknowledged
                    else ("the client has not acknowledged it" if waiting.sent else "it could not be sent yet")
                )
                return {"outcome": TIMEOUT, "detail": f"{detail} within {seconds:g} s"}
            await asyncio.wait((waiting.outcome,), timeout=min(left, LOOK_SECONDS))
            is_here = self._plane.sessions.get(session.client_id) is session
            if not waiting.outcome.done() and (not is_here or not (session.connected or session.persistent)):
                return {"outcome": GONE, "detail": "the connection of the client has ended"}
        return waiting.outcome.result()

    # ---- responses ----

    def _tap_topic(self, client_id: bytes, topic: bytes, take: Take) -> None:
        if not self._tapped[topic]:
            self._plane.router.filters.subscribe(self._tap, topic, 2)
        self._tapped[topic] += 1
        self._takers.setdefault((client_id, topic), []).append(take)

    def _release(self, client_id: bytes, topic: bytes, take: Take) -> None:
        self._takers[client_id, topic].remove(take)
        if not self._takers[client_id, topic]:
            del self._takers[client_id, topic]
        self._tapped[topic] -= 1
        if not self._tapped[topic]:
            del self._tapped[topic]
            self._plane.router.filters.unsubscribe(self._tap, topic)

    def _take(self, client_id: bytes, topic: bytes, payload: bytes, qos: int, block: bytes) -> None:
        """A client of this node has published to a topic of a response."""
        for take in self._takers.get((client_id, topic), ()):
            if take(topic, payload, qos, block):
                return


class _Waiting:
    """The wait for the outcome of one request.

    Args:
        wanted: the step that ends it: SENT, ACKNOWLEDGED or RESPONDED.
        correlation: data that the response must have; None: the client has no properties, its next message counts.
    """

    def __init__(self, wanted: str, correlation: bytes | None) -> None:
        self.outcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.sent = self.acknowledged = False
        self._wanted = wanted
        self._correlation = correlation

    def step(self, step: str, detail: str) -> None:
        """The message has taken a step, as `_speedups/session/trace.pyx` has them."""
        self.sent = self.sent or step == "sent"
        is_failure = step == "dropped" or (step == "acknowledged" and "failure" in detail)
        if is_failure:
            self._end(REFUSED, detail)
        elif step == "acknowledged":
            self.acknowledged = True
        if step == self._wanted:
            self._end(step)

    def respond(self, topic: bytes, payload: bytes, qos: int, block: bytes) -> bool:
        """The client has published to the topic of the response; whether that is the response."""
        if self.outcome.done() or not self.sent:
            return False
        if self._correlation is not None and decode_block(block).get("correlation_data") != self._correlation:
            return False
        response = {
            "topic": topic.decode(),
            "payload": base64.b64encode(payload).decode(),
            "qos": qos,
            "properties": base64.b64encode(block).decode(),
        }
        self._end(RESPONDED, response=response)
        return True

    def _end(self, outcome: str, detail: str = "", **more: Any) -> None:
        if not self.outcome.done():
            self.outcome.set_result({"outcome": outcome, "detail": detail, **more})
