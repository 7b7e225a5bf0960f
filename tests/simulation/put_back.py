"""Faults that the fault suite (`tests/faults`) had found before there was a simulation, put back.

Faults with a separate plan (meetings.py) have its name. Where a later safeguard hides a fault, both are broken.
"""

from flockmq.cluster.membership.data_loss import DataLoss
from flockmq.cluster.membership.lease import Lease
from flockmq.cluster.membership.reconnection import Reconnection
from flockmq.cluster.peers.members import Members
from flockmq.cluster.peers.node_link import NodeLink
from flockmq.cluster.redis.connector import Connector
from flockmq.cluster.redis.link import Link
from flockmq.cluster.redis.log_bounds import LogBounds
from flockmq.cluster.redis.store import RedisStore
from flockmq.cluster.replication.changes import Changes
from flockmq.cluster.replication.snapshot import SnapshotReader
from flockmq.cluster.sessions.assignments import Assignments
from flockmq.cluster.sessions.claim import Claims
from flockmq.cluster.sessions.takeover import TakeOver
from flockmq.cluster.sessions.wills import Wills
from tests.simulation import broken_methods as broken
from tests.simulation.mutation import Mutation

REPEATED_TAKEN = (
    "      notify(prefix, where, 'taken', cid, tonumber(old))      -- repeated: the node may have had no link\n"
)
DIED_WHILE_WAITED_FOR = REPEATED_TAKEN + "    else\n      died = math.max(died, tonumber(old))\n"
OF_THIS_LIFE = "  return session and session.incarnation == incarnation and session or nil\n"
MAY_HAVE_BEEN_SENT = "local kept, looks_on = math.max(session.sent - session.head, 0), false"

PUT_BACK = (
    Mutation(
        "unknown epoch kept",
        "G5",
        "a node does not release an epoch for which it has no connection",
        methods=((TakeOver, "taken", broken.only_known),),
    ),
    Mutation(
        "logs of departed nodes",
        "G4",
        "a node whose link is back does not read the logs of nodes that have left",
        methods=((Members, "departed", broken.none_departed),),
    ),
    Mutation(
        "suspended for ever",
        "G8",
        "a node that stood still waits for ever for the confirmation of its membership",
        methods=((Lease, "suspend", broken.without_timer),),
    ),
    Mutation(
        "assignments not asked for",
        "G13",
        "a node whose link is back does not ask for assignments that it has not received",
        methods=((Assignments, "_recovered", broken.none_missed),),
    ),
    Mutation(
        "queues not compared",
        "G1",
        "a node whose link is back does not compare the ends of its queues with those in Redis",
        methods=((SnapshotReader, "has_lost", broken.answers(None)),),
    ),
    Mutation(
        "losses not noticed",
        "G8",
        "a node whose link is back does not notice that Redis has lost data",
        methods=((DataLoss, "_compare", broken.answers("")),),
    ),
    Mutation(
        "missed wills",
        "G6",
        "a node whose link is back does not publish the wills that Redis has handed to it",
        methods=((Wills, "publish_missed", broken.nothing),),
    ),
    Mutation(
        "departed forgotten",
        "G4",
        "a node that loses its link again while it catches up forgets the nodes that have left",
        methods=((Reconnection, "_resume", broken.forget_departed),),
    ),
    Mutation(
        "retained forgotten",
        "G7",
        "a node that loses its link again while it catches up forgets which retained messages it has to read",
        methods=((Changes, "missing", broken.taken_out),),
    ),
    Mutation(
        "assignment from the reply",
        "G5",
        "a lease begins when the reply to a heartbeat arrives, not when the heartbeat is sent",
        methods=((Lease, "renew", broken.from_now),),
    ),
    Mutation(
        "died while waited for",
        "G2",
        "messages count as not sent if their node dies while other connections wait for it",
        lua=(
            (DIED_WHILE_WAITED_FOR, REPEATED_TAKEN),
            ("    elseif waits ~= session.waits then\n", "    elseif false then\n"),
        ),
    ),
    Mutation(
        "joined in silence",
        "G4",
        "a node that joins does not report which changes it has applied",
        methods=((NodeLink, "publish", broken.not_back_at_join),),
    ),
    Mutation(
        "sent by an earlier node",
        "G13",
        "messages of a subscriber go back to the group although the node of its earlier connection may have sent them",
        lua=(
            (
                "  if session.owner ~= '' or session.waits ~= '' then\n    unsent",
                "  if session.owner ~= '' then\n    unsent",
            ),
        ),
    ),
    Mutation(
        "places not compared",
        "G13",
        "a node whose link is back does not compare the places of its groups with those in Redis",
        methods=((SnapshotReader, "lost_places", broken.answers([])),),
    ),
    Mutation(
        "marks of changes not compared",
        "G4",
        "a node whose link is back does not compare the mark of its last change with that in Redis",
        methods=((SnapshotReader, "is_same_history", broken.answers(True)),),
    ),
    Mutation(
        "sent in an earlier session",
        "G2",
        "the release of an earlier session's connection says how much of the present queue was sent",
        lua=(("math.max(of_this_life and was_admitted and sent or 0,", "math.max(was_admitted and sent or 0,"),),
    ),
    Mutation(
        "handshakes of an earlier session",
        "G3",
        "Redis applies the handshakes of an earlier session of the client to the present one",
        lua=((OF_THIS_LIFE, "  return session\n"),),
    ),
    Mutation(
        "earlier link",
        "G8",
        "Redis executes what a node has sent over an ended link after the questions over the next one",
        methods=((Connector, "_end_link_before", broken.answers(None)),),
    ),
    Mutation(
        "late change",
        "G8",
        "the same, and the node does not rejoin when that was a change",
        methods=((Connector, "_end_link_before", broken.answers(None)), (RedisStore, "_number", broken.unfenced)),
    ),
    Mutation(
        "ended assignments",
        "G13",
        "a node whose link is back takes assignments again that end with blocks which Redis does not have yet",
        methods=((RedisStore, "ended_assignments", broken.none_ended),),
    ),
    Mutation(
        "waiting for a release",
        "G5",
        "a connection that waits for an earlier one stays open when the link of its node is lost",
        methods=((Claims, "close_unadmitted", broken.nothing),),
    ),
    Mutation(
        "silent Redis",
        "G8",
        "a node whose link comes back waits for ever for a Redis that does not reply",
        methods=((Link, "ask", broken.patient),),
    ),
    Mutation(
        "reply of an earlier round",
        "G8",
        "the reply to a commit does not count if Redis has refused a call before it",
        methods=((RedisStore, "_committed", broken.this_round),),
    ),
    Mutation(
        "age of the log",
        "G4",
        "entries of a node's log grow old while its link is away",
        methods=((LogBounds, "renew", broken.nothing),),
    ),
    Mutation(
        "sent messages dropped",
        "G1",
        "the full queue of an absent client drops first what was sent to the client",
        lua=((MAY_HAVE_BEEN_SENT, "local kept, looks_on = 0, false"),),
    ),
)
