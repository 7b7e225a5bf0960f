"""Deliberate faults of the product, one at a time: the simulation has to find each of them."""

from flockmq.broker.core.sessions import Sessions
from flockmq.cluster.membership.clock import ClusterClock
from flockmq.cluster.membership.data_loss import DataLoss
from flockmq.cluster.membership.dead_nodes import DeadNodes
from flockmq.cluster.membership.heartbeat import Heartbeat
from flockmq.cluster.membership.inbox import Inbox
from flockmq.cluster.membership.lease import Lease
from flockmq.cluster.membership.reconnection import Reconnection
from flockmq.cluster.peers.members import Members
from flockmq.cluster.peers.node_link import NodeLink
from flockmq.cluster.redis.store import RedisStore
from flockmq.cluster.replication.barrier import Barrier
from flockmq.cluster.replication.foreign_records import ForeignRecords
from flockmq.cluster.replication.routes import Routes
from flockmq.cluster.replication.snapshot import SnapshotReader
from flockmq.cluster.sessions.assignments import Assignments
from flockmq.cluster.sessions.claim_reconciliation import ClaimReconciliation
from flockmq.cluster.sessions.delayed_messages import RedisDelayed
from flockmq.cluster.sessions.loading import Loading
from flockmq.cluster.sessions.takeover import TakeOver
from flockmq.cluster.sessions.unconfirmed_messages import UnconfirmedMessages
from flockmq.cluster.sessions.wills import Wills
from tests.simulation import broken_methods as broken
from tests.simulation.mixed_clusters import MIXED_CLUSTERS
from tests.simulation.mutation import Mutation
from tests.simulation.put_back import PUT_BACK
from tests.simulation.shard_mutations import SHARDED

COMMIT_NUMBER = (
    "  if number <= last then\n    return {'again'}\n  end\n"
    "  if number ~= last + 1 then\n    return {'gap', last}\n  end\n"
)
WAIT_FOR_OWNER = (
    "    if live(prefix, owner) then\n      waits = waits .. last .. '=' .. owner .. ','\n"
    "      waited = waited == NOTHING and {} or waited\n"
    "      waited[#waited + 1] = last\n      waited[#waited + 1] = owner\n"
)
PUSH = "if session and session.incarnation == item[2] then\n    local quota"
PLAIN_PUSH = "  call.sessions[cid], call.changed[cid] = text .. struct.pack('<I4', #message) .. message, true\n"
OLDEST_DROPPED = "        drop_first(session, 1)\n"
DROP_DONE = "  queues.drop_done(session, head, size)\n"
DROP_PLAIN = "  call.sessions[cid], call.changed[cid] = struct.pack('<d', head + count) .. rest, true\n"
PLAIN_BYTES = "    tenants.add(tenant, queue + 4 * count - at)\n"
ALL_SENT = "  session.sent, session.changed = session.head + length_of(session), true\n"
APPLY = "  if apply_record(job.prefix, job.node, record, job.retained, (job.routed[record[2]] or 0) > i) then\n"
GIVEN = "        append(finished, group, place)\n      else\n        return_assignment(prefix"
SENT = "  session.sent, session.changed = math.max(of_this_life and was_admitted and sent or 0, session.sent), true\n"
NAMED = (
    "      handed[#handed + 1] = tonumber(epoch)\n      handed[#handed + 1] = will\n    end\n  end\n"
    "  return {ended, handed}\n"
)
HELD_OF_DEAD = "        held.hold(session, tonumber(epoch), due)\n"
DELAYED_OF_DEAD = "        redis.call('ZADD', prefix .. 'delayed', due, epoch)\n"
RESTS = "  return time < (starts.rest_ends[prefix] or 0)\n"
EXPIRED = "    if second and second * 1000 <= tonumber(time) then\n      end_session(session)\n"
OVER = "    if queues.is_over(length - queues.done(session), bytes_of(session), limits[1], limits[2], quota) then\n"
QUOTA = "bytes_of(session) + tenants.free(job.prefix, job.limits, tenants.of(item[1]))"

