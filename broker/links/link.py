"""One link: keeps both ends connected, and carries packets between them while this node runs it."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connack, Subscribe, Unsubscribe
from ..._speedups.protocol.link_ends import LinkMarks, LinkSource, LinkTarget
from ..._speedups.protocol.link_relay import Echoes, LinkRelay, TopicRule
from ..._speedups.session import session_view
from ..._speedups.session.session import Session
from .. import logs
from ..config.link import HOP, NOTICE, SENDS, WANTED, LinkConfig, Rule
from ..coordination.coordinator import QueueLimits
from ..core.data_plane import DataPlane
from ..interest.filters import Rows
from ..interest.interest import Interest
from ..interest.neighbours import Neighbour
from .end import (
    LOCAL_LEVEL,
    PACKET_IDS,
    PINGREQ,
    BridgeBitRefused,
    End,
    LinkError,
    adopt,
    closing,
    connect_local,
    connect_remote,
    dial,
)
from .exchange import OPTIONS, REFUSED, Exchange, is_offered
from .local_session import LocalSession
from .pace import Pace

FIRST_RETRY = 0.2  # seconds until the second attempt to connect; twice as long each time, up to `retry`
STABLE = 10.0  # seconds connected after which the next wait is the first again
PING_SECONDS = 15.0  # at most, between two PINGREQ
UNKNOWN_WINDOW = 100  # unacknowledged messages that a broker gets which does not say how many it takes
MAX_PACKET_SIZE = 268_435_460  # bytes: the longest fixed header and the largest Remaining Length

ENDS = ("unmatched", "invalid", "too_large", "looped", "echoed")  # reasons for which a message ends at the link

log = logs.get("flockmq.links")


class Host(NamedTuple):
    """The node of a link, as far as links need it; it may have another data plane after a rejoin."""

    data_plane: Callable[[], DataPlane]
    identity: Callable[[], str]  # of this broker, the same at all its nodes and after a restart
    interest: Callable[[], Interest]  # the topic filters that this broker wants
    limit_queue: Callable[[bytes, QueueLimits | None], None]  # of a session


@dataclass
class Lost:
    """Sessions of a link that were lost, until the other side of the link has acted on it."""

    here: bool = False  # this broker has a new session: the other broker's session must end
    there: bool = False  # the other broker has a new session: it sends no PUBREL for messages that await it here


class Direction:
    """The figures of one direction, over all its connections."""

    def __init__(self) -> None:
        self._past: Counter[str] = Counter()
        self._relay: LinkRelay | None = None

    def use(self, relay: LinkRelay | None) -> None:
        """Another connection has begun, or none has."""
        self._past = self._counted()
        self._relay = relay

    def _counted(self) -> "Counter[str]":
        now = self._relay
        figures = ("relayed", "relayed_bytes", "refused", *ENDS)
        return self._past + Counter({name: getattr(now, name) for name in figures} if now is not None else {})

    def described(self) -> dict[str, Any]:
        """The figures, for the API."""
        counted = self._counted()
        return {
            "messages": counted["relayed"],
            "bytes": counted["relayed_bytes"],
            "refused": counted["refused"],
            "ended": {name: counted[name] for name in ENDS},
        }


class Link:
    """A link, not connected yet.

    Args:
        config: of the link.
        host: its node.
        lost: its sessions that were lost; outlives changes of the configuration.
    """

    def __init__(self, config: LinkConfig, host: Host, lost: Lost) -> None:
        self.config = config
        self._host = host
        self._lost = lost
        self._here = LocalSession(config, host.limit_queue)
        self._lowered: set[int] = set()  # packet identifiers, as the relays share them
        self.prepared = asyncio.Event()  # its session here has been made, or that has failed once
        self._attempts = 0
        self._bridge_bit = config.level < LOCAL_LEVEL
        self._logged = ""  # the last reason in the log: each is logged once
        self._out, self._in = Direction(), Direction()
        self.state = "connecting"  # or "connected", or "waiting" until the next attempt
        self.since = time.time()
        self.reason = ""  # why it is not connected
        self.address = ""  # of the other broker, of the last attempt
        self._refused_filters: list[str] = []  # that the other broker does not let it subscribe to
        self._exchange: Exchange | None = None  # of wanted filters, while connected
        self._swept = False  # copies of retained messages that are no longer wanted were looked for

    def described(self) -> dict[str, Any]:
        """The link, for the API."""
        session, exchange = self._host.data_plane().sessions.get(self._here.client_id), self._exchange
        return {
            "name": self.config.name,
            "state": self.state,
            "since": self.since,
            "reason": self.reason,
            "address": self.address,
            "waiting": session.queue_length if session is not None else 0,
            "refused_filters": exchange.refused if exchange is not None else self._refused_filters,
            "wanted": None if exchange is None else {"here": exchange.here, "there": exchange.there},
            "out": self._out.described(),
            "in": self._in.described(),
        }

    def _enter(self, state: str, reason: str = "") -> None:
        if (state == "connected") != (self.state == "connected"):
            self._publish_state(b"1" if state == "connected" else b"0")
        self.state, self.reason, self.since = state, reason, time.time()

    def _publish_state(self, value: bytes) -> None:
        plane = self._host.data_plane()
        plane.router.publish(f"$SYS/broker/links/{self.config.name}/state".encode(), value, 0, True)
        plane.end_turn()

    def close(self) -> None:
        """The link has ended: its state is no longer published."""
        self._publish_state(b"")

    # ---- life ----

    async def run(self) -> None:
        """Keep the link up, until it is cancelled."""
        wait = FIRST_RETRY
        while True:
            began = time.monotonic()
            try:
                await self._connect()
            except BridgeBitRefused:
                self._bridge_bit = False
                continue
            except LinkError as error:
                if self.state != "connected":  # perhaps the bridge bit was not the reason
                    self._bridge_bit = self.config.level < LOCAL_LEVEL
                self._note(str(error))
            except Exception as error:  # a fault of this program: other links, and this one later, must go on
                log.exception("link has failed", link=self.config.name)
                self._enter("waiting", repr(error))
            if time.monotonic() - began > STABLE:
                wait = FIRST_RETRY
            self._attempts += 1
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # many links must not come at once
            wait = min(2 * wait, self.config.retry)

    def _note(self, reason: str) -> None:
        self._enter("waiting", reason)
        if reason != self._logged:
            self._logged = reason
            log.warning("link is not connected", link=self.config.name, reason=reason)

    async def _connect(self) -> None:
        """Connect both ends and carry packets, until one of them is lost. Raises LinkError."""
        if self.state != "waiting":
            self._enter("connecting")
        lost = asyncio.Event()
        plane, own = self._host.data_plane(), self._host.identity()
        try:
            await self._here.prepare(plane, self._make_out(own, Connack(), None))
        finally:
            self.prepared.set()
        self._lowered.clear()
        self.address = self.config.url[self._attempts % len(self.config.url)]
        echoes = Echoes() if self._sees_echoes() else None
        relay = self._make_in(plane, own, echoes)
        remote = await dial(self.config, self.address, relay, lost.set)
        async with closing(remote):
            connack = await self._greet(remote, plane)
            if not self._continues(connack):
                self._lost.there, self._lost.here = True, False
            relay = self._make_out(own, connack, echoes)
            pace = Pace(self.config.max_rate, self.config.max_bytes_rate)
            local = await adopt(plane.reactor, relay, lost.set, pace)
            async with closing(local):
                window = self._window(connack)
                present = (await connect_local(local, self.config.name, window)).session_present
                session = self._here.of(plane)
                is_new = not present or self._here.is_new(plane)
                exchange = self._make_exchange(plane, session, local, remote, connack)
                local.begin()
                remote.begin(*_marks_of(connack))
                self._lost.here |= is_new and self._continues(connack)
                if self._lost.here:
                    # Packet identifiers begin again at this side: the other side must not mistake them for known
                    # identifiers.
                    await self._end_remote_session()
                    await self._here.met(local)
                    self._lost.here, self._lost.there = False, True
                    raise LinkError("the session at this broker is new: it begins anew at the other one, too")
                if self._lost.there:
                    await self._release(local, session)
                    self._lost.there = False
                if is_new:
                    await self._here.met(local)
                if exchange is not None:
                    await exchange.begin(is_new=is_new)
                else:
                    packet_id = (session.next_number + PACKET_IDS // 2) % PACKET_IDS + 1  # far from those in use
                    await self._here.subscribe(local, plane)
                    await self._subscribe_remote(remote, packet_id)
                self._out.use(local.relay)
                self._in.use(remote.relay)
                self._exchange = exchange
                try:
                    local.connect_to(remote)
                    remote.connect_to(local)
                    self._enter("connected")
                    self._logged = ""
                    log.info("link is connected", link=self.config.name, address=self.address)
                    async with _following(exchange, remote, sweep=not self._swept):
                        self._swept = True
                        if exchange is None:
                            await self._here.send_retained(local, remote, plane)
                        await self._watch(remote, lost, connack, echoes)
                finally:
                    self._exchange = None
                    self._out.use(None)
                    self._in.use(None)
                raise LinkError(remote.reason or local.reason)

    def _window(self, connack: Connack) -> int:
        """The number of unacknowledged messages that the other broker gets; below level 5 it says nothing itself."""
        if self.config.level < LOCAL_LEVEL:
            return self.config.max_inflight or UNKNOWN_WINDOW
        window: int = connack.properties.get("receive_maximum", PACKET_IDS)
        return min(window, self.config.max_inflight or window)

    def _sees_echoes(self) -> bool:
        """Whether the other broker may send messages of this one back."""
        rules = self.config.topics
        is_known = self.config.level == LOCAL_LEVEL or self._bridge_bit
        return not is_known and any(rule.is_out for rule in rules) and any(rule.is_in for rule in rules)

    def _make_in(self, plane: DataPlane, own: str, echoes: Echoes | None) -> LinkRelay:
        limits = plane.config.limits
        return LinkRelay(
            LinkSource(
                self.config.level,
                MAX_PACKET_SIZE,  # a larger one than the node takes must end here, or it comes again
                notices=NOTICE.encode() if self.config.wanted_only else b"",
                keeps_refused=True,
            ),
            LinkTarget(
                LOCAL_LEVEL,
                limits.max_packet_size,
                limits.max_topic_levels,
                control_characters=plane.config.mqtt.control_characters,
            ),
            _topic_rules((rule, rule.remote_prefix, rule.local_prefix) for rule in self.config.topics if rule.is_in),
            marks=LinkMarks(refused=[_mark(own)]),
            lowered=self._lowered,
            remembered=echoes,
        )

    def _make_out(self, own: str, connack: Connack, echoes: Echoes | None) -> LinkRelay:
        properties = connack.properties
        return LinkRelay(
            LinkSource(LOCAL_LEVEL, MAX_PACKET_SIZE),
            LinkTarget(
                self.config.level,
                properties.get("maximum_packet_size", MAX_PACKET_SIZE),
                retain_available=bool(properties.get("retain_available", 1)),
                maximum_qos=properties.get("maximum_qos", 2),
            ),
            _topic_rules((rule, rule.local_prefix, rule.remote_prefix) for rule in self.config.topics if rule.is_out),
            marks=LinkMarks(_mark(own), [_mark(own), *_marks_of(connack)]),
            lowered=self._lowered,
            to_remember=echoes,
        )

    # ---- connecting ----

    def _client_id_there(self) -> str:
        return self.config.client_id or f"{self._host.identity()}-{self.config.name}"

    async def _greet(self, remote: End, plane: DataPlane, *, clean: bool = False) -> Connack:
        """Connect to the session at the other broker."""
        return await connect_remote(
            remote,
            self.config,
            self._client_id_there(),
            plane.config.limits,
            self._marks(),
            clean=clean,
            bit=self._bridge_bit,
        )

    def _marks(self) -> list[tuple[str, str]]:
        """The user properties of CONNECT: by them another FlockMQ knows the link."""
        marks = [(HOP, self._host.identity())]
        if self.config.wanted_only:
            marks.append((WANTED, f"1 {self.config.max_wanted}"))
            marks += [(SENDS, rule.remote_filter) for rule in self.config.topics if rule.is_out]
        return marks

    def _make_exchange(
        self, plane: DataPlane, session: Session, local: End, remote: End, connack: Connack
    ) -> Exchange | None:
        """The exchange of wanted filters, if both sides take part; else the rules' filters are wanted there."""
        interest = self._host.interest()
        if self.config.wanted_only and is_offered(connack):
            exchange = Exchange(self.config, plane, interest, session, local, remote, connack)
            remote.on_notice = exchange.on_report
            return exchange
        neighbours, client_id = interest.neighbours, session.client_id
        if self.config.wanted_only:
            log.warning("the other broker takes no part in wanted_only: all that the rules name is carried")
            rows: Rows = {rule.local_filter: (self.config.name,) for rule in self.config.topics if rule.is_out}
            neighbours.put(client_id, Neighbour(self.config.name, rows))
        elif neighbours.get(client_id) is not None:
            neighbours.remove(client_id)
        return None

    def _continues(self, connack: Connack) -> bool:
        """Whether the session at the other broker is an earlier one; MQTT 3.1 does not say so."""
        return connack.session_present or self.config.level == 3

    async def _end_remote_session(self) -> None:
        plane = self._host.data_plane()
        remote = await dial(self.config, self.address, self._make_in(plane, "", None), lambda: None)
        async with closing(remote):
            await self._greet(remote, plane, clean=True)

    async def _release(self, local: End, session: Session) -> None:
        """Publish the QoS 2 messages here whose sender has forgotten them; returns when that is done."""
        if awaited := [packet_id for packet_id, *_ in session_view.awaited(session)]:
            local.relay.release(awaited)
            local.pass_on()
            await local.request(encode(Unsubscribe(1, [NOTICE]), LOCAL_LEVEL))  # UNSUBACK: PUBREL before it was read

    async def _subscribe_remote(self, remote: End, packet_id: int) -> None:
        options = OPTIONS if self.config.level == LOCAL_LEVEL else 0
        wanted = {rule.remote_filter: rule.qos for rule in reversed(self.config.topics) if rule.is_in}
        self._refused_filters = []
        if wanted:
            filters = [(topic_filter, qos | options) for topic_filter, qos in wanted.items()]
            suback = await remote.request(encode(Subscribe(packet_id, filters), self.config.level))
            answers = zip(wanted, suback.reason_codes, strict=False)
            self._refused_filters = [topic_filter for topic_filter, code in answers if code >= REFUSED]
            if self._refused_filters:
                log.error(
                    "the other broker refused subscriptions", link=self.config.name, filters=self._refused_filters
                )

    # ---- connected ----

    async def _watch(self, remote: End, lost: asyncio.Event, connack: Connack, echoes: Echoes | None) -> None:
        """Send PINGREQ and expect replies, until an end is lost."""
        keep_alive = connack.properties.get("server_keep_alive") or self.config.keep_alive
        heard = -1
        while not await _within(min(keep_alive / 2, PING_SECONDS), lost.wait()):
            if heard == remote.heard and not remote.reading_paused:  # else this node reads nothing: its store is slow
                remote.abort("it does not answer PINGREQ")
            heard = remote.heard
            remote.send(PINGREQ)
            if echoes is not None:
                echoes.forget()


