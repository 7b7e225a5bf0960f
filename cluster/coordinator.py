"""A node of a cluster: how it joins, follows, is cut off, comes back, and leaves.

Owns the link and what hangs on it. A node is *connected* while its link carries calls. Without a link it goes on with
what needs nobody else, and asks nobody; when the link is back it catches up. When the others have taken it for dead, or
Redis has forgotten what it said, it is *displaced*: all its clients are closed and it joins anew, with another id.
"""

import asyncio
import contextlib
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import hiredis

from _speedups.base.msgpack import DamagedMessage, unpack
from _speedups.cluster.journal import ClusterJournal, arrive
from _speedups.codec.packets import Connect
from _speedups.net.reactor import Connection
from _speedups.session.session import Session
from _speedups.session.turn import COUNTERS
from broker import logs
from broker.config.schema import Config
from broker.coordination.admission import Admission
from broker.coordination.coordinator import Coordinator, Done
from broker.core.calls import SECONDS, Arguments, RpcReply
from broker.errors import NotNow, StoreError
from cluster.membership.lease import Lease
from cluster.message_log import LoggedMessages
from cluster.peers import wire
from cluster.peers.liveness import is_gone, process_name
from cluster.peers.members import CREDIT_STEP, HOLD_SECONDS, Member, Members
from cluster.peers.rpc import Asking
from cluster.redis.clients import RedisAddress
from cluster.redis.connector import Connector, Refused
from cluster.redis.durability import inspect
from cluster.redis.keys import LAYOUT, Keys
from cluster.redis.link import Link, LinkError, LinkLost, Reply, ignore
from cluster.redis.log_bounds import LogBounds
from cluster.redis.store import RedisStore
from cluster.replication.analytics_results import Results
from cluster.replication.barrier import Agreement
from cluster.replication.changes import Changes
from cluster.replication.routes import Routes
from cluster.replication.snapshot import AT_ONCE, Behind, Reader, pairs
from cluster.replication.users import Users
from cluster.sessions.takeover import Claims

BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)  # between attempts to reach Redis, give or take a half
BEATS_PER_LEASE = 4
PATIENCE_LEASES = 3  # without Redis, though its machine answers, until persistent clients are sent away
TIDY_SECONDS = 5.0
STOP_SECONDS = 10.0
DRAIN_STEPS = 8
DRAIN_STEP_SECONDS = 0.05
DROPPED_SLOW = COUNTERS.index("dropped_slow")
DROPPED_QUEUE_FULL = COUNTERS.index("dropped_queue_full")

log = logs.get("flockmq.cluster")


