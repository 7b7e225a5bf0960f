"""The exchange of wanted topic filters over a connected link: each side gets the messages that it asks for, no others.

This side subscribes at the other broker to the filters that are wanted here. The other broker reports its wanted
filters in messages to the link, which subscribes to them here.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connack, Subscribe, Unsubscribe
from ..._speedups.session.session import Session
from ..config.link import HOP, PATH, WANTED, LinkConfig, Rule
from ..core.data_plane import DataPlane
from ..core.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING_SHIFT
from ..interest.filters import Path, Rows, intersection
from ..interest.interest import Interest, Watch
from ..interest.neighbours import Neighbour
from ..interest.retained_copies import forget_copies
from .end import LOCAL_LEVEL, PACKET_IDS, End, LinkError

FIRST_REPORT = 2.0  # seconds: the time that it takes at most
TICK = 0.25  # seconds between two looks at the filters that are wanted here
AT_ONCE = 100  # filters in one packet
REFUSED = 0x80  # reason codes from this one on are refusals
WHEN_NEW = 1 << RETAIN_HANDLING_SHIFT  # retained messages are sent only if the subscription is new
OPTIONS = NO_LOCAL | RETAIN_AS_PUBLISHED | WHEN_NEW


def is_offered(connack: Connack) -> bool:
    """Whether the other broker takes part in the exchange."""
    return (WANTED, "1") in connack.properties.get("user_property", ())


class Exchange:
    """The exchange over one connection of a link.

    Args:
        config: of the link.
        plane: of the node.
        interest: of this broker.
        session: of the link at this broker.
        local, remote: its ends.
        connack: of the other broker.
    """

    def __init__(
        self,
        config: LinkConfig,
        plane: DataPlane,
        interest: Interest,
        session: Session,
        local: End,
        remote: End,
        connack: Connack,
    ) -> None:
        self._out = [rule for rule in config.topics if rule.is_out]
        self._in = [rule for rule in config.topics if rule.is_in]
        self._plane = plane
        self._neighbours = interest.neighbours
        self._session = session
        self._local = local
        self._remote = remote
        self._peer = dict(connack.properties.get("user_property", ()))[HOP]
        scopes = list(dict.fromkeys(rule.local_filter for rule in self._in))
        self._watch = Watch(interest, scopes, self._peer, config.max_wanted)
        self._subscribed: dict[str, tuple[int, Path]] = {}  # at the other broker: QoS and path of each filter
        self._held: list[str] = []  # subscriptions there, made over earlier connections
        self._report: Rows | None = None  # of the other broker: not applied yet
        self._changed = asyncio.Event()
        self.there = 0  # filters that the other broker wants
        self.refused: list[str] = []  # filters that the other broker does not let the link subscribe to

    @property
    def here(self) -> int:
        """The number of filters that this broker has asked for."""
        return len(self._subscribed)

    def on_report(self, payload: bytes) -> None:
        """The other broker has reported what it wants."""
        try:
            found = json.loads(payload)
            json.dumps(found, ensure_ascii=False).encode()  # raises if a name has half a surrogate pair
            rows = {str(name): (self._peer, *map(str, path)) for name, path in found["wanted"]}
            self._held += map(str, found.get("held", ()))
        except (ValueError, KeyError, TypeError, RecursionError):
            self._remote.abort("it has sent a report of wanted filters that can't be read")
            return
        self._report = rows
        self._changed.set()

    async def begin(self, *, is_new: bool) -> None:
        """Subscribe at the other broker to the filters that are wanted here. Raises LinkError.

        Args:
            is_new: the other broker has not met the session: until its first report all is carried, so await that.
        """
        self._watch.changed()
        await self._ask()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_REPORT if is_new else 0):
                await self._changed.wait()
        await self._apply_report()

    async def follow(self, *, sweep: bool) -> None:
        """Follow both sides' wanted filters until cancelled. Raises LinkError.

        Args:
            sweep: look for copies of retained messages that were wanted before this node began.
        """
        if sweep:
            await forget_copies(self._plane, self._watch.scopes, self._watch, self._peer)
        while True:
            try:
                async with asyncio.timeout(TICK):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            if self._held:
                self._subscribed = dict.fromkeys(self._held, (-1, ())) | self._subscribed
                self._held = []
                await self._ask()
            await self._apply_report()
            before = self._watch.rows
            if self._watch.changed():
                await self._ask()
                dropped = [name for name in before if name not in self._watch.rows]
                await forget_copies(self._plane, dropped, self._watch, self._peer)

    # ---- wanted here ----

    async def _ask(self) -> None:
        """Let the subscriptions at the other broker be the wanted filters; new ones first."""
        wanted: dict[str, tuple[int, Path]] = {}
        for name, path in self._watch.rows.items():
            for part, rule in mapped(name, self._in, is_out=False):
                wanted.setdefault(part, (rule.qos, path))
        news: dict[Path, list[tuple[str, int]]] = {}
        for name, (qos, path) in wanted.items():
            if self._subscribed.get(name) != (qos, path):
                news.setdefault(path, []).append((name, qos | OPTIONS))
        refused: list[str] = []
        for path, filters in news.items():
            properties: dict[str, Any] = {"user_property": [(PATH, broker) for broker in path]} if path else {}
            for some in in_parts(filters):
                packet = Subscribe(self._packet_id(), some, properties)
                suback = await self._remote.request(encode(packet, LOCAL_LEVEL))
                for (name, _), code in zip(some, suback.reason_codes, strict=False):
                    if code >= REFUSED:
                        refused.append(name)
        gone = [name for name in self._subscribed if name not in wanted]
        for some in in_parts(gone):
            await self._remote.request(encode(Unsubscribe(self._packet_id(), some), LOCAL_LEVEL))
        self._subscribed = wanted
        self.refused = [name for name in {*self.refused, *refused} if name in wanted]

    def _packet_id(self) -> int:
        """A packet identifier far from the identifiers of the messages on their way."""
        return (self._session.next_number + PACKET_IDS // 2) % PACKET_IDS + 1

    # ---- wanted by the other broker ----

    async def _apply_report(self) -> None:
        """Let the subscriptions here be the other broker's wanted filters; new ones first."""
        if self._report is None:
            return
        report, self._report = self._report, None
        rows: Rows = {}
        wanted: dict[str, int] = {}
        for name, path in report.items():
            for part, rule in mapped(name, self._out, is_out=True):
                if part not in rows or len(path) < len(rows[part]):
                    rows[part] = path
                wanted.setdefault(part, rule.qos)
        subscriptions = self._plane.router.filters.subscriptions_of(self._session)
        known = {name.decode(): options for name, options in subscriptions}
        options = OPTIONS & ~WHEN_NEW
        news = [(name, qos | OPTIONS) for name, qos in wanted.items() if known.get(name) != qos | options]
        for some in in_parts(news):
            await subscribe_local(self._local, some)
        neighbour = Neighbour(self._peer, rows)
        if self._neighbours.get(self._session.client_id) != neighbour:
            self._neighbours.put(self._session.client_id, neighbour)
            self._plane.end_turn()
        for gone in in_parts([name for name in known if name not in wanted]):
            await self._local.request(encode(Unsubscribe(1, gone), LOCAL_LEVEL))
        self.there = len(wanted)


async def subscribe_local(local: End, filters: list[tuple[str, int]]) -> None:
    """Subscribe the link's session at this broker to filters with options. Raises LinkError."""
    suback = await local.request(encode(Subscribe(1, filters), LOCAL_LEVEL))
    if any(code >= REFUSED for code in suback.reason_codes):
        raise LinkError("this node refused the subscriptions of its own link")


def mapped(name: str, rules: Iterable[Rule], *, is_out: bool) -> Iterator[tuple[str, Rule]]:
    """A wanted filter, as the sender of the messages has their topic names; of each rule that carries some of them."""
    for rule in rules:
        ours, theirs = (rule.remote_filter, rule.remote_prefix) if is_out else (rule.local_filter, rule.local_prefix)
        part = intersection(name, ours)
        if part is not None and part.startswith(theirs):
            yield (rule.local_prefix if is_out else rule.remote_prefix) + part.removeprefix(theirs), rule


def in_parts(items: list[Any]) -> Iterator[list[Any]]:
    """The items, so many at a time that they fit into a packet."""
    return (items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE))
