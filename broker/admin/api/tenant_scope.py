"""Tokens of tenants: the operations that they open, and names with and without the prefix of the tenant.

The operations work with whole names. Here names of a request get the prefix, and names of the result lose it; an item
of a list with a name that is not the tenant's is left out. Names and ends of nodes are not shown.
"""

from typing import Any

from ...core.tenants import ROOT, prefix_of, with_prefix
from ...core.topic_filters import parts_of
from ..http.problems import unfit, whole_broker
from ..http.tokens import Holder

# Names of operations. The others show or change what is of the whole broker.
OPERATIONS = frozenset(
    {
        "me", "clients", "client", "kick", "sessions", "end_session", "subscriptions", "groups", "group", "purge_group",
        "wills", "cancel_will", "browse_retained", "retained", "retained_messages", "clear_retained", "publish", "bans",
        "ban", "unban", "tenants", "delayed", "cancel_delayed", "declare_group", "pause_group", "remove_group", "trace",
        "log", "audit_log", "send", "change_own_password",
    }
)  # fmt: skip
PLAIN = ("client_id", "client", "filter", "parent")  # arguments that get the prefix in front
NAMES = ("client_id", "topic", "filter", "group")  # in results
NODE, FAILURES = "node", "failures"  # in results, too
INCOMPLETE = {"": "a part of the broker did not answer: its items are missing"}


def judge(operation: str, holder: Holder) -> None:
    """Raises LacksRight: it is the token of a tenant, which may not use the operation."""
    if holder.tenant and operation not in OPERATIONS:
        raise whole_broker(holder)


def qualified(tenant: str, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments or the body of a request, with whole names.

    Raises:
        Problem: a value is not one that a tenant may give.
    """
    prefix = prefix_of(tenant)
    found = dict(given)
    for name in ("filter", "group"):
        value = found.get(name, "")
        if any(_filter_of(each).startswith(ROOT) for each in (value if isinstance(value, list) else [value])):
            raise unfit(f"{name}: names that begin with {ROOT} are the broker's own")
    for name in PLAIN:
        if value := found.get(name):
            found[name] = [prefix + each for each in value] if isinstance(value, list) else prefix + value
    try:
        if "topic" in found:
            found["topic"] = with_prefix(prefix, found["topic"])
    except ValueError as fault:
        raise unfit(f"topic: {fault}") from None
    if "group" in found:
        topic_filter = _filter_of(found["group"])
        found["group"] = found["group"].removesuffix(topic_filter) + prefix + topic_filter
    if "kind" in found:
        if found["kind"] == "address":
            raise unfit("kind: addresses are banned for the whole broker")
        found["value"] = prefix + found["value"]
    return found


def shown(tenant: str, result: Any) -> Any:
    """A result with the names that clients of the tenant know."""
    return _shown(prefix_of(tenant), result)


def step_shown(prefix: str, step: dict[str, Any]) -> dict[str, Any]:
    """A step of a message of a tenant, as its tokens get it: no node, and no name that is not the tenant's."""
    client = step["client"] if step["client"].startswith(prefix) else ""
    topic = step["topic"].removeprefix(prefix)
    return {**step, NODE: "", "client": client.removeprefix(prefix), "topic": topic}


def _shown(prefix: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(prefix, item) for item in value if not isinstance(item, dict) or _is_own(prefix, item)]
    if not isinstance(value, dict):
        return value
    return {name: _field(prefix, name, item) for name, item in value.items()}


def _field(prefix: str, name: str, value: Any) -> Any:
    if name == NODE:
        return ""
    if name == FAILURES:
        return INCOMPLETE if value else {}
    return _stripped(prefix, value) if name in NAMES and isinstance(value, str) else _shown(prefix, value)


def _is_own(prefix: str, item: dict[str, Any]) -> bool:
    """Whether all names in an item are the tenant's."""
    return all(_stripped(prefix, item[name]) != item[name] for name in NAMES if item.get(name))


def _stripped(prefix: str, name: str) -> str:
    """A name without the prefix, which in a shared subscription or a stream is before the filter of the messages."""
    topic_filter = _filter_of(name)
    return name.removesuffix(topic_filter) + topic_filter.removeprefix(prefix)


def _filter_of(name: str) -> str:
    """The topic filter of the messages of a shared subscription or a stream; any other name as it is."""
    try:
        return parts_of(name).messages
    except ValueError:
        return name
