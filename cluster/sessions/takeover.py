"""Which connection has which session, in the whole cluster (G5).

A CONNECT claims its session with one function call, which gives the claim a number, its *epoch*, greater than all
before. If another node (or this one) still has a connection with that client id, Redis tells it, and it closes the
connection, publishes the will, and *releases* its epoch. The new connection is let in when all earlier epochs are
released, or their nodes are dead: then nothing of theirs can come any more, and the queue is read.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

from _speedups.cluster.journal import arrive, decode_message, encode_message
from _speedups.codec.packets import Connect
from _speedups.net.reactor import Connection
from _speedups.session.session import Restored, Session
from _speedups.session.turn import COUNTERS
from broker import logs
from broker.auth.authenticator import ReturnCode
from broker.coordination.admission import Admission
from broker.core import will
from cluster.redis.link import LinkLost, Reply

if TYPE_CHECKING:
    from cluster.coordinator import Cluster

LOAD_AT_ONCE = 500  # queued messages read with one call
LOADS_AT_ONCE = 8  # such calls under way: Redis closes a link for which too much waits
REVIEW_AT_ONCE = 1000
TAKEOVERS = COUNTERS.index("takeovers")
FIGHTS_FREE = 4  # take-overs that follow each other closely before the winner has to wait
FIGHT_SECONDS = 0.1  # for the first that waits; twice as long for each further one ...
FIGHT_SECONDS_MOST = 2.0  # ... up to this

log = logs.get("flockmq.connect")


@dataclass(eq=False)
class Claim:
    """A connection's right to a session, asked for or given."""

    client_id: bytes
    admission: Admission
    connection: Connection
    packet: Connect
    epoch: int = 0  # 0 = not given yet
    number: int = 0  # of the session
    present: bool = False
    waits: dict[int, bytes] = field(default_factory=dict)  # epochs that must be released -> their nodes
    overtaken: bool = False  # somebody else has claimed the session while it was delayed
    delayed: bool = False  # clients fight for the session: it waits a little
    all_sent: bool = False  # the session's last node died
    session: Session | None = None
    admitted: bool = False
    filters: dict[bytes, int] = field(default_factory=dict)  # of a persistent session: filter -> QoS


