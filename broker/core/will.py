"""Wills: published once when a connection ends without DISCONNECT, for whatever reason (G6).

The will is in the CONNECT packet that the channel keeps. With a durable store it is recorded when the client connects.
The record that it is settled is in the same block as the messages that its publication queued. So after a crash it is
published once, at restart or by another node. With a Will Delay Interval it is published when that has passed, or when
the session ends, unless the client connects again before [5: 3.1.3.2.2]. A will that is published later than the end of
its connection is judged by the rules of then.
"""

from collections.abc import Awaitable
from typing import Any, NamedTuple, Protocol

from ..._speedups.codec.packets import Connect
from ..._speedups.codec.properties import encode_block
from ..._speedups.protocol.channel import Channel
from ..._speedups.routing.delayed import split_delayed
from ..._speedups.routing.router import Router
from ..._speedups.session.counters import PUBLISH_DENIED, WILLS_PUBLISHED
from ..._speedups.session.journal import Journal


class Will(NamedTuple):
    """The will of a client."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes = b""  # a property block without its length; an expiry interval begins at the publication
    delay: int = 0  # seconds
    author: bytes = b""  # the client, for the decision whether it may still publish; empty: it may


def will_of(connect: Connect, author: bytes = b"") -> Will:
    """The will in a CONNECT packet that has one; `author`: as of `Will`."""
    properties = {name: value for name, value in connect.will_properties.items() if name != "will_delay_interval"}
    return Will(
        (connect.will_topic or "").encode(),
        connect.will_payload,
        connect.will_qos,
        connect.will_retain,
        encode_block(properties) if properties else b"",
        connect.will_properties.get("will_delay_interval", 0),
        author,
    )


class WillRights(Protocol):
    """Decides whether a client without a connection may publish its will, by the rules of now."""

    def author_of(self, identity: Any) -> bytes:
        """The author of a will, to be stored beside it; its connection has the `identity`."""

    def look_up_author(self, author: bytes) -> Awaitable[object] | None:
        """Look up what `may_publish_will` will need of an author; None: all is known.

        Raises:
            Exception: when awaited, if that can't be looked up for now.
        """

    def may_publish_will(self, author: bytes, client_id: bytes, topic: bytes) -> bool:
        """Whether the author may publish to the topic."""


class Everybody:
    """Wills have no authors, and all are published."""

    def author_of(self, identity: Any) -> bytes:
        return b""

    def look_up_author(self, author: bytes) -> Awaitable[object] | None:
        return None

    def may_publish_will(self, author: bytes, client_id: bytes, topic: bytes) -> bool:
        return True


def record(journal: Journal, client_id: bytes, connect: Connect, rights: WillRights, identity: Any) -> None:
    """Write the will of a connected client, if it has one, into the journal; its connection has the `identity`."""
    if connect.will_topic is not None:
        journal.record_will(client_id, *will_of(connect, rights.author_of(identity)))


def take(channel: Channel, router: Router, will_rights: WillRights) -> tuple[bool, Will | None]:
    """A connection ended other than by DISCONNECT: its will, to be published now or later [MQTT-3.1.2-8].

    Returns:
        Whether it had one: the caller records when it is settled; and the will, None if the client may not publish it.
    """
    connect, channel.connect = channel.connect, None
    if connect is None or connect.will_topic is None:
        return False, None
    delayed = "will_delay_interval" in connect.will_properties
    found = will_of(connect, will_rights.author_of(channel.identity) if delayed else b"")
    rights = channel.identity.rights
    _, topic = split_delayed(found.topic)
    if rights is not None and not rights.may_publish(topic):  # the rules have changed since CONNECT
        router.turn.count(PUBLISH_DENIED)
        return True, None
    return True, found


def publish_later(router: Router, rights: WillRights, client_id: bytes, will: Will, number: int = 0) -> None:
    """Publish the will of a client without a connection, if the client still may; `number`: as of `publish`."""
    _, topic = split_delayed(will.topic)
    if will.author and not rights.may_publish_will(will.author, client_id, topic):
        router.turn.count(PUBLISH_DENIED)
    else:
        publish(router, client_id, will, number)


def publish(router: Router, client_id: bytes, will: Will, number: int = 0, progress: int = 0) -> None:
    """Publish the will of a client. `number` and `progress` are `will` and `progress` of `Router.publish`."""
    publish_message(router, client_id, will, number, progress)
    router.turn.count(WILLS_PUBLISHED)


def publish_message(router: Router, client_id: bytes, message: Will, number: int = 0, progress: int = 0) -> None:
    """Publish a message that is kept as wills are."""
    topic, payload, qos, retain, properties, *_ = message
    router.publish(topic, payload, qos, retain, client_id, properties, number, progress)
