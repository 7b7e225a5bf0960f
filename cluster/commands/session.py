"""`flockmq session show|kick|purge CLIENT_ID`: a session in Redis: show it, close its connection, or end it.

`show` reads a consistent state (MULTI). The others call functions of `cluster/redis/functions/`, which notify the node.
"""

import os
import time
from typing import Any

from ...broker.commands.output import print_json, size, table, text
from ...broker.commands.parser import Parser
from ...broker.errors import FlockError
from ..redis.packed_session import PackedSession
from .connection import Cluster, add_redis_options, connected

EXAMPLES = """\
  flockmq session show pump-17 --redis redis://10.0.0.5:6379
  flockmq session kick pump-17       # ends its connection; it may come back
  flockmq session purge pump-17      # ends its connection, forgets its subscriptions and queue"""
LEVELS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}
RECEIVED, DONE = b"r", b"d"


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = Parser(
        "session", "One client's session, wherever it is.", "show|kick|purge CLIENT_ID [OPTION...]", EXAMPLES
    )
    parser.add_argument("action", metavar="ACTION", choices=["show", "kick", "purge"], help="show, kick, purge")
    parser.add_argument("client_id", metavar="CLIENT_ID", help="of the session")
    add_redis_options(parser)
    args = parser.parse(arguments)
    client_id = os.fsencode(args.client_id)
    with connected(args) as cluster:
        if args.action == "show":
            show(read(cluster, client_id), as_json=args.json)
        else:
            outcome = act(cluster, args.action, client_id)
            print_json({"client_id": text(client_id), "outcome": outcome}) if args.json else print(outcome)
    return 0


# ---- kick and purge ----


def act(cluster: Cluster, action: str, client_id: bytes) -> str:
    """Call `flockmq_kick` or `flockmq_purge`; returns the outcome.

    Raises:
        FlockError: there is no such session, or no connection.
    """
    import redis

    try:
        outcome, *where = map(text, cluster.client.execute_command(*cluster.keys.function(action), client_id))  # type: ignore[no-untyped-call]
    except redis.ResponseError as error:
        if "function not found" not in str(error).lower():
            raise
        raise FlockError(f"no node has run with Redis at {cluster.address}", "is it the right one?") from error
    if outcome == "unknown":
        raise missing(cluster, client_id)
    if outcome == "offline":
        raise FlockError(f"{text(client_id)} is not connected")
    return f"told {name_of(cluster, where[0])} ({where[0]})" if where else outcome


def name_of(cluster: Cluster, node: str) -> str:
    """A node's name; empty when it has left."""
    return text(cluster.client.hget(cluster.keys.node(node.encode()), "name") or b"")


def missing(cluster: Cluster, client_id: bytes) -> FlockError:
    """The error that there is no such session."""
    return FlockError(f"there is no session of {text(client_id)!r} in Redis at {cluster.address}")


# ---- show ----


def read(cluster: Cluster, client_id: bytes) -> dict[str, Any]:
    """The state of the session.

    Raises:
        FlockError: there is none.
    """
    keys = cluster.keys
    with cluster.client.pipeline() as pipe:
        pipe.get(keys.session(client_id))
        pipe.llen(keys.queue(client_id))
        pipe.hvals(keys.states(client_id))
        pipe.hkeys(keys.awaiting(client_id))
        pipe.hgetall(keys.subscriptions(client_id))
        pipe.time()
        found, listed, states, awaited, subscriptions, (now, _) = pipe.execute()
    if not found:
        raise missing(cluster, client_id)
    session = decoded(client_id, found)
    owner = text(session.owner)
    node = name_of(cluster, owner) if owner else ""
    queued = listed if session.listed else len(session.entries)
    return {
        "client_id": text(client_id),
        "persistent": session.persistent,
        "user": text(session.user),
        "connected": bool(owner and node),
        "owner": owner,
        "node": node,
        "last_seen": session.since,
        "seconds_ago": max(0, int(now) - session.since),
        "protocol": LEVELS.get(session.level, str(session.level)),
        "epoch": session.epoch,
        "made_at_epoch": session.incarnation,
        "waits_for": [part.partition("=")[2] for part in text(session.waits).split(",") if part],
        "fights": session.fights,
        "queued_messages": queued,
        "queued_bytes": session.queued_bytes,
        "first_number": session.head,
        "may_be_sent": max(0, min(session.sent - session.head, queued)),
        "pubrec_received": states.count(RECEIVED),
        "done_out_of_order": states.count(DONE),
        "awaiting_pubrel": sorted(int(packet_id) for packet_id in awaited),
        "session_expiry_interval": int(session.interval) if session.interval else None,
        "subscriptions": {text(name): int(stored.partition(b";")[0]) for name, stored in sorted(subscriptions.items())},
    }


def decoded(client_id: bytes, found: bytes) -> PackedSession:
    """A session.

    Raises:
        FlockError: it is damaged.
    """
    try:
        return PackedSession.decode(found)
    except ValueError as error:
        raise FlockError(f"{text(client_id)}: {error}", "`flockmq session purge` ends it") from error


def show(session: dict[str, Any], *, as_json: bool) -> None:
    """Print the session."""
    if as_json:
        print_json(session)
        return
    rows = [
        ("client id", session["client_id"]),
        ("persistent", "yes" if session["persistent"] else "no: it ends with its connection"),
        ("user", session["user"] or "none: it was made without authentication"),
        ("connected", whereabouts(session)),
        ("protocol", session["protocol"]),
        ("epoch", f"{session['epoch']}; the session exists since epoch {session['made_at_epoch']}"),
        ("queue", queue(session)),
        ("in flight", f"up to {session['may_be_sent']}, PUBREC received for {session['pubrec_received']}"),
        ("QoS 2 received", f"{len(session['awaiting_pubrel'])} await PUBREL"),
    ]
    if session["waits_for"]:
        rows.append(("taken over from", f"{', '.join(session['waits_for'])}, not released yet"))
    if session["fights"]:
        rows.append(("fights", f"{session['fights']}: several clients seem to use this client id"))
    rows.append(("subscriptions", str(len(session["subscriptions"]))))
    print(table(rows))
    if session["subscriptions"]:
        print(table([(name, f"QoS {options & 3}") for name, options in session["subscriptions"].items()], "  "))


def whereabouts(session: dict[str, Any]) -> str:
    """The node of the client, or since when it is offline."""
    if session["connected"]:
        return f"to {session['node']} ({session['owner']})"
    if session["owner"]:
        return f"no: its node {session['owner']} is gone"
    if session["last_seen"] is None:
        return "no"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(session["last_seen"]))
    return f"no, since {when} ({session['seconds_ago']} s ago)"


def queue(session: dict[str, Any]) -> str:
    """The queue, in words."""
    if not session["queued_messages"]:
        return "empty"
    first, count = session["first_number"], session["queued_messages"]
    return f"{count} messages, {size(session['queued_bytes'])}, numbers {first} to {first + count - 1}"
