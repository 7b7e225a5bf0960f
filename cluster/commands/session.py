"""`flockmq session show|kick|purge CLIENT_ID`: a session in Redis: show it, close its connection, or end it.

`show` reads a consistent state (MULTI). The others call functions of `cluster/redis/functions/`, which notify the node.
"""

import getpass
import json
import os
import socket
import time
from typing import Any, cast

from ...broker.commands.output import print_json, size, table, text
from ...broker.commands.parser import Parser
from ...broker.core.audit_record import DONE, FAILED
from ...broker.errors import FlockError
from ..peers import wire
from ..redis.packed_session import PackedSession
from .connection import Cluster, add_redis_options, connected

EXAMPLES = """\
  flockmq session show pump-17 --redis redis://10.0.0.5:6379
  flockmq session kick pump-17       # ends its connection; it may come back
  flockmq session purge pump-17      # ends its connection, forgets its subscriptions and queue"""
LEVELS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}
PUBREC_RECEIVED, OUT_OF_ORDER = b"r", b"d"
DONE_BY = {"kick": "the connection is closed", "purge": "the session has ended"}
SECONDS = 10.0  # for the node of the client to do it
PAUSE = 0.02  # s between two reads


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
    with connected(args, of=client_id) as cluster, connected(args) as first:
        if args.action == "show":
            show(read(cluster, client_id), as_json=args.json)
        else:
            try:
                node = act(cluster, args.action, client_id)
            except FlockError as error:
                record(first, args.action, args.client_id, FAILED, error.message)
                raise
            record(first, args.action, args.client_id, DONE)
            done = DONE_BY[args.action]
            if args.json:
                print_json({"client_id": text(client_id), "outcome": done, "node": node})
            else:
                print(f"{done}; it was connected to {node}" if node else done)
    return 0


# ---- kick and purge ----


def act(cluster: Cluster, action: str, client_id: bytes) -> str | None:
    """Call `flockmq_kick` or `flockmq_purge`, and wait until the node of the client has done it.

    Returns:
        The name of the node with its id; None: the client was not connected.

    Raises:
        FlockError: there is no such session, or no connection, or the node has not done it in SECONDS.
    """
    import redis

    connection = connection_of(cluster, client_id)
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
    if not where:
        return None
    node = f"{name_of(cluster, where[0])} ({where[0]})"
    end = time.monotonic() + SECONDS
    while connection is not None and connection_of(cluster, client_id) == connection:
        if time.monotonic() > end:
            raise FlockError(
                f"{node} has not closed the connection of {text(client_id)} in {SECONDS:.0f} s",
                "`flockmq cluster status` shows whether the node is alive",
            )
        time.sleep(PAUSE)
    return node


def record(cluster: Cluster, action: str, client_id: str, result: str, detail: str = "") -> None:
    """Ask the nodes to record the change in the audit log. `cluster`: its first shard, which has calls of nodes."""
    arguments = {
        "operation": f"session_{action}",
        "arguments": {"client_id": client_id},
        "result": result,
        "detail": detail,
        "by": getpass.getuser(),
        "address": socket.gethostname(),
        "via": "command",
    }
    question = wire.ask(b"", 0, "record", json.dumps(arguments))  # no node has this id: nobody gets the replies
    cluster.client.execute_command(cluster.keys.publish, cluster.keys.all, question)  # type: ignore[no-untyped-call]


def connection_of(cluster: Cluster, client_id: bytes) -> tuple[bytes, int] | None:
    """The node of a client, and the epoch of its CONNECT; None: there is no session, or it is damaged."""
    found = cast(bytes | None, cluster.client.get(cluster.keys.session(client_id)))
    try:
        session = None if found is None else PackedSession.decode(found)
    except ValueError:
        return None
    return None if session is None else (session.owner, session.epoch)


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
        "pubrec_received": states.count(PUBREC_RECEIVED),
        "done_out_of_order": states.count(OUT_OF_ORDER),
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
