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
from flockmq.cluster.shard import Shard
from tests.harness.stored_sessions import sessions_in

Keys = Mapping[bytes, Any]
OF_NODES = (b"node", b"routes", b"wills", b"owned", b"gl", b"gn", b"once")  # beginnings of their keys
ORPHANS = b"orphans"  # numbers of no node
NOTHING: dict[bytes, bytes] = {}


def differences(nodes: Mapping[str, ClusterLife], keys_of_shards: list[Keys], ordered: bool) -> Iterator[str]:
    """The findings.

    Args:
        nodes: the nodes that serve clients, by name.
        keys_of_shards: of Redis, of each shard.
        ordered: whether groups have an order.
    """
    every = _together(keys_of_shards)
    for keys in keys_of_shards:
        for text in (*_of_ended_nodes(keys), *_of_owners(keys)):
            yield f"R1 {text}"
    for text in _of_groups(keys_of_shards, every):
        yield f"R1 {text}"
    for name, node in nodes.items():
        found = [*_of_sessions(node, every), *_of_attended(node, every)]
        for shard, keys in zip(node.shards, keys_of_shards, strict=True):
            found += [*_of_members(node, shard, keys), *_of_numbers(shard, keys)]
            found += _of_claims(node, shard, keys, every, ordered)
        for text in found:
            yield f"R1 {name} {text}"


def _together(keys_of_shards: list[Keys]) -> Keys:
    """The keys that have a name of a session, a group or a node: each is in one shard."""
    if len(keys_of_shards) == 1:
        return keys_of_shards[0]
    return {key: value for keys in keys_of_shards for key, value in keys.items() if key.count(b":") > 1}


def _items(keys: Keys, kind: bytes) -> Iterator[tuple[bytes, Any]]:
    """The values of the keys of a kind, by the rest of the key."""
    return ((key[len(kind) :], value) for key, value in keys.items() if key.startswith(kind))


def _of_ended_nodes(keys: Keys) -> Iterator[str]:
    live = keys.get(b"mq:nodes", NOTHING)
    for kind in OF_NODES:
        for of, _ in _items(keys, b"mq:" + kind + b":"):
            if of.split(b" ")[0] not in live and of != ORPHANS:
                yield f"mq:{kind.decode()}:{of.decode()} is there, and its node is not"
    if set(keys[b"mq:applied"].scores if b"mq:applied" in keys else ()) != set(live):
        yield "mq:applied has other nodes than mq:nodes"
    if wanted := keys.get(b"mq:applied:wanted"):
        yield f"{sorted(wanted.scores)} have not been told that all nodes have applied a change"
    if b"mq:dead" in keys:
        yield "mq:dead has nodes whose sessions are not released"
    noted = {number for key, numbers in keys.items() if key.startswith(b"mq:once:") for number in numbers}
    if noted != set(keys.get(b"mq:once", ())):
        yield "mq:once has other numbers than mq:once:*"


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


def _of_groups(keys_of_shards: list[Keys], keys: Keys) -> Iterator[str]:
    """The subscribers of groups; a session or a node of another shard is one, too."""
    expected = {(group, b"d:") for each in keys_of_shards for group in each.get(b"mq:groups", NOTHING)}
    for sort, kind in ((b"c:", b"mq:subs:"), (b"n:", b"mq:routes:")):
        expected |= {(name, sort + of) for of, names in _items(keys, kind) for name in names if is_shared(name)}
    found = {(group, subscriber) for group, subscribers in _items(keys, b"mq:gs:") for subscriber in subscribers}
    for group, subscriber in sorted(found ^ expected):
        yield f"{subscriber.decode()} is {'a' if (group, subscriber) in found else 'no'} subscriber of {group.decode()}"


def _of_members(node: ClusterLife, shard: Shard, keys: Keys) -> Iterator[str]:
    """The other nodes, and the routes to them that the shard has."""
    filters, own = node.data_plane.router.filters, shard.link.node_id
    members = {member.node: member for member in shard.replica.members}
    if {own, *members} != set(keys.get(b"mq:nodes", NOTHING)):
        yield f"knows the nodes {sorted(members)}"
    for name, member in members.items():
        routes = keys.get(b"mq:routes:" + name, NOTHING)
        wanted = {each: options_of(*map(int, value.split())) for each, value in routes.items() if not is_shared(each)}
        has_routes = node.shards.of(name) is shard
        found = routes_of(node.data_plane.router.foreign, member.peer.session_id) if has_routes else {}
        if (found := found | dict(filters.subscriptions_of(member.peer))) != wanted:
            yield f"has the routes {found} to {name.decode()}; Redis: {wanted}"
    is_home = node.shards.of(own) is shard
    announced = {name: b"%d %d %d %d" % route.announced for name, route in shard.routes._known.items() if is_home}
    if announced != (routes := keys.get(b"mq:routes:" + own, NOTHING)):
        yield f"has announced {announced}; Redis: {routes}"


def _of_attended(node: ClusterLife, keys: Keys) -> Iterator[str]:
    """The groups with a subscriber that has a connection."""
    attended = {name for _, routes in _items(keys, b"mq:routes:") for name in routes if is_shared(name)}
    groups = node.data_plane.router.filters.groups
    if (found := {name for name, group in groups.items() if group.is_attended}) != attended:
        yield f"has the groups {found}; Redis: {attended}"


def _of_numbers(shard: Shard, keys: Keys) -> Iterator[str]:
    """The numbers of publications: all of them are to be forgotten with the next block of the node."""
    numbers, pending = set(keys.get(b"mq:once:" + shard.link.node_id, ())), set(shard.primary.journal.forgotten)
    if numbers != pending:
        yield f"will forget the numbers {sorted(pending)} in shard {shard.number}; Redis has {sorted(numbers)}"


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


def _of_claims(node: ClusterLife, shard: Shard, keys: Keys, every: Keys, ordered: bool) -> Iterator[str]:
    """The epochs of its connections, their wills, and the room of those that are subscribers of groups."""
    filters, own = node.data_plane.router.filters, shard.link.node_id
    epochs = shard.claims.epochs
    if epochs != (owned := {int(each.split(b"\0")[1]) for each in keys.get(b"mq:owned:" + own, ())}):
        yield f"has the epochs {epochs}; Redis: {owned}"
    if others := set(map(int, keys.get(b"mq:wills:" + own, ()))) - epochs:
        yield f"has wills of no connection: {others}"
    for claim in shard.claims:
        for name, options in filters.subscriptions_of(claim.session) if claim.session is not None else ():
            owner = claim.session.owner
            is_limited = owner is not None and claim.session.level == 5 and owner.maximum_packet_size != UNLIMITED
            is_here = node.shards.of(name) is shard
            is_direct = claim.persistent and not ordered and options & MAXIMUM_QOS and not is_limited and is_here
            taker = b"c:" + claim.client_id if is_direct else own
            rotation = every.get(b"mq:gr:" + name)
            if is_shared(name) and (rotation is None or taker not in rotation.scores):
                yield f"has room for {name.decode()} with {claim.client_id.decode()}; Redis: nothing"
