"""Hooks: subclass `Hooks`, override what you need, and start with `flockmq serve --hooks module:Class`."""

from flockmq.broker.auth.authenticator import Challenge, Credentials, Exchange, Identity, ReasonCode, Verdict
from flockmq.broker.hooks.api import Client, Hooks, Message, Refusal

ReturnCode = ReasonCode  # its name before MQTT 5.0

__all__ = [
    "Challenge",
    "Client",
    "Credentials",
    "Exchange",
    "Hooks",
    "Identity",
    "Message",
    "ReasonCode",
    "Refusal",
    "ReturnCode",
    "Verdict",
]
