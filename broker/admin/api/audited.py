"""Records of the audit log for operations over HTTP: changes, and attempts without the right to make them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from aiohttp import web

from ...core.audit_record import DONE, FAILED, REFUSED
from ...rpc.node_view import NodeView
from ..http.problems import Problem
from ..http.tokens import Holder
from .operation import Change, Operation

REFUSALS = 10  # attempts without a right that are recorded ...
REFUSAL_SECONDS = 60.0  # ... in this time: they must not push changes out of the audit log


class Refusals:
    """Records attempts without a right, a few at a time."""

    def __init__(self) -> None:
        self._until = 0.0
        self._left = 0

    def record(self, node: NodeView, operation: str, holder: Holder, raw: web.Request, detail: str) -> None:
        """Record an attempt, unless too many were recorded just before."""
        now = time.monotonic()
        if now >= self._until:
            self._until, self._left = now + REFUSAL_SECONDS, REFUSALS
        if self._left and node.serving:
            self._left -= 1
            node.audit_log.add(operation, None, REFUSED, detail, minor=True, **author(holder, raw))


@contextmanager
def audited(
    node: NodeView, operation: Operation, holder: Holder, raw: web.Request, given: dict[str, Any]
) -> Iterator[Change]:
    """Record an operation that changes something, with its result; others are recorded if an agent sends them.

    Args:
        node: that makes the change.
        operation: of the request.
        holder: sender of the request.
        raw: the request.
        given: arguments and body, as they were sent.

    Yields:
        The change, to be completed by the operation.
    """
    change = Change()
    if not operation.is_audited and not is_agent(raw):
        yield change
        return
    audit_log = node.audit_log
    record = audit_log.begin(operation.name, given, minor=not operation.is_audited, **author(holder, raw))
    result, detail = FAILED, "internal error: the log of the node has the reason"
    try:
        yield change
        result, detail = DONE, ""
    except Problem as problem:
        is_refused = problem.status < HTTPStatus.INTERNAL_SERVER_ERROR
        result, detail = REFUSED if is_refused else FAILED, problem.detail
        raise
    finally:
        audit_log.end(record, result, detail, change.before, change.after)


def author(holder: Holder, raw: web.Request) -> dict[str, str]:
    """The author of a change, as a record has it."""
    agent = raw.headers.get("User-Agent", "")
    via = "page" if "Sec-Fetch-Site" in raw.headers else "command" if agent.startswith("flockmq/") else "api"
    via = "agent" if is_agent(raw) else via
    return {
        "by": holder.name,
        "role": holder.role,
        "credential": holder.credential,
        "tenant": holder.tenant,
        "address": raw.remote or "",
        "via": via,
    }


def is_agent(raw: web.Request) -> bool:
    """Whether `flockmq mcp` has sent the request, for a model."""
    return raw.headers.get("User-Agent", "").startswith("flockmq-mcp/")
