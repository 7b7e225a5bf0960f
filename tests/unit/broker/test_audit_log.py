"""The audit log of one node: what a record has, and how long it is kept."""

import json
from typing import Any

from flockmq.broker.config.admin_config import AuditConfig
from flockmq.broker.core.audit_log import AuditLog
from tests.harness.inprocess import Node

SECOND = 4  # ticks


def audit_log_of(node: Node | None = None, **config: Any) -> AuditLog:
    return AuditLog((node or Node()).broker.data_plane, "node", lambda: AuditConfig(**config))


def test_a_record_precedes_its_change() -> None:
    """A crash before the end leaves a record of unknown result."""
    audit_log = audit_log_of()
    record = audit_log.begin("ban", {"value": "eve"}, by="boss")
    (found,) = audit_log.newest()
    assert (found.operation, found.result, found.by) == ("ban", "unknown", "boss")
    audit_log.end(record, "done", after={"value": "eve"})
    (found,) = audit_log.newest()
    assert (found.result, found.after) == ("done", {"value": "eve"})


def test_the_oldest_records_are_dropped_at_the_bound() -> None:
    audit_log = audit_log_of(max_bytes=64 << 10)
    for number in range(1000):
        audit_log.add("change", {"number": number})
    numbers = [record.arguments["number"] for record in audit_log.newest()]
    assert numbers == list(range(999, 999 - len(numbers), -1))
    assert 100 < len(numbers) < 400


def test_a_flood_of_logins_or_reads_drops_no_record_of_a_change() -> None:
    audit_log = audit_log_of(max_bytes=64 << 10)
    for number in range(10):
        audit_log.add("change", {"number": number})
    for _ in range(1000):
        audit_log.add("login", minor=True)
    found = [record.operation for record in audit_log.newest()]
    assert found.count("change") == 10
    assert 100 < found.count("login") < 400


def test_records_expire() -> None:
    node = Node()
    audit_log = audit_log_of(node, seconds=60)
    audit_log.add("change")
    assert len(list(audit_log.newest())) == 1
    node.advance(61 * SECOND)
    node.router.expire_retained()
    assert not list(audit_log.newest())


def test_secrets_and_floods_stay_out() -> None:
    audit_log = audit_log_of()
    deep: dict[str, Any] = {"users": [{"name": "ann", "password": "geheim", "hash": "$argon2id$geheim"}]}
    audit_log.add("import_users", {**deep, "token": "geheim", "payload": "geheim"}, detail="x")
    audit_log.add("import_users", {"names": ["n" * 100] * 1000})
    large, small = audit_log.newest()
    users = [{"name": "ann", "password": "...", "hash": "..."}]
    assert small.arguments == {"users": users, "token": "...", "payload": "..."}
    assert large.arguments["bytes"] > 100_000
    assert len(json.dumps(large.arguments)) < 4096
