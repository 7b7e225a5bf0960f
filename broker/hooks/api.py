"""The API of hooks: the events that users' own code receives, and the decisions it makes. A closed list of methods.

A subclass of `Hooks` overrides what it needs; a method that no hook overrides costs nothing. Every method but `deliver`
and `authentication` may be `async def`: the connection of the packet waits, the others go on. Rules:
- Several hooks are called in their order; the first refusal decides.
- In place of False, a method that decides over a packet may return a `Refusal` with a reason code of MQTT 5.0.
- A hook that raises, or takes longer than `hooks.timeout`, is logged. Where it decides, this counts as a refusal of the
  client whose packet it was; other clients are not affected.
- Hooks run on the node's loop: code that takes long or waits belongs into `async def`, or into a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..auth.authenticator import Credentials, Exchange, ReasonCode, Verdict

NO_PROPERTIES: Mapping[str, Any] = MappingProxyType({})


class Client(NamedTuple):
    """An accepted client."""

    client_id: str
    username: str | None  # verified; None = anonymous
    address: str
    listener: str = "default"
    level: int = 4  # of the protocol: 3, 4 or 5
    properties: Mapping[str, Any] = NO_PROPERTIES  # of CONNECT, MQTT 5.0; without authentication data


class Refusal(NamedTuple):
    """A refusal with its reason. A client of MQTT 3 gets the code that its version has for all refusals.

    The reason is in the log, and in the reason string of CONNACK and SUBACK; PUBACK and PUBREC carry the code alone.
    """

    code: ReasonCode = ReasonCode.UNSPECIFIED_ERROR
    reason: str = "a hook refuses it"


class Message(NamedTuple):
    """An application message; `_replace` makes another one."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Mapping[str, Any] = NO_PROPERTIES  # of MQTT 5.0, as `Publish.properties`; without alias and expiry


class Hooks:
    """Does nothing; override what you need."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict | None] | None:
        """A client sends CONNECT with credentials. Return a verdict, or None to let other methods decide."""

    def authentication(self, method: str) -> Exchange | None:
        """A client names an authentication method (MQTT 5.0). Return a new exchange, or None: the name is not yours.

        The node calls its `start` and `step`, which may be `async def`, until one returns a verdict.
        """

    def connect(self, client: Client) -> bool | Refusal | Awaitable[bool | Refusal | None] | None:
        """A client is authenticated. False refuses it (return code 5, reason code 0x87)."""

    def authorize(
        self, client: Client, action: Literal["publish", "subscribe"], topic: str
    ) -> bool | Refusal | Awaitable[bool | Refusal | None] | None:
        """A client publishes to a topic name (its will too), or subscribes to a topic filter. False refuses (0x87)."""

    def publish(
        self, client: Client, message: Message
    ) -> Message | bool | Refusal | Awaitable[Message | bool | Refusal | None] | None:
        """A client publishes. Another message takes its place, False drops it: it is acknowledged, with code 0x80."""

    def deliver(self, client_id: str, message: Message) -> bool | None:
        """A message is about to be sent to a client. False drops it for that client. Called for each receiver."""

    def subscribe(
        self, client: Client, topic_filter: str, qos: int
    ) -> int | bool | Refusal | Awaitable[int | bool | Refusal | None] | None:
        """A client subscribes. Another QoS is granted, False refuses (code 0x80)."""

    def refused(self, client: Client, code: ReasonCode, reason: str) -> Awaitable[None] | None:
        """A client was refused; its names are as it has sent them. The reason is for you, and may not go to it."""

    def connected(self, client: Client) -> Awaitable[None] | None:
        """CONNACK was sent to a client."""

    def disconnected(self, client: Client, reason: str) -> Awaitable[None] | None:
        """Its connection has ended."""

    def subscribed(self, client: Client, topic_filters: Sequence[str]) -> Awaitable[None] | None:
        """Subscriptions of a client hold, at all nodes."""

    def unsubscribed(self, client: Client, topic_filters: Sequence[str]) -> Awaitable[None] | None:
        """A client has sent UNSUBSCRIBE."""

    def throttled(self, client: Client) -> Awaitable[None] | None:
        """A client is read more slowly than it sends, by a rate of its listener or tenant."""

    def messages_dropped(self, client_id: str, messages: int) -> Awaitable[None] | None:
        """Messages for a client were dropped lately: its queue is full, or its connection too slow."""

    def session_started(self, client_id: str, persistent: bool) -> Awaitable[None] | None:
        """A new session has begun at this node."""

    def session_ended(self, client_id: str) -> Awaitable[None] | None:
        """A session has ended, or has left this node, which is the same for a node alone."""
