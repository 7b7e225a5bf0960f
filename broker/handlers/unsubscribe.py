"""UNSUBSCRIBE: removes subscriptions; UNSUBACK always follows."""

from functools import partial

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Unsuback, Unsubscribe
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.codec.topics import validate_topic_filter
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.session.session import Session
from ..coordination.coordinator import Subscribing
from ..core import tenants
from ..core.data_plane import DataPlane
from ..core.session_follower import Followers
from ..core.topic_filters import max_levels, qualified


class UnsubscribeHandler:
    """Unsubscribes sessions.

    Args:
        data_plane: of the node.
        subscribing: removes subscriptions.
        followers: of the sessions.
    """

    def __init__(self, data_plane: DataPlane, subscribing: Subscribing, followers: Followers) -> None:
        self._data_plane = data_plane
        self._subscribing = subscribing
        self._followers = followers

    def handle(self, connection: Connection, session: Session, packet: Unsubscribe) -> None:
        """Remove the subscriptions that exist, and acknowledge [MQTT-3.10.4-5]."""
        level = connection.protocol_level
        if self._data_plane.rewriter is not None:
            packet.topic_filters = [self._rewritten(connection, session, each) for each in packet.topic_filters]
        else:
            packet.topic_filters = [qualified(session.client_id, each) for each in packet.topic_filters]
        codes = self._codes(connection, session, packet.topic_filters) if level == 5 else []
        unsuback = encode(Unsuback(packet_id=packet.packet_id, reason_codes=codes), level)
        if not connection.takes(unsuback, close_reasons.UNSUBACK_TOO_LARGE):
            return
        for follower in self._followers:
            follower.unsubscribed(session, packet.topic_filters)
        filters = [topic_filter.encode() for topic_filter in packet.topic_filters]
        self._subscribing.unsubscribe(connection, session, filters, lambda: connection.send(unsuback))

    def _rewritten(self, connection: Connection, session: Session, topic_filter: str) -> str:
        """The filter of the subscription: the rules' filter, unless only a subscription from before the rules
        exists."""
        rewriter, has = self._data_plane.rewriter, partial(self._subscribing.has, connection, session)
        assert rewriter is not None
        _, client_id = tenants.split(session.client_id)
        made = qualified(session.client_id, rewriter.topic_filter(connection, client_id, topic_filter))
        topic_filter = qualified(session.client_id, topic_filter)
        return topic_filter if not has(made.encode()) and has(topic_filter.encode()) else made

    def _codes(self, connection: Connection, session: Session, topic_filters: list[str]) -> list[int]:
        """The reason code for each filter [5: MQTT-3.11.3-1]."""
        codes: list[int] = []
        levels = max_levels(session.client_id, self._data_plane.config.limits.max_topic_levels)
        removed: set[str] = set()
        for topic_filter in topic_filters:
            try:
                validate_topic_filter(topic_filter, 5, levels)
            except ValueError:
                codes.append(ReasonCode.TOPIC_FILTER_INVALID)
                continue
            held = self._subscribing.has(connection, session, topic_filter.encode())
            codes.append(
                ReasonCode.SUCCESS if held and topic_filter not in removed else ReasonCode.NO_SUBSCRIPTION_EXISTED
            )
            removed.add(topic_filter)
        return codes
