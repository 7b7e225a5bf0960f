"""Rule R1: at the end of a run each node has what Redis has, and Redis has nothing of nodes that are gone.

The clients of a run might never notice a difference: a message that would go the wrong way, or wait, comes too late.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from flockmq._speedups.codec.topics import is_shared
from flockmq._speedups.routing.foreign import SEGMENTS
from flockmq._speedups.routing.foreign_sessions import ForeignSessions
from flockmq._speedups.session.subscriber import SessionKind
from flockmq.broker.core.subscription_options import MAXIMUM_QOS
from flockmq.broker.rpc.clients import UNLIMITED
from flockmq.cluster.life import ClusterLife
from flockmq.cluster.replication.routes import options_of
from tests.harness.stored_sessions import sessions_in

Keys = Mapping[bytes, Any]
OF_NODES = (b"node", b"routes", b"wills", b"owned", b"gl", b"gn")  # beginnings of their keys
NOTHING: dict[bytes, bytes] = {}


def differences(nodes: Mapping[str, ClusterLife], keys_of_shards: list[Keys], ordered: bool) -> Iterator[str]:
    """The findings.

    Args:
        nodes: the nodes that serve clients, by name.
        keys_of_shards: of Redis, of each shard.
        ordered: whether groups have an order.
    """
    for keys in keys_of_shards:
        for text in (*_of_ended_nodes(keys), *_of_owners(keys)):
            yield f"R1 {text}"
    if len(keys_of_shards) > 1:
        return
    for text in _of_groups(keys):
        yield f"R1 {text}"
    for name, node in nodes.items():
        for text in (*_of_members(node, keys), *_of_sessions(node, keys), *_of_claims(node, keys, ordered)):
            yield f"R1 {name} {text}"


def _items(keys: Keys, kind: bytes) -> Iterator[tuple[bytes, Any]]:
    """The values of the keys of a kind, by the rest of the key."""
    return ((key[len(kind) :], value) for key, value in keys.items() if key.startswith(kind))


def _of_ended_nodes(keys: Keys) -> Iterator[str]:
    live = keys.get(b"mq:nodes", NOTHING)
    for kind in OF_NODES:
        for of, _ in _items(keys, b"mq:" + kind + b":"):
            if of.split(b" ")[0] not in live:
                yield f"mq:{kind.decode()}:{of.decode()} is there, and its node is not"
    if set(keys[b"mq:applied"].scores if b"mq:applied" in keys else ()) != set(live):
        yield "mq:applied has other nodes than mq:nodes"
    if wanted := keys.get(b"mq:applied:wanted"):
        yield f"{sorted(wanted.scores)} have not been told that all nodes have applied a change"
    if b"mq:dead" in keys:
        yield "mq:dead has nodes whose sessions are not released"


def _of_owners(keys: Keys) -> Iterator[str]:
    """The epochs of sessions, and of nodes."""
    owned = {(*each.split(b"\0"), node) for node, entries in _items(keys, b"mq:owned:") for each in entries}
    claimed = set()
    for client_id, session in sessions_in(keys).items():
        if session.owner:
            claimed.add((client_id, b"%d" % session.epoch, session.owner))
        claimed |= {(client_id, *each.split(b"=")) for each in session.waits.split(b",") if each}
    for client_id, epoch, node in sorted(owned ^ claimed):
        only = "owned by the node" if (client_id, epoch, node) in owned else "in the session"
        yield f"epoch {epoch.decode()} of {client_id.decode()} at {node.decode()} is only {only}"


def _of_groups(keys: Keys) -> Iterator[str]:
    expected = {(group, b"d:") for group in keys.get(b"mq:groups", NOTHING)}
    for sort, kind in ((b"c:", b"mq:subs:"), (b"n:", b"mq:routes:")):
        expected |= {(name, sort + of) for of, names in _items(keys, kind) for name in names if is_shared(name)}
    found = {(group, subscriber) for group, subscribers in _items(keys, b"mq:gs:") for subscriber in subscribers}
    for group, subscriber in sorted(found ^ expected):
        yield f"{subscriber.decode()} is {'a' if (group, subscriber) in found else 'no'} subscriber of {group.decode()}"


def _of_members(node: ClusterLife, keys: Keys) -> Iterator[str]:
    """The other nodes, and the routes to them."""
    filters, own = node.data_plane.router.filters, node.shards.first.replica.members._link.node_id
    members = {member.node: member for member in node.shards.first.replica.members}
    if {own, *members} != set(keys.get(b"mq:nodes", NOTHING)):
        yield f"knows the nodes {sorted(members)}"
    attended = set()
    for name, member in members.items():
        routes = keys.get(b"mq:routes:" + name, NOTHING)
        attended |= set(filter(is_shared, routes))
        wanted = {each: options_of(*map(int, value.split())) for each, value in routes.items() if not is_shared(each)}
        found = routes_of(node.data_plane.router.foreign, member.peer.session_id)
        if (found := found | dict(filters.subscriptions_of(member.peer))) != wanted:
            yield f"has the routes {found} to {name.decode()}; Redis: {wanted}"
    announced = {name: b"%d %d %d %d" % route.announced for name, route in node.shards.first.routes._known.items()}
    if announced != (routes := keys.get(b"mq:routes:" + own, NOTHING)):
        yield f"has announced {announced}; Redis: {routes}"
    attended |= set(filter(is_shared, announced))
    if (found := {name for name, group in filters.groups.items() if group.is_attended}) != attended:
        yield f"has the groups {found}; Redis: {attended}"


def routes_of(foreign: ForeignSessions, node: int) -> dict[bytes, int]:
    """The topic filters of the routes of a node, with their options."""
    table = foreign.receivers.table
    routes = (route for segment in range(SEGMENTS) for route in table.routes_in(segment))
    return {name: options for name, number, options in routes if number == node}


def _of_sessions(node: ClusterLife, keys: Keys) -> Iterator[str]:
    """The subscriptions of persistent sessions."""
    filters, sessions = node.data_plane.router.filters, node.data_plane.sessions
    stored = {
        client_id: (session.incarnation, keys.get(b"mq:subs:" + client_id, NOTHING))
        for client_id, session in sessions_in(keys).items()
        if session.persistent
    }
    here = {
        session.client_id: (session.session_id, dict(filters.subscriptions_of(session)))
        for session in sessions
        if session.kind == SessionKind.SHARED
    }
    here |= {client_id: (number, dict(held)) for client_id, number, held in node.data_plane.router.foreign}
    for client_id in sorted(stored.keys() | here.keys()):
        number, subscriptions = stored.get(client_id, (0, NOTHING))
        wanted = {name: int(value.partition(b";")[0]) for name, value in subscriptions.items()}
        session_id, found = here.get(client_id, (number, {}))
        if (session_id, found) != (number, wanted):
            yield f"has the session {session_id} of {client_id.decode()} with {found}; Redis: " + (
                f"{number} with {wanted}"
            )


def _of_claims(node: ClusterLife, keys: Keys, ordered: bool) -> Iterator[str]:
    """The epochs of its connections, their wills, and the room of those that are subscribers of groups."""
    filters, own = node.data_plane.router.filters, node.shards.first.replica.members._link.node_id
    epochs = node.shards.first.claims.epochs
    if epochs != (owned := {int(each.split(b"\0")[1]) for each in keys.get(b"mq:owned:" + own, ())}):
        yield f"has the epochs {epochs}; Redis: {owned}"
    if others := set(map(int, keys.get(b"mq:wills:" + own, ()))) - epochs:
        yield f"has wills of no connection: {others}"
    for claim in node.shards.first.claims:
        for name, options in filters.subscriptions_of(claim.session) if claim.session is not None else ():
            owner = claim.session.owner
            is_limited = owner is not None and claim.session.level == 5 and owner.maximum_packet_size != UNLIMITED
            is_direct = claim.persistent and not ordered and options & MAXIMUM_QOS and not is_limited
            taker = b"c:" + claim.client_id if is_direct else own
            rotation = keys.get(b"mq:gr:" + name)
            if is_shared(name) and (rotation is None or taker not in rotation.scores):
                yield f"has room for {name.decode()} with {claim.client_id.decode()}; Redis: nothing"
