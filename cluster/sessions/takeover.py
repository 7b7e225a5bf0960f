"""Take-over: a CONNECT gets its session, and every earlier connection with its client id loses it (G5).

If another node (or this one) still has a connection with the client id, Redis notifies that node. It closes the
connection, publishes the will, and *releases* the epoch. The new connection is admitted when all earlier epochs are
released, or their nodes are dead: from then on no commit of theirs can take effect, and this node reads the queue.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..._speedups.base.msgpack import pack
from ..._speedups.cluster.journal import ClusterJournal
from ..._speedups.cluster.redis_deliveries import unfinished
from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.session import session_store
from ..._speedups.session.session import Session
from ..._speedups.session.subscriber import SessionKind
from ..._speedups.session.turn import COUNTERS
from ...broker import logs
from ...broker.auth.authenticator import ReasonCode
from ...broker.coordination.admission import Admission
from ...broker.coordination.coordinator import SessionOwner
from ...broker.core import will
from ...broker.core.data_plane import DataPlane
from ...broker.core.session_expiry import interval_of
from ..peers.node_link import NodeLink
from ..redis.link import GONE, LinkLost, Reply, ReplyError
from ..replication.barrier import Barrier
from ..replication.flush import Flush
from ..replication.routes import Routes
from .claim import Claim, Claims
from .loading import Loading
from .unconfirmed_messages import Ended, UnconfirmedMessages
from .wills import Wills, encode_will

TAKEOVERS = COUNTERS.index("takeovers")
CLAIMS_AT_ONCE = 100  # in a call: Redis executes nothing else
FREE_FIGHTS = 4  # take-overs in quick succession before the new connection has to wait
FIGHT_SECONDS = 0.1  # for the first that waits; twice as long for each further one ...
MAX_FIGHT_SECONDS = 2.0  # ... up to this

log = logs.get("flockmq.connect")


class TakeOver(SessionOwner):
    """Moves sessions from one connection to the next.

    Args:
        plane: of this node.
        link: of this node.
        journal: of this node.
        claims: of this node.
        wills: of this node.
        routes: of this node.
        barrier: of this node.
        unconfirmed: of this node.
        flushed: calls a function when all that this node has published so far is where its next commit will be, as far
            as it is in some shards; as bits.
        home: the shard of this node's routes, as a bit.
        most_sessions: returns the number of sessions that there may be.
    """

    def __init__(
        self,
        plane: DataPlane,
        link: NodeLink,
        journal: ClusterJournal,
        *,
        claims: Claims,
        wills: Wills,
        routes: Routes,
        barrier: Barrier | Flush,
        unconfirmed: UnconfirmedMessages,
        flushed: Callable[[Callable[[], object], int], object],
        home: int,
        most_sessions: Callable[[], int],
    ) -> None:
        self._plane = plane
        self._link = link
        self._journal = journal
        self._claims = claims
        self._wills = wills
        self._routes = routes
        self._barrier = barrier
        self._unconfirmed = unconfirmed
        self._flushed = flushed
        self._home = home
        self._own = 1 << journal.shard
        self._most_sessions = most_sessions
        self._loading = Loading(link, self._admit, journal.clock_of)
        # Claims that the next call has, by client id: their fields, and who gets the outcome.
        self._requests: dict[bytes, tuple[tuple[Any, ...], Callable[[Reply], None]]] = {}
        self._waiting: dict[Claim, None] = {}  # for epochs to be released, in the order of their CONNECTs
        self.fights = 0  # delayed take-overs
        self.claims_executed = 0  # to which Redis has replied with an epoch

    # ---- a CONNECT ----

    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        if connection.closed:
            return  # while it waited for an earlier connection
        interval = interval_of(packet, self._plane.config.mqtt)
        claim = Claim(packet.client_id.encode(), connection, packet, admission, interval=interval)
        self._claims.add(claim)
        if self._link.connected:
            self.request(claim, partial(self._granted, claim))
        else:
            self._admit_without_redis(claim)

    def request(self, claim: Claim, then: Callable[[Reply], None]) -> None:
        """Claim a session in Redis; `then` gets the outcome, an error of Redis, or LinkLost.

        The claims of a turn are one call. A client that claims twice does so with two: the node has to know the first
        epoch before Redis asks for its release.
        """
        packet = claim.packet
        message = b""
        if packet.will_topic is not None:
            author = self._plane.will_rights.author_of(claim.connection.identity)
            message = encode_will(claim.client_id, will.will_of(packet, author))
        if claim.client_id in self._requests or len(self._requests) >= CLAIMS_AT_ONCE:
            self.send_requests()
        if not self._requests:
            asyncio.get_running_loop().call_soon(self.send_requests)
        fields = (
            claim.client_id,
            int(claim.interval != 0),
            packet.protocol_level,
            message,
            claim.connection.identity.username or "",
            int(packet.clean_start),
            "" if claim.interval is None else claim.interval,
            int(claim.admitted),
        )
        self._requests[claim.client_id] = (fields, then)

    def send_requests(self) -> None:
        """Send the claims of this turn, if there are any."""
        requests, self._requests = self._requests, {}
        if requests:
            claims = pack([fields for fields, _ in requests.values()])
            receivers = [then for _, then in requests.values()]
            self._link.function(partial(self._claimed, receivers), "claims", self._most_sessions(), claims)

    def _claimed(self, receivers: list[Callable[[Reply], None]], reply: Reply) -> None:
        outcomes = [reply] * len(receivers)
        if isinstance(reply, list) and reply[0] == b"ok":
            outcomes = reply[1]
        for then, outcome in zip(receivers, outcomes, strict=True):
            self.claims_executed += isinstance(outcome, list) and outcome[0] == b"ok"
            then(outcome)

    def _granted(self, claim: Claim, reply: Reply) -> None:
        if isinstance(reply, (LinkLost, ReplyError)) or reply[0] != b"ok":
            self._refuse(claim, reply)
            return
        _, epoch, present, incarnation, waits, fights, old_will, will_epoch, stored = reply
        claim.present, claim.incarnation = bool(present), incarnation
        self._claims.grant(claim, epoch)
        if old_will:  # of the previous node, which is dead
            self._wills.publish(will_epoch, old_will)
        if claim.connection.closed:
            self.give_up(claim)
            return
        claim.waits = dict(zip(waits[::2], waits[1::2], strict=True))
        if claim.waits:
            self._waiting[claim] = None
        if fights > FREE_FIGHTS:
            claim.delayed = True
            if fights == FREE_FIGHTS + 1:
                log.warning("clients fight for a client id: new connections wait", client_id=claim.client_id)
            delay = min(FIGHT_SECONDS * 2.0 ** min(fights - FREE_FIGHTS - 1, 10), MAX_FIGHT_SECONDS)
            asyncio.get_running_loop().call_later(delay, self._after_delay, claim)
            self.fights += 1
        self._proceed(claim, stored)

    def _refuse(self, claim: Claim, reply: Reply) -> None:
        """Redis has not granted a claim: an error, or `gone`, `full`, `denied` or `damaged`."""
        connection, packet = claim.connection, claim.packet
        if isinstance(reply, ReplyError):
            log.warning("Redis refuses a session", client_id=packet.client_id, reason=reply)
        elif isinstance(reply, list) and reply[0] == b"damaged":
            reason = b"DAMAGED %b: %b" % (reply[1], reply[2])
            log.warning("Redis refuses a session", client_id=packet.client_id, reason=reason.decode(errors="replace"))
        elif not isinstance(reply, LinkLost) and reply[0] == b"gone":
            self._link.membership.become_fenced(GONE)
        self._claims.remove(claim)
        if isinstance(reply, list) and reply[0] == b"denied" and not connection.closed:
            claim.admission.refuse_others(connection, packet)
        elif not connection.closed:
            is_full = isinstance(reply, list) and reply[0] == b"full"
            code = ReasonCode.QUOTA_EXCEEDED if is_full else ReasonCode.SERVER_UNAVAILABLE
            claim.admission.refuse(connection, code, packet.client_id)

    def _after_delay(self, claim: Claim) -> None:
        claim.delayed = False
        if claim.overtaken and not claim.connection.closed:
            claim.connection.close(close_reasons.TAKEN_OVER)
        self._proceed(claim)
        self._plane.end_turn()

    def _proceed(self, claim: Claim, stored: Sequence[Any] = ()) -> None:
        """Admit the client if nothing prevents it any more. `stored`: its session, if Redis has just sent it."""
        if claim.waits or claim.delayed or claim.connection.closed:
            return
        self._waiting.pop(claim, None)
        sessions = self._plane.sessions
        session = sessions.get(claim.client_id)
        if session is not None and (session.kind == SessionKind.LOCAL or session.session_id != claim.incarnation):
            sessions.end(session)  # of an earlier incarnation
            session = None
        if not claim.persistent:
            session = sessions.create(claim.client_id, persistent=False, level=claim.packet.protocol_level)
        elif session is None:
            session = sessions.share(claim.client_id, claim.incarnation)
        claim.session = session
        if stored:
            self._loading.take(claim, session, *stored)
        elif claim.present:
            self._loading.load(claim, session)
        else:
            self._admit(claim, session)

    def _admit(self, claim: Claim, session: Session) -> None:
        plane, admission = self._plane, claim.admission
        session.expiry = claim.interval
        admission.admit(claim.connection, claim.packet, session)
        claim.admitted = True
        if claim.held_will:
            self._journal.drop_held_will(claim.held_will)
        welcome = partial(admission.welcome, claim.connection, claim.packet, session, present=claim.present)
        if session.kind == SessionKind.SHARED:
            subscriptions = plane.router.filters.all_of(session)
            claim.filters = {name: (options, identifier) for name, options, identifier in subscriptions}
            claim.weight = session.subscription_weight
            for name, options in claim.routed():
                self._routes.add(name, options, clean=False)
        # A route that has lingered may be new: its first client may have gone before all nodes had applied it.
        if len(plane.turn.journal) or (claim.filters and self._barrier.is_behind):
            self._barrier.when_applied(welcome, self._own | (self._home if claim.filters else 0))
        else:
            welcome()

    def _admit_without_redis(self, claim: Claim) -> None:
        """Redis is away: admit clean sessions without a will, to be claimed when it is back; refuse others (G8)."""
        plane, admission, connection, packet = self._plane, claim.admission, claim.connection, claim.packet
        session = plane.sessions.get(claim.client_id)
        if session is not None and not admission.belongs(session, connection):
            self._claims.remove(claim)
            admission.refuse_others(connection, packet)
            return
        if (
            session is not None
            and session.owner is not None
            and packet.clean_start
            and session.kind == SessionKind.LOCAL
        ):
            if not session.owner.give_way(close_reasons.TAKEN_OVER, partial(self.claim, admission, connection, packet)):
                self._claims.remove(claim)
                return
            plane.turn.count(TAKEOVERS)
            session = plane.sessions.get(claim.client_id)
        if (
            claim.persistent
            or not packet.clean_start
            or plane.sessions.knows(claim.client_id)
            or packet.will_topic is not None
        ):
            self._claims.remove(claim)
            admission.refuse(connection, ReasonCode.SERVER_UNAVAILABLE, packet.client_id)
            return
        session = plane.sessions.create(claim.client_id, persistent=False, level=packet.protocol_level)
        session.expiry = claim.interval
        claim.session = session
        admission.admit(connection, packet, session)
        claim.admitted = True
        admission.welcome(connection, packet, session, present=False)

    # ---- the end of a connection ----

    def number_of(self, connection: Connection) -> int:
        return self._claims.epoch_of(connection)

    def ended(self, connection: Connection, session: Session | None) -> None:
        if self._link.closed:
            return
        claim = self._claims.take(connection)
        if claim is None:
            return
        if session is None:
            if claim.epoch:
                self.give_up(claim)
            return  # without an epoch, `_granted` gives it up
        sessions = self._plane.sessions
        self._plane.turn.journal.touched = 0
        had_will, found = will.take(connection, self._plane.router, self._plane.will_rights)
        delay = None
        if found is not None and found.delay and session.kind == SessionKind.SHARED and session.expiry != 0:
            delay = found.delay if session.expiry is None else min(found.delay, session.expiry)
        elif found is not None:
            will.publish(self._plane.router, session.client_id, found, self._wills.number_of(claim.epoch))
        if session.kind == SessionKind.SHARED:
            stays = sessions.outlives_connection(session)
            self._routes.remove(claim.routed(), clean=False, linger=stays and session.expiry != 0)
            messages = unfinished(session)
            sent = session_store.unload(session)
            if stays:
                sessions.put_away(session)
            else:
                sessions.end(session)
        else:
            sessions.end(session, self._withdraw)
            sent, messages = 0, None
        if claim.epoch:
            if had_will and delay is None:
                self._wills.settle(claim.epoch)
            interval = session.expiry if session.kind == SessionKind.SHARED else None
            kept = self._unconfirmed.keep(session, sent, messages) if messages is not None else None
            is_quiet = not connection.has_published and (found is None or delay is not None)
            shards = None if is_quiet else connection.concerned | self._plane.turn.journal.touched
            self._release(claim.client_id, claim.epoch, sent, interval, delay, claim.overtaken, kept, shards)
            self._claims.remove(claim)

    def _withdraw(self, subscriptions: list[tuple[bytes, int]]) -> None:
        """Subscriptions of a clean session have left the tree.

        A new session may have some of the filters by now: a route goes with the last session that has it.
        """
        if not self._link.closed:
            self._routes.remove(subscriptions, clean=True)

    def give_up(self, claim: Claim) -> None:
        """The connection closed before it was admitted: it has no will to publish."""
        self._claims.remove(claim)
        self._waiting.pop(claim, None)
        session, sessions = claim.session, self._plane.sessions
        if session is not None:
            session_store.unload(session)
            if sessions.get(claim.client_id) is session:
                if session.kind == SessionKind.SHARED:
                    sessions.put_away(session)
                else:
                    sessions.end(session)
        if claim.packet.will_topic is not None:
            self._wills.settle(claim.epoch)
        self._release(claim.client_id, claim.epoch)

    def _release(
        self,
        client_id: bytes,
        epoch: int,
        sent: int | None = None,
        interval: int | None = None,
        delay: int | None = None,
        overtaken: bool = False,
        kept: Ended | None = None,
        shards: int | None = None,
    ) -> None:
        """Record that a connection has ended, in the block of this turn; with several shards when all is flushed.

        Args:
            client_id, epoch, sent, interval, delay, overtaken: as of `ClusterJournal.release`.
            kept: messages that are kept until the release is stored.
            shards: to which the connection has published lately, or its will has been, as bits; None: it has published
                nothing, so nothing has to be before what its next connection publishes.
        """

        def released() -> None:
            self._claims.releasing.discard(epoch)
            if kept is not None:
                self._unconfirmed.released(kept)

        def release() -> None:
            self._journal.release(client_id, epoch, sent, interval, delay, overtaken)
            self._plane.turn.after_commit(released, self._own)

        self._claims.releasing.add(epoch)
        if shards is None:
            release()
        else:
            self._flushed(release, shards | self._own)

    def discard_will(self, connection: Connection) -> None:
        claim = self._claims.get(connection)
        if claim is not None and claim.epoch:
            self._wills.settle(claim.epoch)

    def link_lost(self) -> None:
        """The link is lost, and with it the replies that unadmitted connections wait for."""
        self._loading.cancel()
        self._claims.close_unadmitted(close_reasons.REDIS_AWAY_AT_CLAIM)

    # ---- messages of other nodes ----

    def taken(self, client_id: bytes, epoch: int) -> None:
        """Another connection has claimed the session of this epoch."""
        if epoch in self._claims.releasing:
            return  # the block with its release has its will, too, which may have a delay
        claim = self._claims.with_epoch(epoch)
        if claim is None:  # it is released already, or the reply to the claim was lost: no connection has it
            self._wills.settle(epoch)
            self._release(client_id, epoch)
            return
        claim.overtaken = True
        if not claim.delayed:  # else its delay applies although it has lost: a fight would never be slowed down
            self._plane.turn.count(TAKEOVERS)
            if claim.admitted:  # [MQTT-3.1.4-2], after the packets that the client has sent over this connection
                claim.connection.give_way(close_reasons.TAKEN_OVER, lambda: None)
            else:
                claim.connection.close(close_reasons.TAKEN_OVER)

    def released(self, client_id: bytes, epoch: int) -> None:
        """A node has released an epoch."""
        for claim in list(self._waiting):
            if claim.waits.pop(epoch, None) is not None:
                self._proceed(claim)

    def node_left(self, node: bytes) -> None:
        """A node is dead or has left: all its epochs are released."""
        for claim in list(self._waiting):
            for epoch in [epoch for epoch, where in claim.waits.items() if where == node]:
                del claim.waits[epoch]
                claim.all_sent = True
            self._proceed(claim)