class Cluster(Coordinator):
    """Coordinates a node with the others.

    Args:
        config: of the node.
        loop: of the node.
        restart: called with a reason when the node has to begin anew; nothing is done here after that.
    """

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, restart: Callable[[str], None]) -> None:
        self._config = config
        self._loop = loop
        self._restart = restart
        self._address = RedisAddress.parse(config.cluster.redis)
        self.name = config.cluster.node_name or socket.gethostname()
        self.me = f"{self.name}-{secrets.token_hex(4)}".encode()
        self.keys = Keys(config.cluster.prefix)
        self.ledger = ClusterJournal(self._header)
        self.journal = self.ledger
        bounds = LogBounds(config.cluster.log_bytes, config.cluster.log_seconds)
        self.store = self._store = RedisStore(
            self.keys,
            self.me,
            limits=self._limits,
            bounds=bounds,
            replicas=config.cluster.replicas,
            on_changed=self._changed,
            on_dropped=lambda n, by_client: self.broker.turn.count(DROPPED_QUEUE_FULL, n),
            unnumbered=self._look_up,
            on_fenced=self.displaced,
        )
        self.routes = Routes(self.ledger)
        self.claims = Claims(self)
        self.users = self._users = Users(self)
        self.agreement = Agreement()
        self._asking = Asking(self)
        self._patience = max(3.0, config.cluster.timeout)  # with a Redis that says nothing, while it is asked
        self._link = Link(self._pushed, self._settle, self._lost, self._patience)
        self._connector = Connector(self._address, self.me, self._patience)
        self._lease = Lease(
            config.cluster.lease,
            config.cluster.timeout,
            loop,
            reactor=lambda: self.data_plane.reactor,
            ask=lambda judge: self._link.hold_until(judge, *self._command("beat", True, ())),
            hang_up=lambda: self._link.close(),
            displaced=self.displaced,
        )
        self.connected = False
        self._begun = False  # it has joined
        self._ended = False  # displaced or stopped: nothing is done any more
        self._own_change = 0  # number of this node's last change
        self._gone: dict[bytes, Member] = {}  # those that left while there was no link, until what they sent is taken
        self._to_confirm: dict[bytes, int] = {}  # node -> its last change that was applied here
        self._beat_due = self._tidy_due = self._expire_due = 0.0
        self._away_since = 0.0
        self._reconnecting: asyncio.Task[None] | None = None
        self._durability = ""
        self._counts = {"fights": 0, "links_lost": 0}
        self._actions: dict[bytes, Callable[..., object]] = {
            b"changes": self._take_changes,
            b"pushed": self._take_pushed,
            b"applied": self.agreement.heard,
            b"back": self._take_back,
            b"credit": self._take_credit,
            b"taken": self.claims.taken,
            b"released": self.claims.released,
            b"adopt": self.claims.publish_will,
            b"kick": lambda client_id: self.claims.close(client_id, "kicked by the operator"),
            b"purge": self._purge,
            b"ask": self._asking.asked,
            b"answer": self._asking.answered,
            b"user": self._users.heard,
            b"result": lambda topic, payload: self.results.take(topic, payload),
        }

    # ---- starting ----

    async def start(self) -> None:
        self.members = Members(self.data_plane, self._send_batch)
        self.changes = Changes(self.data_plane, self.members, self.me, self._member_ready, self._member_left)
        self._reader = Reader(
            self.data_plane, self.changes, self.keys, lambda: self._link, self._ask, between=self._beat_while_busy
        )
        self.results = Results(self.data_plane)
        self._logged = LoggedMessages(self.data_plane, self._store, self.keys, self.me, self.name)
        self.ledger.log = self._logged.log
        self._store.start(self._confirm, self._loop.call_soon_threadsafe)
        self.data_plane.reactor.overdue = self._overdue
        began = time.monotonic()
        try:
            await self._connect()
            await self._join()
            if self._ended:
                raise LinkLost("the others took this node for dead while it was joining")
            self._begun = True
        except Refused as error:
            raise StoreError(f"Redis at {self._address} can't be used: {error}", _hint(str(error))) from error
        except (LinkLost, LinkError, OSError, TimeoutError) as error:
            raise NotNow(f"Redis at {self._address} is not there: {_words(error)}") from error
        finally:
            if not self._begun:
                self._ended = True
                self._link.close()
        await self._tell_durability()
        log.info(
            "joined the cluster",
            node=self.me.decode(),
            nodes=self.nodes,
            subscriptions=self.data_plane.router.filters.count,
            retained=self.data_plane.router.retained.count,
            seconds=f"{time.monotonic() - began:.2f}",
        )

    async def _tell_durability(self) -> None:
        client = self._address.async_client()
        try:
            found = await inspect(client, self._config.cluster.replicas, self._config.limits.max_packet_size)
        except Exception as error:  # it only informs
            log.warning("how Redis keeps what it holds could not be read", reason=error)
        else:
            self._durability = found.sentence
            for warning in found.warnings:
                log.warning(warning)
        finally:
            await client.aclose()

    async def _connect(self) -> None:
        """Open a link that speaks RESP3 to a Redis that has our functions; pushes are held."""
        link = Link(self._pushed, self._settle, partial(self._lost_link, None), self._patience)
        await self._connector.connect(link)
        link.on_lost(partial(self._lost_link, link))
        link.hold()
        self._link = link
        await self._connector.introduce(link, (self.keys.all, self.keys.to(self.me)))

    async def _join(self) -> None:
        """Become a node: read what the cluster knows, catch up, and take part."""
        link, keys = self._link, self.keys
        fields = self._fields()
        reply = await self._ask("join", LAYOUT, *fields)
        if reply[0] == b"layout":
            raise Refused(f"LAYOUT {reply[1].decode()}")
        self.changes.last = reply[0]
        await self._reader.read_sessions()
        await self._reader.read_retained()
        for node, beats in (await self._reader.ask_hash("HGETALL", keys.nodes)).items():
            if node == self.me:
                continue
            process = await link.ask("HGET", keys.node(node), "process")
            if is_gone(process or b""):  # it died on this machine: others need not wait for its lease to end
                for epoch, stored in pairs(await self._ask("bury", node, beats)):
                    self.claims.publish_will(epoch, stored)
            else:
                self.members.add(node).process = process or b""
                await self._reader.read_routes(node)
        await self._reader.catch_up()
        number, *nodes = await self._ask("ready")
        if number == b"gone":
            raise LinkError("the others took this node for dead while it was joining")
        await self._reader.catch_up()
        for node, seq, state in zip(nodes[::3], nodes[1::3], nodes[2::3], strict=True):
            if node != self.me and state == b"ready":
                self.members.add(node, seq)
                self.agreement.joined(node, number)
        self.results.replace(await self._reader.ask_hash("HGETALL", keys.analytics_results))
        self._logged.configure(self.data_plane.config.analytics, link)
        self._settled(time.monotonic())
        # Changes that were made since it was ready, and read instead of being told, are not confirmed one by one.
        link.call(ignore, "PUBLISH", keys.all, wire.back(self.me, self.changes.last))
        link.release()
        await self._beat_now()

    async def _beat_while_busy(self) -> None:
        if time.monotonic() > self._beat_due:
            await self._beat_now()

    def _settled(self, now: float) -> None:
        """The node is one of the cluster, and up to date."""
        self.connected = True
        self._away_since = 0.0
        self._lease.renew(now)
        self._store.flow(self._link, self._store.confirmed_seq)

    # ---- the link is lost, and comes back ----

    def _lost_link(self, link: Link | None) -> None:
        if link is self._link and self._begun and not self._ended:
            self._lost()

    def _lost(self) -> None:
        if self._ended or self._reconnecting is not None:
            return
        self._counts["links_lost"] += 1
        self.connected = False
        self._away_since = time.monotonic()
        self._store.stop_flowing()
        self.claims.without_link()
        self._lease.without_link()
        log.error("Redis is away: messages for persistent sessions and other nodes wait", redis=str(self._address))
        self._reconnecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        attempt = 0
        while not self._ended:
            await asyncio.sleep(_backoff(attempt))
            attempt += 1
            try:
                await self._connect()
                await self._resume()
                return
            except Behind:
                self.displaced("it was away for longer than the others remember")
                return
            except (LinkLost, LinkError, OSError, TimeoutError) as error:
                self._link.close()
                if attempt % 20 == 0:
                    log.warning("Redis is still away", reason=_words(error))
            except Exception:
                log.exception("internal error: coming back to the cluster failed")
                self.displaced("coming back to the cluster failed")
                return

    async def _resume(self) -> None:
        """Find out what was missed, and go on."""
        link = self._link
        sent_at = time.monotonic()
        reply = await self._ask("beat")
        if reply[0] == b"gone":
            self.displaced("the others took this node for dead")
            return
        seq, change, *_ = reply
        if seq < self._store.confirmed_seq or change < self.changes.last:
            self.displaced("Redis has lost what it had confirmed")
            return
        members = list(self.members)
        await self._reader.catch_up()
        if self.changes.last < change:
            raise Behind
        for member in {*members, *self.members}:
            await self._reader.read_log(member)
        self._gone = {member.node: member for member in members if self.members.get(member.node) is None}
        await self._reader.read_queues(self.claims.shared())
        results = await self._reader.ask_hash("HGETALL", self.keys.analytics_results)
        if self._ended:
            return
        self._reconnecting = None
        self.results.replace(results)
        self.members.forget_beats()
        self._own_change = max(self._own_change, change)
        self._lease.renew(sent_at)
        self.connected = True
        away = time.monotonic() - self._away_since
        self._away_since = 0.0
        self._logged.configure(self.data_plane.config.analytics, link)
        self._store.flow(link, seq)
        self.claims.reclaim()
        self._users.read_again()
        for member in self.members:
            member.has_taken(member.sent)
        link.call(ignore, "PUBLISH", self.keys.all, wire.back(self.me, self.changes.last))
        link.release()
        self._gone.clear()
        log.info("Redis is back", seconds=f"{away:.1f}")
        self.data_plane.end_turn()

    def _look_up(self, sessions: list[Session]) -> None:
        """Redis has put messages into these queues and could not say where."""
        for session in sessions:
            if session.owner is not None and session.kind == 1:
                self._take_from(session)

    def _take_from(self, session: Session) -> None:
        def loaded(reply: Reply) -> None:
            if isinstance(reply, (LinkLost, hiredis.ReplyError)) or session.owner is None:
                return
            for number, message in enumerate(reply[3], reply[2]):
                arrive(session, number, message)
            if reply[2] + len(reply[3]) < reply[4]:
                self._take_from(session)

        self.function(loaded, "load", session.client_id, session.next_number, AT_ONCE, as_node=False)

    def displaced(self, reason: str) -> None:
        """This node is no longer one of the cluster."""
        if not self._ended:
            self._ended = True
            self.connected = False
            self._store.close()
            self._link.close()
            if self._begun:  # else starting has failed, and is tried again
                self._restart(reason)

    # ---- heartbeats ----

    def _overdue(self) -> None:
        if self.connected and not self._ended:
            self._lease.suspend()

    async def _beat_now(self) -> None:
        self._beat_due = time.monotonic() + self._config.cluster.lease / BEATS_PER_LEASE
        sent_at = time.monotonic()
        self._beaten(sent_at, await self._ask("beat", *self._fields()))

    def _beaten(self, sent_at: float, reply: Reply) -> None:
        if isinstance(reply, (LinkLost, hiredis.ReplyError)) or self._ended:
            return
        if reply[0] == b"gone":
            self.displaced("the others took this node for dead")
            return
        _, change, *beats = reply
        if change < self.changes.last:
            self.displaced("Redis has lost what it had confirmed")
            return
        if not self._begun and not self.connected:
            return
        self._lease.renew(sent_at)
        found = dict(zip(beats[::2], beats[1::2], strict=True))
        del found[self.me]
        for node, count in self.members.heard(found, self._config.cluster.lease):
            log.warning("a node is not heard any more", node=node.decode())
            self.function(self._buried, "bury", node, count)
        for member in self.members:
            if is_gone(member.process) and member.node in found:
                log.warning("a node of this machine has died", node=member.node.decode())
                self.function(self._buried, "bury", member.node, found[member.node])

    def _buried(self, reply: Reply) -> None:
        if isinstance(reply, list):
            for epoch, stored in pairs(reply):
                self.claims.publish_will(epoch, stored)
            self._tidy_due = 0.0

    def _member_ready(self, node: bytes, number: int) -> None:
        log.info("a node has joined", node=node.decode())
        member = self.members.add(node)
        self.agreement.joined(node, number)

        def told(reply: Reply) -> None:
            member.process = reply if isinstance(reply, bytes) else b""

        self._link.call(told, "HGET", self.keys.node(node), "process")

    def _member_left(self, node: bytes) -> None:
        if node == self.me:
            self.displaced("the others took this node for dead")
            return
        if self.members.get(node) is not None:
            log.info("a node has gone", node=node.decode())
        self.members.remove(node)
        self.agreement.left(node)
        self.claims.left(node)
        self._asking.left(node)

    # ---- what happens from time to time ----

    def configure(self, config: Config) -> None:
        self._logged.configure(config.analytics, self._link if self.connected else None)

    def tick(self) -> None:
        now = time.monotonic()
        lease = self._config.cluster.lease
        if self._ended:
            return
        if not self.connected:
            reached = self._connector.reached
            patient_until = self._away_since + lease * PATIENCE_LEASES if reached else self._lease.valid_until
            if self._away_since and now > patient_until:
                self.claims.close_persistent("this node has lost the others")
            return
        if self._lease.suspended or now > self._lease.valid_until:
            self._overdue()
            return
        self.data_plane.turn.seal()  # acknowledgements that nobody waited for
        if self._link.silent_for > min(self._config.cluster.timeout, lease / 2):
            log.error("Redis doesn't answer", seconds=f"{self._link.silent_for:.1f}")
            self._link.close()
            return
        if now >= self._beat_due:
            self._beat_due = now + lease / BEATS_PER_LEASE
            self.function(partial(self._beaten, now), "beat", *self._fields())
        if now >= self._tidy_due:
            self._tidy_due = now + TIDY_SECONDS
            self.function(self._tidied, "tidy", AT_ONCE, as_node=False)
            self.function(ignore, "tidy_logs", as_node=False)
        expiry = self.data_plane.config.mqtt.session_expiry
        if expiry and now >= self._expire_due:
            self._expire_due = now + min(TIDY_SECONDS, expiry / 2)
            self.function(ignore, "expire", int(expiry), AT_ONCE)
        for member in self.members:
            if member.held_at and now - member.held_at > HOLD_SECONDS:
                member.has_taken(member.sent)

    def _tidied(self, reply: Reply) -> None:
        if isinstance(reply, int) and reply:
            self._tidy_due = 0.0

    def _fields(self) -> list[bytes | str | int]:
        """What a node says of itself."""
        counted = self.data_plane.turn.counted()
        figures: dict[str, str | int] = {
            "name": self.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process": process_name(os.getpid()),
            "version": _version(),
            "clients": self.data_plane.sessions.connected,
            "sessions": len(self.data_plane.sessions),
            "change": self.changes.last,
            "subscriptions": self.data_plane.router.filters.count,
            "routes": len(self.routes),
            "publish_received": counted["publish_received"],
            "publish_sent": counted["publish_sent"],
            **self._counts,
        }
        return [field for pair in figures.items() for field in pair]

    def count(self, what: str) -> None:
        """Add one to a figure."""
        self._counts[what] += 1

    # ---- calls ----

    def _command(self, name: str, as_node: bool, arguments: Any) -> list[bytes | str | int]:
        node = [self.me] if as_node else []
        return ["FCALL", f"flockmq_{name}", "0", self.keys.prefix, *node, *arguments]

    def function(self, then: Callable[[Reply], object], name: str, *arguments: Any, as_node: bool = True) -> None:
        """Call a function; the prefix, and this node's id unless `as_node` is false, come before the arguments."""
        self._link.call(then, *self._command(name, as_node, arguments))

    def call(self, then: Callable[[Reply], object], *command: bytes | str | int) -> None:
        """Send a command to Redis."""
        self._link.call(then, *command)

    def publish(self, channel: bytes, message: bytes) -> None:
        """Say something to other nodes."""
        self._link.call(ignore, "PUBLISH", channel, message)

    async def call_all(self, method: str, arguments: Arguments, seconds: float = SECONDS) -> dict[str, RpcReply]:
        return await self._asking.call_all(method, arguments, seconds)

    async def _ask(self, name: str, *arguments: Any, as_node: bool = True) -> Any:
        return await self._link.ask(*self._command(name, as_node, arguments))

    def _limits(self) -> tuple[int, int, bool]:
        limits = self.data_plane.config.limits
        return limits.max_queued_messages, limits.max_queued_bytes, limits.queue_policy == "drop-old"

    def _confirm(self, blocks: int) -> None:
        self.data_plane.turn.confirm(blocks)

    def _changed(self, number: int, records: list[tuple[Any, ...]]) -> None:
        """A block of this node has made a change."""
        self._own_change = number
        self.changes.apply(number, self.me, records)

    def agreed(self, done: Done) -> None:
        """Call when what was recorded so far holds on all nodes."""

        def stored() -> None:
            self.agreement.wait(self._own_change, done)

        if len(self.ledger) or self.data_plane.turn.sealed > self.data_plane.turn.committed:
            self.data_plane.turn.after_commit(stored)
        else:  # what others have said before this must have come, too
            self._link.call(lambda reply: stored(), "PING")

    # ---- batches ----

    def _header(self) -> bytes:
        """What comes before the batch of the next block."""
        return wire.batch_header(wire.LOGGED, self.me, self._store.seq + 1)

    def _send_batch(self, member: Member, packets: bytes) -> None:
        """Send QoS 0 messages to a node; without a link they are lost."""
        if not self.connected:
            self.data_plane.turn.count(DROPPED_SLOW)
            return
        header = wire.batch_header(wire.QOS_0, self.me, member.sent + len(packets))
        self.publish(self.keys.to(member.node), header + packets)
        member.was_sent(len(packets))

    def _take_batch(self, batch: wire.Batch) -> None:
        member = self.members.get(batch.node) or self._gone.get(batch.node)
        if member is not None and batch.logged:
            if batch.number <= member.seen:
                return
            member.seen = batch.number
        elif member is not None and batch.number - member.credited >= CREDIT_STEP:
            member.credited = batch.number
            self.publish(self.keys.to(batch.node), wire.credit(self.me, batch.number))
        self.data_plane.router.deliver(batch.packets)

    # ---- what is published to this node ----

    def _pushed(self, channel: bytes, payload: bytes) -> None:
        if self._ended:
            return
        try:
            message = wire.decode(payload)
        except DamagedMessage as error:
            log.error("a message between nodes can't be read", error=error)
            return
        if isinstance(message, wire.Batch):
            self._take_batch(message)
            return
        kind, *fields = message
        act = self._actions.get(kind)
        if act is not None:
            act(*fields)

    def _take_changes(self, number: int, origin: bytes, block: bytes) -> None:
        if number <= self.changes.last or origin == self.me:
            return
        self.changes.apply(number, origin, unpack(block))
        if origin:
            self._to_confirm[origin] = number

    def _take_back(self, node: bytes, number: int) -> None:
        """A node has a link again; what it said meanwhile, and what it was told, was not heard."""
        if node != self.me:
            self.agreement.heard(node, number)
            self._to_confirm[node] = self.changes.last

    def _take_pushed(self, messages: list[bytes], items: list[list[Any]]) -> None:
        for client_id, first, *places in items:
            session = self.data_plane.sessions.get(client_id)
            if session is not None and session.kind == 1:
                for number, place in enumerate(places, first):
                    arrive(session, number, messages[place - 1])

    def _take_credit(self, node: bytes, position: int) -> None:
        member = self.members.get(node)
        if member is not None:
            member.has_taken(position)

    def _purge(self, client_id: bytes) -> None:
        if self.claims.close(client_id, "purged by the operator"):
            self.data_plane.turn.after_commit(lambda: self.function(ignore, "purge", client_id, as_node=False))

    def _settle(self) -> None:
        """All that came at once was acted on: answer, and end the turn."""
        if self._ended:
            return
        for origin, number in self._to_confirm.items():
            self.publish(self.keys.to(origin), wire.applied(self.me, number))
        self._to_confirm.clear()
        self.data_plane.end_turn()

    # ---- connections and sessions ----

    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        self.claims.claim(admission, connection, packet)

    def ended(self, connection: Connection, session: Session | None) -> None:
        if self._ended:
            return
        self.claims.ended(connection, session)

    def discard_will(self, connection: Connection) -> None:
        self.claims.discard_will(connection)

    def subscribe(self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], done: Done) -> None:
        claim = self.claims.of(connection)
        for name, qos in filters:
            if session.kind and claim is not None:
                self.ledger.change(("subscribed", session.client_id, session.number, name, qos))
                if name not in claim.filters:
                    self.routes.add(name, 0)
                claim.filters[name] = qos
            elif self.data_plane.router.filters.subscribe(session, name, qos):
                self.routes.add(name, qos)
            else:
                self.routes.raise_to(name, qos)
        self.agreed(done)

    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        claim = self.claims.of(connection)
        for name in filters:
            if session.kind and claim is not None:
                if claim.filters.pop(name, None) is not None:
                    self.ledger.change(("unsubscribed", session.client_id, session.number, name))
                    self.routes.remove([name])
            elif self.data_plane.router.filters.unsubscribe(session, name):
                self.routes.remove([name])
        self.agreed(done)

    async def end_session(self, client_id: bytes) -> bool:
        with away_is_not_now():
            return bool(await self._ask("purge", client_id, as_node=False) != b"not found")

    async def stored_session(self, client_id: bytes) -> dict[str, int] | None:
        with away_is_not_now():
            known = await self._link.ask("EXISTS", self.keys.session(client_id))
            size = await self._link.ask("HGET", self.keys.session(client_id), "b")
            queued = await self._link.ask("LLEN", self.keys.queue(client_id))
        return {"queued_messages": int(queued), "queued_bytes": int(size or 0)} if known else None

    # ---- the end ----

    async def drain(self) -> None:
        if self.connected:
            self._link.call(ignore, "HSET", self.keys.node(self.me), "state", "leaving")
        connections = list(self.data_plane.reactor)
        step = max(1, -(-len(connections) // DRAIN_STEPS))
        for start in range(0, len(connections), step):
            for connection in connections[start : start + step]:
                connection.close("the node stops")
            self.data_plane.end_turn()
            if start + step < len(connections) and len(connections) > 100:
                await asyncio.sleep(DRAIN_STEP_SECONDS)

    async def stop(self) -> None:
        if self._begun and not self._ended:
            done = asyncio.Event()
            self._logged.log.close()
            self.data_plane.turn.seal()
            self.data_plane.turn.after_commit(done.set)
            try:
                await asyncio.wait_for(done.wait(), STOP_SECONDS)
            except TimeoutError:
                log.error("Redis doesn't answer: what it has not confirmed was not acknowledged and may be lost")
            with contextlib.suppress(LinkLost, LinkError, TimeoutError):
                await asyncio.wait_for(self._ask("leave"), STOP_SECONDS / 5)
        self._ended = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        self._store.close()
        self._link.close()

    @property
    def node_id(self) -> str:
        return self.me.decode()

    @property
    def nodes(self) -> int:
        return len(self.members) + 1 if self._begun else 1

    def describe(self) -> str:
        return f"node {self.name} of the cluster at {self._address}; {self._durability or 'Redis keeps the state'}"

    def ready(self) -> tuple[bool, str]:
        if self._ended or not self._begun:
            return False, "the node is joining the cluster"
        if not self.connected:
            return False, "Redis is away"
        return True, "ready"


@contextlib.contextmanager
def away_is_not_now() -> Iterator[None]:
    """Redis could not be asked: say so in words that need not know of Redis."""
    try:
        yield
    except (LinkLost, LinkError) as error:
        raise NotNow("Redis is away") from error


def _backoff(attempt: int) -> float:
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)] * random.uniform(0.5, 1.5)


def _hint(reason: str) -> str:
    if reason.startswith("LAYOUT"):
        return f"nodes of another version have made this cluster; this version knows layout {LAYOUT}: upgrade the older"
    if reason.startswith(("WRONGPASS", "NOAUTH", "ERR AUTH")):
        return "check user and password in the URL"
    if reason.startswith("NOPERM"):
        return "the user needs the rights that deploy/docs/CLUSTER.md lists"
    return "FlockMQ needs Redis 7.0 or later"


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


@cache  # a heartbeat opens no file: there may be none left to open
def _version() -> str:
    try:
        return version("flockmq")
    except PackageNotFoundError:
        return "?"
