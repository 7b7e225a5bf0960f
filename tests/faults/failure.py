"""The text with which a fault test fails."""

from flockmq.loadtest.prove.history import History
from flockmq.loadtest.prove.report import story

FINDINGS = 20


def failure(findings: list[str], history: History, log: str) -> str:
    """The first findings, the events of the messages in the first of them (there is one), and the log of the nodes."""
    return "\n".join([*findings[:FINDINGS], *story(history, findings[0]), log])