ALL = (
    # ---- acknowledged means kept ----
    Mutation(
        "ack before Redis",
        "G1",
        "PUBACK leaves when the commit is sent, not when Redis has replied",
        methods=((RedisStore, "commit", broken.confirm_at_once), (RedisStore, "start", broken.start_unconfirmed)),
    ),
    Mutation(
        "offline queue",
        "G1",
        "a message is not queued for a session without a connection",
        lua=(
            (PUSH, PUSH.replace(" then", " and owner ~= '' then")),
            (PLAIN_PUSH, f"  if text:byte(FIELDS_SIZE + 1) > 0 then\n{PLAIN_PUSH}  end\n"),
        ),
    ),
    Mutation(
        "push not sent",
        "G1",
        "the node of a client is sent no notification of messages in its queue",
        lua=(("    notify(prefix, owner, 'pushed', outbox.messages, outbox.items)\n", ""),),
    ),
    Mutation(
        "commits not sent again",
        "G8",
        "blocks that Redis has not confirmed are not sent again over a new link",
        methods=((RedisStore, "_resend", broken.nothing),),
    ),
    Mutation(
        "queues not read",
        "G8",
        "a node whose link is back does not read the queues that have grown",
        methods=((SnapshotReader, "read_queues", broken.answers(None)),),
    ),
    Mutation(
        "acks dropped",
        "G1",
        "the acknowledgements of clients leave the queue as it is",
        lua=((DROP_DONE, ""), (DROP_PLAIN, "")),
    ),
    Mutation(
        "large messages lost",
        "G1",
        "a node is not sent the large messages before the list that has their places",
        lua=(("      publish(prefix .. 'to:' .. node, list[i])\n", ""),),
    ),
    Mutation(
        "done bytes stay",
        "S2",
        "an acknowledgement does not take the bytes of its entries from the queue's",
        lua=((PLAIN_BYTES, "    local _ = nil\n"),),
    ),
    Mutation(
        "last entry stays",
        "G1",
        "an acknowledgement ends one queue entry too few",
        lua=(("    if number == head then\n      head =", "    if number == head and j < #done then\n      head ="),),
    ),
    # ---- order and exactly once ----
    Mutation(
        "commit not numbered",
        "G3",
        "Redis executes commits that it has executed before, and nodes send them again",
        lua=((COMMIT_NUMBER, ""),),
        methods=((RedisStore, "flow", broken.from_the_first),),
    ),
    Mutation(
        "awaiting not stored",
        "G3",
        "a QoS 2 message that awaits PUBREL is not stored",
        lua=(("    redis.call('HSET', job.prefix .. 'in:' .. item[1], item[3], message)\n", ""),),
    ),
    Mutation(
        "released not stored",
        "G3",
        "PUBREL does not end the stored state of its message",
        lua=(("    redis.call('HDEL', job.prefix .. 'in:' .. item[1], item[3])\n", ""),),
    ),
    Mutation(
        "awaiting not read",
        "G3",
        "the new node of a publisher does not read its messages that await PUBREL",
        methods=((Loading, "_restore", broken.without_awaited),),
    ),
    Mutation(
        "progress not stored",
        "G3",
        "a commit with a part of the receivers of a QoS 2 message does not say how far it came",
        lua=(("      message = struct.pack('<BI4', PROGRESS, item[5]) .. message\n", ""),),
    ),
    Mutation(
        "marks not read",
        "G3",
        "the new node of a subscriber does not read which of its messages are received or done",
        methods=((Loading, "_restore", broken.without_marks),),
    ),
    Mutation(
        "PUBREC mark lost",
        "G3",
        "that a client has received a QoS 2 message is not stored",
        lua=(("  if number >= session.head and redis.call('HSETNX'", "  if false and redis.call('HSETNX'"),),
    ),
    Mutation(
        "done mark lost",
        "G3",
        "a message that is done out of order is not marked",
        lua=(("  for j = 1, #waiting do\n", "  for j = 1, 0 do\n"),),
    ),
    Mutation(
        "sent not stored",
        "G2",
        "a release forgets which messages were sent, so they come again without DUP",
        lua=((SENT, "  session.changed = true\n"),),
    ),
    Mutation(
        "dead node sent nothing",
        "G2",
        "messages of a dead node's clients count as not sent",
        lua=((ALL_SENT, ""),),
        methods=((TakeOver, "node_left", broken.none_sent),),
    ),
    Mutation(
        "unfinished not restored",
        "G3",
        "a node does not give Redis back what it has lost of QoS 2 that clients have not completed",
        methods=((UnconfirmedMessages, "restore", broken.answers(None)),),
        plan="lost handshakes",
    ),
    Mutation(
        "ended not kept",
        "G3",
        "nor does it if the connection has ended and Redis has not confirmed that",
        methods=((UnconfirmedMessages, "keep", broken.nothing),),
        plan="lost handshakes, ended",
    ),
    # ---- subscribed means subscribed ----
    Mutation(
        "no barrier",
        "G4",
        "SUBACK does not wait for the other nodes",
        methods=((Barrier, "_advance", broken.all_applied),),
    ),
    Mutation(
        "confirmed early",
        "G4",
        "a node confirms a change before it has applied it",
        methods=((Inbox, "_handle_changes", broken.confirm_early),),
    ),
    Mutation(
        "sessions not read",
        "G4",
        "a node that joins does not read the subscriptions of persistent sessions",
        methods=((SnapshotReader, "read_sessions", broken.answers(None)),),
    ),
    Mutation(
        "routes not read",
        "G4",
        "a node that joins does not read the filters of the other nodes' clients",
        methods=((SnapshotReader, "read_routes", broken.answers(None)),),
    ),
    Mutation(
        "logs not read",
        "G4",
        "a node whose link is back does not read the other nodes' logs",
        methods=((SnapshotReader, "read_repair_logs", broken.answers(None)),),
    ),
    Mutation(
        "log batch not published",
        "G4",
        "QoS 1 and 2 for clean sessions elsewhere is stored, and not sent",
        lua=(("      publish(prefix .. 'to:' .. target[1], target[2] == '' and batch or header .. target[2])\n", ""),),
    ),
    Mutation(
        "applied not confirmed after a gap",
        "G4",
        "a node whose link is back does not report the changes that it has applied",
        methods=((Inbox, "_handle_back", broken.nothing),),
    ),
    Mutation(
        "a node is not counted",
        "G4",
        "Redis tells a node that all have applied its change when all but one have",
        lua=(("score_at(prefix .. 'applied', 0)", "score_at(prefix .. 'applied', 1)"),),
    ),
    Mutation(
        "dead node counted",
        "G4",
        "Redis waits for the reports of a node that was declared dead",
        lua=(("  redis.call('ZREM', prefix .. 'applied', node)\n", ""),),
    ),
    Mutation(
        "a lingering route goes",
        "G4",
        "a route that lingers is withdrawn although its client has come back",
        methods=((Routes, "add", broken.lingers_on),),
    ),
    # ---- one connection ----
    Mutation(
        "claim does not wait",
        "G5",
        "Redis grants a claim without naming the connection that must end first",
        lua=((WAIT_FOR_OWNER, "    if live(prefix, owner) then\n"),),
    ),
    Mutation(
        "admitted early",
        "G5",
        "a node admits a client before the earlier connection is released",
        methods=((TakeOver, "_proceed", broken.ignore_waits),),
    ),
    Mutation(
        "taken not sent",
        "G5",
        "the node of the earlier connection is not sent the request to close it",
        lua=(("      notify(prefix, owner, 'taken', cid, last)\n", ""),),
    ),
    Mutation(
        "taken ignored",
        "G5",
        "a node does not close a connection whose session another node has claimed",
        methods=((TakeOver, "taken", broken.nothing),),
    ),
    Mutation(
        "epoch not checked",
        "G5",
        "the release of an earlier connection ends the present one's claim",
        lua=(("  if session.epoch == epoch then\n    local own", "  if true then\n    local own"),),
    ),
    Mutation(
        "released not sent",
        "G5",
        "the connection that waits for a release is sent no notification of it",
        lua=(("    notify(prefix, session.owner, 'released', cid, epoch)\n", "    local _ = nil\n"),),
    ),
    Mutation(
        "release skipped",
        "G5",
        "a commit leaves out the releases of its block",
        lua=(("  each(#releases, release_one,", "  each(0, release_one,"),),
    ),
    Mutation(
        "assignment too long",
        "G5",
        "a node takes its lease for eleven times as long as the others do",
        methods=((Lease, "renew", broken.longer),),
    ),
    Mutation(
        "dead too soon",
        "G5",
        "nodes declare others dead after a tenth of the lease",
        methods=((Members, "check_heartbeats", broken.soon_dead),),
    ),
    Mutation(
        "not fenced",
        "G5",
        "a node that was declared dead goes on when Redis refuses its calls",
        methods=(
            (RedisStore, "_fits", broken.not_fenced),
            (Heartbeat, "_replied", broken.not_gone),
            (Lease, "_decide", broken.stays),
        ),
    ),
    Mutation(
        "claims not compared",
        "G5",
        "a node whose link is back does not compare its claims with those in Redis",
        methods=((ClaimReconciliation, "_compare", broken.nothing), (ClaimReconciliation, "_granted", broken.nothing)),
    ),
    Mutation(
        "loss reported twice",
        "M1",
        "a node whose link ends while it is repaired loses it a second time",
        methods=((NodeLink, "_lost", broken.each_loss),),
    ),
    # ---- wills ----
    Mutation(
        "wills of the dead",
        "G6",
        "Redis does not hand on the wills of a dead node",
        lua=(("  left = readable and left or {}\n", "  left = {}\n"),),
    ),
    Mutation(
        "wills forgotten",
        "G6",
        "the node that declares another one dead does not publish its wills",
        methods=((DeadNodes, "_buried", broken.no_wills),),
    ),
    Mutation(
        "wills not settled",
        "G6",
        "a will that was published stays in Redis",
        methods=((Wills, "settle", broken.unsettled),),
    ),
    Mutation(
        "wills twice",
        "G6",
        "wills of a dead node are published twice",
        methods=((Wills, "publish", broken.twice),),
    ),
    Mutation(
        "will after DISCONNECT",
        "G6",
        "DISCONNECT does not discard the will in Redis",
        methods=((TakeOver, "discard_will", broken.nothing),),
    ),
    # ---- retained ----
    Mutation(
        "retained not replicated",
        "G7",
        "other nodes do not get a change of a retained message",
        lua=((APPLY, APPLY.replace(" then", " and record[1] ~= 'retained' then")),),
    ),
    Mutation(
        "retained not stored",
        "G7",
        "the value of a retained message is published, and not stored",
        lua=(("  in_parts('HSET', prefix .. 'retained', written, 2)\n", ""),),
    ),
    Mutation(
        "retained not read",
        "G7",
        "a node that joins does not read the retained messages",
        methods=((SnapshotReader, "read_retained", broken.answers(None)),),
    ),
    Mutation(
        "changes not read",
        "G7",
        "a node whose link is back does not read the changes that it has missed",
        methods=((SnapshotReader, "catch_up", broken.skip_changes),),
    ),
    # ---- shared subscriptions ----
    Mutation(
        "assignments not returned",
        "G13",
        "the assignments of a dead node stay with it",
        lua=(("    attempt(prefix, GROUP, group, return_assignments, prefix, node, group, outbox)\n", ""),),
    ),
    Mutation(
        "assignment does not end",
        "G13",
        "a message that went into the queue of a subscriber stays assigned to its node",
        lua=((GIVEN, "      else\n        return_assignment(prefix"),),
    ),
    Mutation(
        "sent QoS 2 returned",
        "G13",
        "QoS 2 that was sent to a subscriber goes back to its group when the subscriber is away",
        lua=(("(sent and body_of(message):byte(1) % 4 == 1)", "(sent and body_of(message):byte(1) % 4 >= 1)"),),
    ),
    Mutation(
        "subscriber rests",
        "G13",
        "a subscriber whose queue was full does not return to the rotation",
        lua=(("      enter(prefix, group, SUBSCRIBER .. cid)\n      call.woken", "      call.woken"),),
    ),
    Mutation(
        "unsent not returned",
        "G13",
        "messages of a subscriber that is away are not given back",
        lua=(("  if give_back(session, false, outbox) then\n", "  if false then\n"),),
    ),
    Mutation(
        "missed process",
        "G1",
        "a node that was away while Redis began and ended compares its numbers, and takes others' numbers for its own",
        lua=(("  if starts.are_missed(prefix, node) then", "  if false then"),),
    ),
    # ---- shared subscriptions with an order ----
    Mutation(
        "keys without the link",
        "G13",
        "a node whose link is away, or has just come back, gives messages of a group with an order",
        methods=((Assignments, "suspend", broken.nothing),),
    ),
    Mutation(
        "idle key",
        "G13",
        "a node gives a key back while more of its messages are assigned to it",
        lua=(("if bound and bound.node == node and tonumber(bound.number) == number then", "if bound then"),),
    ),
    Mutation(
        "key elsewhere",
        "G13",
        "a node is not sent that a session elsewhere still has messages of a key",
        lua=(("    if cid ~= '' and (cid:sub(", "    if false and (cid:sub("),),
    ),
    Mutation(
        "key free",
        "G13",
        "a key that is held for a session elsewhere is free at the first question",
        lua=(("    elseif cid == '' or not has_key(", "    elseif true or not has_key("),),
    ),
    Mutation(
        "key stays held",
        "G13",
        "a node does not take the answer that a key which it holds is free",
        methods=((Assignments, "key_free", broken.nothing),),
        plan="asked before the answer",
    ),
    Mutation(
        "unbound key",
        "G13",
        "messages of one key are assigned to one node after the other",
        lua=(("  local node = bound and node_of(prefix, rotation, bound.node)\n", "  local node = nil\n"),),
    ),
    Mutation(
        "latest first",
        "G13",
        "of the messages of a group with an order that have come back, the latest is given first",
        lua=(("prefix .. 'gq:' .. group, 0, 0)", "prefix .. 'gq:' .. group, -1, -1)"),),
    ),
    Mutation(
        "back behind others",
        "G13",
        "a message that comes back to a group with an order waits behind others, not at the node of its key",
        lua=(("  if not (key_of(message) and assign_keyed(", "  if not (false and assign_keyed("),),
        plan="back behind others",
    ),
    Mutation(
        "rotation without a time",
        "G13",
        "the rotation of a group with an order fails when a message goes to a node without room",
        lua=(("    elseif taker.time and taker.used then", "    elseif taker.used then"),),
    ),
    # ---- all that is due at a time ----
    Mutation(
        "delayed will at once",
        "G6",
        "a delayed will is due when its connection has ended",
        lua=(("string.format('%.0f', clock(prefix) + delay * 1000)", "string.format('%.0f', clock(prefix))"),),
    ),
    Mutation(
        "delayed will stays",
        "G6",
        "a delayed will is published although its client is back",
        lua=(("  if delayed_epoch then\n", "  if false then\n"),),
    ),
    Mutation(
        "delayed wills of the dead",
        "G6",
        "a delayed will whose node dies is never due",
        lua=((DELAYED_OF_DEAD, ""),),
    ),
    Mutation(
        "due wills forgotten",
        "G6",
        "Redis hands a node the delayed wills that are due, and does not name them",
        lua=((NAMED, "    end\n  end\n  return {ended, handed}\n"),),
    ),
    Mutation(
        "delayed message at once",
        "G1",
        "a delayed message is due when it is accepted",
        lua=(("local due = time + items[i + 1] * 1000 + 1 ", "local due = time + 1 "),),
    ),
    Mutation(
        "chunk kept twice",
        "G14",
        "a chunk that a client sends again, after a lost connection, is staged once more",
        lua=(
            (
                "  if tonumber(chunk) ~= held then\n    return {tonumber(chunk) < held and 'again' or 'gap'}\n  end\n",
                "  if tonumber(chunk) > held then\n    return {'gap'}\n  end\n",
            ),
        ),
    ),
    Mutation(
        "commit forgotten",
        "G14",
        "the number of a transaction that is committed is not remembered: it can be published again",
        lua=(("  redis.call('HSET', committed, own, number .. ' ' .. now)\n", ""),),
    ),
    Mutation(
        "failed parts published",
        "G14",
        "a commit does not look whether the number of chunks is right, and drops no other parts",
        lua=(("    if tonumber(own:match('^%d+')) <= tonumber(number) then\n", "    if false then\n"),),
    ),
    Mutation(
        "messages of the dead come late",
        "G14",
        "a node gets messages that are due while a dead node has earlier ones",
        lua=(("  most = is_held(prefix, node) and 0 or most\n", ""),),
    ),
    Mutation(
        "delayed message twice",
        "G3",
        "delayed messages are published twice",
        methods=((Wills, "publish_delayed", broken.twice),),
    ),
    Mutation(
        "delayed messages not taken",
        "G1",
        "only the node that is the first one at the start of the cluster publishes delayed messages",
        methods=((RedisDelayed, "_take", broken.only_first),),
    ),
    Mutation(
        "session does not expire",
        "G9",
        "a session stays when its Session Expiry Interval is over",
        lua=((EXPIRED, EXPIRED.replace("      end_session(session)\n", "")),),
    ),
    Mutation(
        "session expires twice",
        "G9",
        "a session that has a connection again keeps its place among those that end",
        lua=(("  if present and owner == '' then\n    expiry.stop(session)\n", "  if present and owner == '' then\n"),),
    ),
    Mutation(
        "session expires at once",
        "G1",
        "a session with a Session Expiry Interval ends at the next heartbeat",
        lua=(("session.since + tonumber(interval) + 1 ", "session.since + 1 "),),
    ),
    Mutation(
        "clock of Redis",
        "G6",
        "the clock of the cluster follows steps of Redis' wall clock",
        lua=(("math.min(passed, most)", "passed"),),
    ),
    Mutation(
        "expiry by the wall clock",
        "I8",
        "sessions that expire as the nodes are configured do so by Redis' wall clock",
        lua=(("ended, time = 0, now(prefix)\n", "ended, time = 0, tonumber(redis.call('TIME')[1])\n"),),
    ),
    Mutation(
        "clock goes back",
        "G6",
        "the clock of the cluster goes back with Redis' wall clock",
        lua=(("local passed = math.max(time - tonumber(state[2]), 0)", "local passed = time - tonumber(state[2])"),),
    ),
    # ---- faults that were found, put back ----
    Mutation(
        "epochs forgotten",
        "G5",
        "a session that ends takes the epochs with it that are not released",
        lua=(("  if waits ~= '' then\n    create(", "  if false then\n    create("),),
    ),
    Mutation(
        "logs one by one",
        "G2",
        "a node whose link is back reads the logs of the others one after the other",
        lua=(("tonumber(log.entry[2][6]) or math.huge", "0 or math.huge"),),
        plan="moved publisher",
    ),
    Mutation(
        "served without a link",
        "G5",
        "a node that stood still while Redis was away serves its clients",
        methods=(
            (Lease, "look_for_pause", broken.nothing),
            (Lease, "link_lost", broken.resumes),
            (Lease, "_go_on", broken.unbounded),
        ),
        plan="stood still without Redis",
    ),
    Mutation(
        "acted before it was confirmed",
        "G5",
        "a node that stood still acts on what Redis has sent before its membership is confirmed",
        methods=((Lease, "suspend", broken.goes_on),),
    ),
    Mutation(
        "reached by a connection",
        "G5",
        "a node whose calls are not answered serves its persistent clients for three assignments",
        methods=((NodeLink, "reached_at", broken.just_now),),
        plan="cut in one direction",
    ),
    Mutation(
        "kept, and not compared",
        "G1",
        "a commit of which only the next link brings word may be lost again, and the node does not notice",
        methods=((RedisStore, "flow", broken.not_noted),),
        plan="kept, and lost",
    ),
    Mutation(
        "clock not brought",
        "G1",
        "delays and expiries after an outage count from the clock of before",
        methods=((ClusterClock, "advance", broken.nothing),),
        plan="due by an old clock",
    ),
    Mutation(
        "ended without a link",
        "R1",
        "a node keeps the subscriptions of a session that ended while its client was connected there",
        methods=((Sessions, "end_with_connection", broken.nothing),),
    ),
    Mutation(
        "stand-in goes early",
        "G1",
        "a Session that stands for a record goes before the blocks that have it are confirmed",
        methods=((ForeignRecords, "_retire", broken.retire_at_once),),
        plan="stands for its record",
    ),
    Mutation(
        "another stand-in",
        "G1",
        "a client that connects gets another Session than the blocks under way",
        methods=((Sessions, "share", broken.share_another),),
    ),
    Mutation(
        "route stays",
        "R1",
        "Redis keeps the route to a node without clients for it, and nodes that join send it messages",
        lua=(("    redis.call('HDEL', prefix .. 'routes:' .. node, name)\n", ""),),
    ),
    Mutation(
        "no limit",
        "G1",
        "the queue of a session takes more than its limit",
        lua=((OVER, "    if false then\n"), ("count >= math.min(MOST, most)", "count >= MOST")),
    ),
    Mutation(
        "dropped with room",
        "G1",
        "a full queue drops all new messages of a commit, not as many as needed",
        lua=(
            (
                "while count > least and is_over() do",
                "while count > 0 do",
            ),
        ),
    ),
    Mutation(
        "one dropped more",
        "G1",
        "a full queue drops one of its oldest messages more than it counts",
        lua=((OLDEST_DROPPED, "        drop_first(session, 2)\n        session.head = session.head + 1\n"),),
    ),
    Mutation(
        "tenant without a limit",
        "G1",
        "the queues of a tenant take more than its limit",
        lua=((QUOTA, "math.huge"),),
    ),
    Mutation(
        "no rest",
        "G1",
        "Redis ends sessions by time right after a failover, which may have lost claims",
        lua=((RESTS, "  return false\n"),),
        plan="lost claim",
    ),
    Mutation(
        "acknowledged by one that has gone",
        "G1",
        "a node whose link is back compares the queues of its clients, not of clients that have just gone",
        methods=((UnconfirmedMessages, "numbers", broken.of_connected),),
    ),
    Mutation(
        "lost heartbeats",
        "G3",
        "a node whose link is back forgets the process of Redis that it was up to date with",
        lua=(("  if tonumber(process) > (tonumber(state[2]) or 0) then\n", "  if false then\n"),),
    ),
    Mutation(
        "lost acknowledgements, not missed",
        "G1",
        "a node compares its count of calls with one that has also calls whose replies it has never had",
        methods=((DataLoss, "_compare", broken.forget_unreplied),),
    ),
    Mutation(
        "confirmed too late",
        "G5",
        "a node takes a reply that it reads after its lease for a confirmation of its membership",
        methods=((Lease, "is_confirmed_by", broken.agrees),),
    ),
    Mutation(
        "caught up without a membership",
        "G5",
        "a node whose link is back sends what it reads from queues also if it was declared dead",
        # Else its persistent clients are closed before that.
        methods=((Reconnection, "_confirm", broken.answers(None)), (NodeLink, "reached_at", broken.just_now)),
        plan="declared dead while it caught up",
    ),
    Mutation(
        "never admitted",
        "G6",
        "a claim discards the delayed will of its session, also if its client is never admitted",
        lua=(("  if session.waits == '' then\n    held.resume(session)\n", "  if false then\n"),),
    ),
    Mutation(
        "waited for one that stood still",
        "G6",
        "the release of a connection drops its delayed will if another one waits for that, or has waited and ended",
        lua=(("    held.hold(session, epoch, due)\n", "    redis.call('HDEL', prefix .. 'delayed:wills', id)\n"),),
    ),
    Mutation(
        "waited for twice",
        "G6",
        "a node that is releasing an epoch discards its delayed will when another connection claims the session",
        methods=((TakeOver, "taken", broken.released_twice),),
    ),
    Mutation(
        "waited for one that had died",
        "G6",
        "the burial of a node drops the delayed will of a connection if another one waits for the node, or has waited",
        lua=((HELD_OF_DEAD, "        redis.call('HDEL', prefix .. 'delayed:wills', epoch)\n"),),
    ),
    Mutation(
        "died with a due will",
        "G6",
        "a will that is due waits for its delay again if the node dies that publishes it",
        lua=(("      will = wills.without_delay(will)\n", ""),),
    ),
    Mutation(
        "sent and not released",
        "G1",
        "drop-old drops messages that a node has sent, and whose client is at no other node",
        lua=((" and not earlier.may_have_sent(job.prefix, session.waits)\n", "\n"),),
    ),
    *PUT_BACK,
    *MIXED_CLUSTERS,
    *SHARDED,
)
MUTATIONS = {mutation.name: mutation for mutation in ALL}