def _topic_rules(parts: Iterable[tuple[Rule, str, str]]) -> list[TopicRule]:
    """Rules as the relay has them: rule, prefix at the source, prefix at the target."""
    return [
        TopicRule((removed + rule.pattern).encode(), removed.encode(), added.encode()) for rule, removed, added in parts
    ]


def _mark(identity: str) -> tuple[bytes, bytes]:
    return HOP.encode(), identity.encode()


def _marks_of(connack: Connack) -> list[tuple[bytes, bytes]]:
    """The mark of the messages of the other broker, if it is one that knows links."""
    return [_mark(value) for name, value in connack.properties.get("user_property", ()) if name == HOP]


async def _within(seconds: float, event: Awaitable[object]) -> bool:
    """Whether the event happens in this time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event
            return True
    return False


@contextlib.asynccontextmanager
async def _following(exchange: Exchange | None, remote: End, *, sweep: bool):  # type: ignore[no-untyped-def]
    """Follow the wanted filters of both sides; a failure ends the connection."""
    if exchange is None:
        yield
        return

    async def follow() -> None:
        try:
            await exchange.follow(sweep=sweep)
        except LinkError as error:
            remote.abort(str(error))
        except Exception as error:  # a fault of this program: other links, and this one later, must go on
            log.exception("exchange of wanted filters has failed")
            remote.abort(repr(error))

    task = asyncio.get_running_loop().create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
