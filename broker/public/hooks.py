"""Hooks: subclass `Hooks`, override what you need, and start with `flockmq serve --hooks module:Class`."""

from broker.auth.authenticator import Credentials, Identity, ReturnCode, Verdict
from broker.hooks.api import Client, Hooks, Message

__all__ = ["Client", "Credentials", "Hooks", "Identity", "Message", "ReturnCode", "Verdict"]
