"""Figures of topic filters."""

from typing import Any

from ..broker import Broker
from ..core.calls import Arguments

FIGURES = ("received", "received_bytes", "sent", "sent_bytes")


def find(broker: Broker, arguments: Arguments) -> list[dict[str, Any]]:
    """The figures of this node's meters, in the order of the configuration."""
    return [
        {"filter": name, **{figure: getattr(meter, figure) for figure in FIGURES}}
        for name, meter in broker.topic_meters.items()
    ]
