"""Limits of queues: no queue has more, nothing is dropped at one with room, and only drops excuse missing messages."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flockmq._speedups.base.msgpack import unpack
from flockmq.cluster.redis.calls import CALLS
from flockmq.cluster.redis.packed_session import NO_MESSAGE, PackedSession
from flockmq.loadtest.prove.checker import shown
from flockmq.loadtest.prove.history import Delivered, History, Published
from tests.harness.stored_sessions import queue_of, sessions_in

# Findings of the checkers about messages and wills that clients did not get, or got after later ones.
MISSED = re.compile(r"^(?:I1|G4) .*?, (?P<client>[a-z]+ \d+|latecomer) never got it$")
DELAYED = re.compile(r"^I1 .* was acknowledged, and went to (?P<got>\[.*\]) only$")
MISSED_BY_GROUP = re.compile(r"^I9 .* went to no subscriber$")
LATER = re.compile(r"^I3 (?P<client>.*) got (?P<name>b'.*?') after ")
NAME = re.compile(r"b'.*?'")  # of a message or will, in a finding
WILL = re.compile(r"^I6 the (?:delayed )?will .* (?:never came|came late)$")
GROUP = b"$share/"
OF_GROUP = "group"


@dataclass(frozen=True)
class Limits:
    """The limits of a run; 0 = as in the product, or none.

    Attributes:
        messages: `limits.max_queued_messages`.
        drop_old: whether a full queue drops its oldest message.
        group_messages: `shared.max_queued_messages`.
        tenant_bytes: `max_queued_bytes` of the tenant.
    """

    messages: int = 0
    drop_old: bool = False
    group_messages: int = 0
    tenant_bytes: int = 0

    def settings(self) -> dict[str, str]:
        """Settings of a node."""
        own = {"limits.max_queued_messages": self.messages, "shared.max_queued_messages": self.group_messages}
        found = {key: str(value) for key, value in own.items() if value}
        return found | ({"limits.queue_policy": "drop-old"} if self.drop_old else {})


NO_LIMITS = Limits()


ACKS_AT = 2 + list(CALLS["commit"].arguments).index("acks")  # behind the prefix and the node


def _acknowledged(acks: bytes) -> set[bytes]:
    """The clients that acknowledge messages."""
    in_order, others = unpack(acks) if acks else ((), ())
    return {*in_order[::5], *(client for client, *_ in others)}


class Drops:
    """Counts the messages that Redis has dropped at full queues, and notices what must not be.

    Args:
        limits: of the run.
        prefix: of the clients' names in Redis.
        on_finding: called with a sentence.
    """

    def __init__(self, limits: Limits, prefix: str, on_finding: Callable[[str], object]) -> None:
        self._limits = limits
        self._prefix = prefix
        self._on_finding = on_finding
        self.of: Counter[str] = Counter()  # by client
        self.of_groups = 0
        self._sent: dict[bytes, int] = {}  # by client: the first of its messages that may have been sent

    def calling(self, function: bytes, arguments: list[bytes], keys: Mapping[bytes, Any]) -> None:
        """Redis is to execute a call of a function. Acknowledgements in a commit move the heads of queues first."""
        if self._limits.drop_old and function == b"flockmq_commit":
            acknowledged = _acknowledged(arguments[ACKS_AT])
            self._sent = {
                client: session.head
                for client, session in sessions_in(keys).items()
                if client not in acknowledged and (session.sent > session.head or _is_served_elsewhere(session, keys))
            }

    def called(self, function: bytes, reply: Any, keys: Mapping[bytes, Any]) -> None:
        """Redis has executed a call of a function."""
        if function != b"flockmq_commit" or reply[0] != b"ok" or not reply[2]:
            return
        _, _, dropped, _, _, full, *_ = reply
        for client, count in zip(full[::2], full[1::2], strict=True):
            name = client.decode().removeprefix(self._prefix)
            self.of[name] += count
            if client in self._sent and sessions_in(keys)[client].head > self._sent[client]:
                self._on_finding(f"S3 messages of {name} were dropped that may have been sent")
            length = waiting(client, keys)
            if not self._limits.tenant_bytes and length < self._limits.messages:
                self._on_finding(f"S3 {count} messages of {name} were dropped, and its queue has {length}")
        self.of_groups += dropped - sum(full[1::2])

    def judge(self, keys: Mapping[bytes, Any]) -> None:
        """Notice queues that have too much.

        Queues of subscribers have as much as there is room for: a tenant's limit is judged by the messages, without
        the name of the group and the place that are before them there.
        """
        queues = {
            client: queue_of(client, session, keys)
            for client, session in sessions_in(keys).items()
            if b"worker" not in client
        }
        most = self._limits.messages * (2 if self._limits.drop_old else 1)
        for client in queues:
            if most and (length := waiting(client, keys)) > most:
                self._on_finding(f"S3 the queue of {client.decode()} has {length} messages, and may have {most}")
        of_tenant = [queue for client, queue in queues.items() if self._prefix in client.decode()]
        size = sum(len(message) for queue in of_tenant for message in queue if message != NO_MESSAGE)
        if (most := self._limits.tenant_bytes) and size > most:
            self._on_finding(f"S3 the queues of {self._prefix} have {size} bytes, and may have {most}")


def waiting(client: bytes, keys: Mapping[bytes, Any]) -> int:
    """The messages in the queue of a client that are not done."""
    session = sessions_in(keys).get(client)
    length = 0 if session is None else len(queue_of(client, session, keys))
    return length - [*keys.get(b"mq:st:" + client, {}).values()].count(b"d")


def _is_served_elsewhere(session: PackedSession, keys: Mapping[bytes, Any]) -> bool:
    """Whether a node that lives has not released an earlier connection of a session."""
    earlier = dict(each.split(b"=") for each in session.waits.split(b",") if each)
    return any(node in keys[b"mq:nodes"] for node in earlier.values())


def excused(
    findings: list[str],
    history: History,
    limits: Limits,
    drops: Drops,
    of_nodes: int,
    listeners: Iterable[str],
    subscribers: Iterable[str],
) -> set[str]:
    """The findings that are none, since the messages were dropped at full queues.

    A client may miss as many messages as were dropped for it.

    Args:
        findings: of the checkers.
        history: of all clients.
        limits: of the run.
        drops: of Redis.
        of_nodes: messages that nodes have dropped, or have noted as dropped by Redis.
        listeners: clients with persistent sessions that get all wills and delayed messages.
        subscribers: of the group.
    """
    if limits == NO_LIMITS:
        return set()
    missing = _missing(findings, listeners)
    too_many: set[str] = set()
    for client, each in missing.items():
        allowed = drops.of[client]
        if client == OF_GROUP:
            allowed = drops.of_groups + sum(drops.of[subscriber] for subscriber in subscribers)
        if limits.drop_old or client.startswith("visitor"):
            allowed += of_nodes
        if len({NAME.findall(finding)[0] for finding in each}) > allowed:
            too_many.update(each)
    found = {finding for each in missing.values() for finding in each}
    return _late(findings, history, limits) | found - too_many


def _missing(findings: Iterable[str], listeners: Iterable[str]) -> dict[str, list[str]]:
    """The findings about messages that did not come: by client, or of the group."""
    found: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        if match := MISSED.match(finding):
            found[match["client"]].append(finding)
        elif match := MISSED_BY_GROUP.match(finding):
            found[OF_GROUP].append(finding)
        elif match := DELAYED.match(finding) or WILL.match(finding):
            for client in listeners:
                if repr(client) not in (match.groupdict().get("got") or ""):
                    found[client].append(finding)
    return found


def _late(findings: Iterable[str], history: History, limits: Limits) -> set[str]:
    """The findings about messages that came after later ones, but had been dropped before.

    A message that was dropped, and is published again, may come after later ones. So may one that a node has dropped
    with drop-old, and that Redis still had when the node died: it comes with all others that are sent again.
    """
    times = Counter(event.payload for event in history.of(Published))
    published_again = {shown(payload) for payload, count in times.items() if count > 1}
    sent_again = {(event.client, shown(event.payload)) for event in history.of(Delivered) if event.dup}
    return {
        finding
        for finding in findings
        if (match := LATER.match(finding))
        and (match["name"] in published_again or (limits.drop_old and match.group("client", "name") in sent_again))
    }