class Claims:
    """The claims of this node.

    Args:
        cluster: it belongs to.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._wills = cluster.keys.wills(cluster.me)
        self._by_connection: dict[Connection, Claim] = {}
        self._by_epoch: dict[int, Claim] = {}
        self._waiting: set[Claim] = set()  # for epochs to be released
        self._to_load: deque[tuple[Claim, Session, int]] = deque()  # queues to be read, from a number on
        self._loading = 0  # calls for that under way
        self._settling: set[int] = set()  # epochs of wills that are settled, which Redis may not know yet

    # ---- a CONNECT ----

    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        """Ask for the session of a client."""
        claim = Claim(packet.client_id.encode(), admission, connection, packet)
        self._by_connection[connection] = claim
        if not self._cluster.connected:
            self._without_redis(claim)
            return
        self._ask(claim, partial(self._claimed, claim))

    def _ask(self, claim: Claim, then: Callable[[Reply], None]) -> None:
        packet = claim.packet
        message = b""
        if packet.will_topic is not None:
            message = len(claim.client_id).to_bytes(2, "little") + claim.client_id
            message += encode_message(
                packet.will_topic.encode(), packet.will_payload, packet.will_qos, packet.will_retain
            )
        self._cluster.function(
            then,
            "claim",
            claim.client_id,
            int(not packet.clean_start),
            packet.protocol_level,
            message,
            self._cluster.data_plane.config.limits.max_sessions,
            claim.connection.identity.username or "",
        )

    def _claimed(self, claim: Claim, reply: Reply) -> None:
        cluster, connection = self._cluster, claim.connection
        if isinstance(reply, (LinkLost, hiredis.ReplyError)) or len(reply) == 1:
            if isinstance(reply, hiredis.ReplyError):
                log.warning("Redis refuses a session", client_id=claim.packet.client_id, reason=reply)
            elif not isinstance(reply, LinkLost) and reply[0] == b"gone":
                cluster.displaced("the others took this node for dead")
            self._by_connection.pop(connection, None)
            if isinstance(reply, list) and reply[0] == b"denied" and not connection.closed:
                claim.admission.refuse_others(connection, claim.packet)
            elif not connection.closed:
                claim.admission.refuse(connection, ReturnCode.SERVER_UNAVAILABLE, claim.packet.client_id)
            return
        epoch, present, number, waits, fights, old_will, last = reply
        claim.epoch, claim.present, claim.number = epoch, bool(present), number
        self._by_epoch[epoch] = claim
        if old_will:  # its node died, and nobody has published it yet
            self.publish_will(last, old_will)
        if connection.closed:
            self._give_up(claim)
            return
        claim.waits = dict(zip(waits[::2], waits[1::2], strict=True))
        if claim.waits:
            self._waiting.add(claim)
        if fights > FIGHTS_FREE:
            claim.delayed = True
            delay = min(FIGHT_SECONDS * 2.0 ** min(fights - FIGHTS_FREE - 1, 10), FIGHT_SECONDS_MOST)
            asyncio.get_running_loop().call_later(delay, self._after_fight, claim)
            cluster.count("fights")
        self._proceed(claim)

    def _after_fight(self, claim: Claim) -> None:
        claim.delayed = False
        if claim.overtaken and not claim.connection.closed:
            claim.connection.close("taken over by a new connection with its client id")
        self._proceed(claim)
        self._cluster.data_plane.end_turn()

    def _proceed(self, claim: Claim) -> None:
        """Let the client in when nothing is in the way."""
        if claim.waits or claim.delayed or claim.connection.closed:
            return
        self._waiting.discard(claim)
        sessions = self._cluster.data_plane.sessions
        session = sessions.get(claim.client_id)
        if session is not None and (session.kind == 0 or session.number != claim.number):
            sessions.end(session)  # of an earlier life
            session = None
        if claim.packet.clean_start:
            session = sessions.create(claim.client_id, persistent=False, level=claim.packet.protocol_level)
        elif session is None:
            session = sessions.share(claim.client_id, claim.number)
        claim.session = session
        if claim.present:
            session.load()
            self._load(claim, session, 1)
        else:
            self._admit(claim, session)

    def _load(self, claim: Claim, session: Session, first: int) -> None:
        self._to_load.append((claim, session, first))
        self._load_more()

    def _load_more(self) -> None:
        while self._to_load and self._loading < LOADS_AT_ONCE:
            claim, session, first = self._to_load.popleft()
            if not claim.connection.closed:
                self._loading += 1
                then = partial(self._loaded, claim, session, first == 1)
                self._cluster.function(then, "load", claim.client_id, first, LOAD_AT_ONCE, as_node=False)

    def _loaded(self, claim: Claim, session: Session, begins: bool, reply: Reply) -> None:
        self._loading -= 1
        try:
            if not claim.connection.closed:  # else it was given up when it closed
                self._take_queue(claim, session, begins, reply)
        except ValueError as error:
            log.error("a session can't be read", client_id=claim.packet.client_id, reason=error)
            claim.connection.close("its session can't be read")
        finally:
            self._load_more()

    def _take_queue(self, claim: Claim, session: Session, begins: bool, reply: Reply) -> None:
        if isinstance(reply, (LinkLost, hiredis.ReplyError)):
            claim.connection.close("Redis went away while the session was read")
            return
        head, sent, first, entries, tail, states, awaited = reply
        if begins:
            session.restore(head, sent)
        for number, message in enumerate(entries, first):
            arrive(session, number, message)
        if first + len(entries) < tail:
            self._load(claim, session, first + len(entries))
            return
        for number, state in zip(states[::2], states[1::2], strict=True):
            if state == b"r":
                session.restore_received(int(number))
            else:
                session.restore_done(int(number))
        for packet_id, message in zip(awaited[::2], awaited[1::2], strict=True):
            topic, payload, qos, retain = decode_message(message)
            session.restore_awaiting(int(packet_id), Restored(0, qos, retain, topic, payload))
        session.restored(claim.all_sent)
        self._admit(claim, session)

    def _admit(self, claim: Claim, session: Session) -> None:
        plane = self._cluster.data_plane
        claim.admission.admit(claim.connection, claim.packet, session)
        claim.admitted = True
        welcome = partial(claim.admission.welcome, claim.connection, claim.packet, session, present=claim.present)
        if session.kind:
            claim.filters = dict(plane.router.filters.subscriptions_of(session))
            for name in claim.filters:
                self._cluster.routes.add(name, 0)
        if len(plane.turn.journal):
            self._cluster.agreed(welcome)
        else:
            welcome()

    # ---- without Redis ----

    def _without_redis(self, claim: Claim) -> None:
        """Clean sessions come in, and are claimed when Redis is back; persistent ones can't (G8)."""
        plane = self._cluster.data_plane
        session = plane.sessions.get(claim.client_id)
        if session is not None and not claim.admission.belongs(session, claim.connection):
            del self._by_connection[claim.connection]
            claim.admission.refuse_others(claim.connection, claim.packet)
            return
        if session is not None and session.owner is not None and claim.packet.clean_start and not session.kind:
            plane.turn.count(TAKEOVERS)
            session.owner.close("taken over by a new connection with its client id")
            session = plane.sessions.get(claim.client_id)
        if not claim.packet.clean_start or session is not None or claim.packet.will_topic is not None:
            del self._by_connection[claim.connection]
            claim.admission.refuse(claim.connection, ReturnCode.SERVER_UNAVAILABLE, claim.packet.client_id)
            return
        session = plane.sessions.create(claim.client_id, persistent=False, level=claim.packet.protocol_level)
        claim.session = session
        claim.admission.admit(claim.connection, claim.packet, session)
        claim.admitted = True
        claim.admission.welcome(claim.connection, claim.packet, session, present=False)

    def reclaim(self) -> None:
        """Redis is back: compare what it has with what is here, and claim what came in meanwhile."""
        self._review(set(self._by_epoch), b"0")
        for claim in list(self._by_connection.values()):
            if not claim.epoch and claim.admitted:
                self._ask(claim, partial(self._reclaimed, claim))

    def _review(self, unseen: set[int], cursor: bytes) -> None:
        """Ask what this node has, as Redis knows it. `unseen`: epochs of this node that have not been in an answer."""
        self._cluster.function(partial(self._reviewed, unseen), "owned", cursor, REVIEW_AT_ONCE)

    def _reviewed(self, unseen: set[int], reply: Reply) -> None:
        if isinstance(reply, (LinkLost, hiredis.ReplyError)):
            return  # the link is lost again; or old sessions are claimed, and then `taken` is said once more
        cursor, *owned = reply
        for client_id, epoch, is_taken in zip(owned[::3], owned[1::3], owned[2::3], strict=True):
            unseen.discard(epoch)
            if epoch not in self._by_epoch or is_taken:
                self.taken(client_id, epoch)
        if cursor != b"0":
            self._review(unseen, cursor)
            return
        for epoch in unseen:
            claim = self._by_epoch.get(epoch)
            if claim is not None:
                claim.connection.close("Redis has lost its session")
        self._cluster.call(self._review_wills, "HKEYS", self._wills)

    def _review_wills(self, reply: Reply) -> None:
        """Look for those that were given to this node when it could not be told."""
        if isinstance(reply, list):
            for epoch in map(int, reply):
                if epoch not in self._by_epoch and epoch not in self._settling:
                    self._cluster.call(partial(self._found_will, epoch), "HGET", self._wills, epoch)

    def _found_will(self, epoch: int, reply: Reply) -> None:
        if isinstance(reply, bytes) and epoch not in self._settling:
            self.publish_will(epoch, reply)

    def without_link(self) -> None:
        """The link is lost, and with it what those wait for who have not been let in."""
        self._to_load.clear()
        for claim in list(self._by_connection.values()):
            if claim.epoch and not claim.admitted:
                claim.connection.close("Redis went away while the session was claimed")

    def _reclaimed(self, claim: Claim, reply: Reply) -> None:
        if isinstance(reply, (LinkLost, hiredis.ReplyError)) or len(reply) == 1:
            claim.connection.close("its client identifier could not be claimed")
            return
        claim.epoch, *_, old_will, last = reply
        self._by_epoch[claim.epoch] = claim
        if old_will:
            self.publish_will(last, old_will)
        if claim.connection.closed:
            self._give_up(claim)

    # ---- the end of a connection ----

    def ended(self, connection: Connection, session: Session | None) -> None:
        """Settle the will of a connection that is closed, and let go of its session."""
        claim = self._by_connection.pop(connection, None)
        if claim is None:
            return
        cluster = self._cluster
        if session is None:
            if claim.epoch:
                self._give_up(claim)
            return  # else it is given up when the answer comes
        had_will = will.publish(connection, session.client_id, cluster.data_plane.router)
        filters = cluster.data_plane.router.filters
        if session.kind:
            cluster.routes.remove(claim.filters)
            sent = session.unload()
            if not session.subscriptions_held:
                cluster.data_plane.sessions.end(session)
        else:
            cluster.routes.remove([name for name, _ in filters.subscriptions_of(session)])
            cluster.data_plane.sessions.end(session)
            sent = 0
        if claim.epoch:
            if had_will:
                self._settle_will(claim.epoch)
            cluster.ledger.release(claim.client_id, claim.epoch, sent)
            del self._by_epoch[claim.epoch]

    def _give_up(self, claim: Claim) -> None:
        """The connection closed before it was let in: there is no will to publish."""
        self._by_connection.pop(claim.connection, None)
        self._by_epoch.pop(claim.epoch, None)
        self._waiting.discard(claim)
        session = claim.session
        if session is not None:
            session.unload()
            if not session.subscriptions_held and self._cluster.data_plane.sessions.get(claim.client_id) is session:
                self._cluster.data_plane.sessions.end(session)
        if claim.packet.will_topic is not None:
            self._settle_will(claim.epoch)
        self._cluster.ledger.release(claim.client_id, claim.epoch, 0)

    def discard_will(self, connection: Connection) -> None:
        """The client said DISCONNECT."""
        claim = self._by_connection.get(connection)
        if claim is not None and claim.epoch:
            self._settle_will(claim.epoch)

    def _settle_will(self, epoch: int) -> None:
        self._settling.add(epoch)
        self._cluster.ledger.will_settled(epoch)
        self._cluster.data_plane.turn.after_commit(partial(self._settling.discard, epoch))

    def publish_will(self, epoch: int, stored: bytes) -> None:
        """Publish the will of a client whose node is dead, which Redis gave to this node."""
        end = 2 + int.from_bytes(stored[:2], "little")
        topic, payload, qos, retain = decode_message(stored[end:])
        will.publish_stored(self._cluster.data_plane.router, stored[2:end], topic, payload, qos, retain)
        self._settle_will(epoch)

    # ---- what other nodes and operators say ----

    def taken(self, client_id: bytes, epoch: int) -> None:
        """Somebody else has claimed the session that this epoch has."""
        claim = self._by_epoch.get(epoch)
        if claim is None:  # its end was said already, or the answer to the claim was lost: nobody was let in with it
            self._settle_will(epoch)
            self._cluster.ledger.release(client_id, epoch, 0)
        elif claim.delayed:  # who fights for it waits, too, or there would be no end
            claim.overtaken = True
        else:
            self._cluster.data_plane.turn.count(TAKEOVERS)
            claim.connection.close("taken over by a new connection with its client id")  # [MQTT-3.1.4-2]

    def released(self, client_id: bytes, epoch: int) -> None:
        """An epoch is over."""
        for claim in list(self._waiting):
            if claim.waits.pop(epoch, None) is not None:
                self._proceed(claim)

    def left(self, node: bytes) -> None:
        """A node is dead: what it had is released."""
        for claim in list(self._waiting):
            for epoch in [epoch for epoch, where in claim.waits.items() if where == node]:
                del claim.waits[epoch]
                claim.all_sent = True
            self._proceed(claim)

    def close(self, client_id: bytes, reason: str) -> bool:
        """End the connection of a client, let in or not. False if there is none here."""
        claims = [claim for claim in self._by_connection.values() if claim.client_id == client_id]
        for claim in claims:
            claim.connection.close(reason)
        return bool(claims)

    def close_persistent(self, reason: str) -> None:
        """End the connections of all persistent sessions."""
        for claim in list(self._by_connection.values()):
            if not claim.packet.clean_start:
                claim.connection.unsettled = True  # its will may be published, even if it just says DISCONNECT
                claim.connection.close(reason)

    def shared(self) -> list[Session]:
        """The persistent sessions whose clients are here."""
        return [
            claim.session
            for claim in self._by_connection.values()
            if claim.admitted and claim.session is not None and claim.session.kind
        ]

    def of(self, connection: Connection) -> Claim | None:
        """The claim of a connection."""
        return self._by_connection.get(connection)

    def figures(self) -> dict[str, Any]:
        """What a heartbeat says of them."""
        return {"clients": self._cluster.data_plane.sessions.connected}
