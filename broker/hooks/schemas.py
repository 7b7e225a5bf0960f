"""The schemas of payloads at the door of a node: `[[schemas]]`. A hook that is shipped: users' hooks come before.

The data path calls `fits` for messages to bound topics only, and goes on with a payload that fits. `judge` decides over
the others. Topic names are as clients know them, without the prefix of a tenant.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ..._speedups.codec.properties import encode_block
from ..._speedups.codec.topics import InvalidTopic, matches, validate_topic_name
from ..._speedups.routing.delayed import split_delayed
from ..._speedups.session.rights import PUBLISH, Rights
from .. import logs
from ..config.schema_rule import MARK, REFUSE, SchemaRule
from ..core import tenants
from ..core.data_plane import DataPlane
from ..errors import ConfigError
from ..schemas.open import open_schema
from ..schemas.payload_schema import Misfit, PayloadSchema

MARKED = ("flockmq-schema", "mismatch")  # the user property of a marked message
MARK_BLOCK = encode_block({"user_property": [MARKED]})
MAX_TOPICS = 10_000  # whose schemas are remembered ...
MAX_NAME = 200  # ... if they have so many characters at most

log = logs.get("flockmq.schemas")


class Bound(NamedTuple):
    """A topic filter and its schema."""

    topic_filter: str
    rule: SchemaRule
    schema: PayloadSchema


class Mismatch(NamedTuple):
    """A message that does not fit: the topic filter, what happens with the message, and the reason."""

    topic_filter: str
    rule: SchemaRule
    reason: str

    def applied(self, topic: bytes, properties: bytes, levels: int) -> tuple[bytes, bytes] | None:
        """The topic name and the property block with which the message is published in spite of it; None: it is not.

        Args:
            topic: of the message, within the broker.
            properties: its property block, without its length.
            levels: that a topic name may have.
        """
        if self.rule.on_mismatch == MARK:
            return topic, properties + MARK_BLOCK
        if self.rule.on_mismatch == REFUSE:
            return None
        delay, rest = split_delayed(topic)
        prefix, name = tenants.split(rest)
        routed = f"{self.rule.route}/{name}"
        try:
            validate_topic_name(routed, 4, levels)
        except InvalidTopic:  # it has become too long
            return None
        return delay + prefix.encode() + routed.encode(), properties


def open_schemas(rules: Iterable[SchemaRule]) -> tuple[Bound, ...]:
    """The schemas of the rules; the first whose filter matches a topic counts.

    Raises:
        ConfigError: a file can't be read, or is no schema.
    """
    found = []
    for number, rule in enumerate(rules, 1):
        try:
            schema = open_schema(rule.file, to_check=True)
        except ValueError as error:
            raise ConfigError(f"schemas, number {number}: {error}") from None
        found += [Bound(topic_filter, rule, schema) for topic_filter in rule.filter]
    return tuple(found)


def changes(before: Iterable[Bound], after: Iterable[Bound]) -> list[str]:
    """The files whose content has changed, for a log."""
    old = {each.rule.file: each.schema.__reduce__() for each in before}
    new = {each.rule.file: each.schema.__reduce__() for each in after}
    return [f"schemas: {file} read again" for file, schema in new.items() if old.get(file, schema) != schema]


class Schemas:
    """Judges messages of clients.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._bound: tuple[Bound, ...] = ()
        self._by_topic: dict[str, Bound | None] = {}
        self.mismatches: Counter[tuple[str, str]] = Counter()  # by topic filter and `on_mismatch`

    def __bool__(self) -> bool:
        """Whether there are schemas."""
        return bool(self._bound)

    def use(self, bound: tuple[Bound, ...]) -> None:
        """Judge by these schemas from now on. Without any the data path does nothing for it."""
        self._bound = bound
        self._by_topic.clear()
        topics = Rights([(True, PUBLISH, each.topic_filter.encode()) for each in bound]) if bound else None
        self._data_plane.turn.set_schemas(topics, self.fits)
        for each in bound:
            self.mismatches[each.topic_filter, each.rule.on_mismatch] += 0

    def fits(self, topic: bytes, payload: bytes) -> bool:
        """Whether the payload of a message fits the schema of its topic, if that has one."""
        bound = self._bound_of(topic.decode())
        return bound is None or _fault(bound.schema, payload) is None

    def judge(self, address: str, client_id: str, topic: bytes, payload: bytes, *, retain: bool) -> Mismatch | None:
        """What happens with a message of a client, logged and counted; None: it fits, or has no schema.

        Args:
            address: of the client.
            client_id: of the client.
            topic: of the message, within the broker.
            payload: of the message.
            retain: RETAIN; without a payload it clears a retained message, and is not judged.
        """
        if not self._bound or (retain and not payload):
            return None
        _, rest = split_delayed(topic)
        _, name = tenants.split(rest)
        bound = self._bound_of(name)
        fault = None if bound is None else _fault(bound.schema, payload)
        if bound is None or fault is None:
            return None
        self.mismatches[bound.topic_filter, bound.rule.on_mismatch] += 1
        self._data_plane.log_limiter.write(
            log.warning,
            "payload does not fit the schema of its topic",
            address=address,
            client_id=client_id,
            topic=topic.decode(),
            filter=bound.topic_filter,
            on_mismatch=bound.rule.on_mismatch,
            reason=fault,
        )
        return Mismatch(bound.topic_filter, bound.rule, fault)

    def _bound_of(self, name: str) -> Bound | None:
        try:
            return self._by_topic[name]
        except KeyError:
            pass
        found = next((each for each in self._bound if matches(each.topic_filter, name)), None)
        if len(self._by_topic) >= MAX_TOPICS:
            self._by_topic.clear()
        if len(name) <= MAX_NAME:
            self._by_topic[name] = found
        return found


def _fault(schema: PayloadSchema, payload: bytes) -> str | None:
    """Why a payload does not fit; None: it fits. A schema that fails fits nothing, as a hook that fails refuses."""
    try:
        schema.check(payload)
    except Misfit as fault:
        return str(fault)
    except Exception as error:
        log.exception("a schema failed")
        return f"the schema failed: {type(error).__name__}"
    return None
