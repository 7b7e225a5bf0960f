"""PUBLISH to `$transaction/...`: stages a chunk, or commits."""

import json
import re
from inspect import isawaitable
from typing import NamedTuple

from ..._speedups.codec.packets import Puback
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.pending_publish import PendingPublish
from ..._speedups.protocol.staging import chunk_of, open_rows, stage_rows
from ..._speedups.routing.delayed import split_delayed
from ..._speedups.session.counters import TRANSACTIONS
from ..._speedups.session.session import Session
from ..._speedups.session.turn import AckReason
from .. import logs
from ..coordination.coordinator import Transactions
from ..core import tenants
from ..core.data_plane import DataPlane, report
from ..core.transactions import Outcome, Transaction
from ..errors import NotNow
from ..hooks.chain import HookChain, Refused, client_of
from ..hooks.schemas import Schemas
from .publish import ask, block_of, check, message_of

log = logs.get("flockmq.hooks")

NAME = r"[A-Za-z0-9._-]{1,64}"
TOPIC = re.compile(rf"\$transaction/({NAME})/(\d{{1,15}})(?:/({NAME})/(\d{{1,9}}))?")
MOST_ROWS = 10_000  # of a chunk: the node publishes a chunk in one go
MOST_PARTS = 100_000


class Answer(NamedTuple):
    """The reply to a chunk or a commit."""

    code: int
    why: AckReason = AckReason.NO_REASON


TAKEN = Answer(ReasonCode.SUCCESS)
ANSWERS = {
    Outcome.DONE: TAKEN,
    # A success, with the only other code that PUBACK has for one: nothing is published for it.
    Outcome.COMMITTED: Answer(ReasonCode.NO_MATCHING_SUBSCRIBERS),
    Outcome.FULL: Answer(ReasonCode.QUOTA_EXCEEDED, AckReason.TOO_MUCH_STAGED),
}
WRONG = Answer(ReasonCode.TOPIC_NAME_INVALID, AckReason.WRONG_TRANSACTION)
WRONG_CHUNK = Answer(ReasonCode.PAYLOAD_FORMAT_INVALID, AckReason.WRONG_CHUNK)
NOT_AS_SCHEMA = Answer(ReasonCode.PAYLOAD_FORMAT_INVALID, AckReason.NOT_AS_SCHEMA)
REFUSED_ROW = {
    AckReason.NO_RIGHT: ReasonCode.NOT_AUTHORIZED,
    AckReason.ONLY_THE_BROKER: ReasonCode.NOT_AUTHORIZED,
    AckReason.TOO_MANY_DELAYED: ReasonCode.QUOTA_EXCEEDED,
    AckReason.WRONG_CHUNK: ReasonCode.PAYLOAD_FORMAT_INVALID,
    AckReason.PAYLOAD_NOT_UTF_8: ReasonCode.PAYLOAD_FORMAT_INVALID,
}


class TransactionHandler:
    """Stages and commits transactions of clients.

    Args:
        data_plane: of the node.
        transactions: of the node or of the cluster.
        hooks: called for each message of a chunk.
        schemas: of payloads.
    """

    def __init__(self, data_plane: DataPlane, transactions: Transactions, hooks: HookChain, schemas: Schemas) -> None:
        self._data_plane = data_plane
        self._transactions = transactions
        self._hooks = hooks
        self._schemas = schemas

    def handle(self, connection: Connection, received: PendingPublish) -> None:
        """Stage or commit; the next packet of the connection is handled after the reply."""
        connection.pause()
        self._data_plane.run(self._reply(connection, received))

    async def _reply(self, connection: Connection, received: PendingPublish) -> None:
        session = connection.session
        if session is None:
            return  # the connection has ended before its turn came
        try:
            answer = await self._answer(connection, session, received)
        except NotNow:
            connection.close(close_reasons.STORE_AWAY)  # its client sends the message again
        except Exception as error:
            report(error, address=connection.address)
            connection.close(close_reasons.INTERNAL_ERROR)
        else:
            self._send(connection, received, answer)
        self._data_plane.end_turn()

    @staticmethod
    def _send(connection: Connection, received: PendingPublish, answer: Answer) -> None:
        """Send the answer, and handle the next packet; unless the connection has ended."""
        if connection.closed:
            return
        if answer.why == AckReason.NO_REASON:
            connection.take_publish(received, answer.code)
        else:
            connection.drop_publish(received, answer.code, answer.why)
        connection.proceed()

    async def _answer(self, connection: Connection, session: Session, received: PendingPublish) -> Answer:
        found = TOPIC.fullmatch(received.topic.decode())
        if found is None or received.qos != 1:
            return WRONG
        name, number, part, chunk = found.groups()
        identity = connection.identity
        transaction = Transaction(tenants.prefix_of(identity.tenant), identity.username or "", name, int(number))
        if part is None:
            return await self._commit(transaction, received.payload)
        rows, count, why = stage_rows(connection, received.payload)
        if count > MOST_ROWS:
            return WRONG_CHUNK
        if why != AckReason.NO_REASON:
            return Answer(REFUSED_ROW.get(why, ReasonCode.TOPIC_NAME_INVALID), why)
        if self._hooks.has("authorize", "publish"):
            filtered = await self._after_hooks(connection, rows)
            if isinstance(filtered, Answer):
                return filtered
            rows = filtered
        if self._schemas:
            judged = self._by_schemas(connection, rows)
            if judged is None:
                return NOT_AS_SCHEMA
            rows = judged
        outcome = await self._transactions.stage(transaction, part, int(chunk), rows, session.client_id)
        return ANSWERS.get(outcome, Answer(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, AckReason.CHUNK_MISSING))

    async def _commit(self, transaction: Transaction, payload: bytes) -> Answer:
        try:
            parts = json.loads(payload)
            if not isinstance(parts, dict) or len(parts) > MOST_PARTS:
                return WRONG
            if not all(re.fullmatch(NAME, part) and type(count) is int and count > 0 for part, count in parts.items()):
                return WRONG
        except ValueError:
            return WRONG
        outcome = await self._transactions.commit(transaction, parts)
        self._data_plane.turn.count(TRANSACTIONS, outcome is Outcome.DONE)
        return ANSWERS.get(outcome, Answer(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, AckReason.PART_MISSING))

    async def _after_hooks(self, connection: Connection, rows: bytes) -> bytes | Answer:
        """The messages of a chunk as the hooks return them; an answer: they refuse one."""
        client, levels = client_of(connection), self._data_plane.config.limits.max_topic_levels
        changed = []
        for name, payload, qos, retain, properties in open_rows(rows):
            delay, topic = split_delayed(name)
            message = message_of(topic, payload, qos, retain, properties)
            found = ask(self._hooks, client, message)
            if isawaitable(found):
                found = await found
            if isinstance(found, Refused):
                return Answer(found.code_of(Puback.packet_type), AckReason.REFUSED_BY_HOOK)
            try:
                check(found, message, delay, levels)
                block = block_of(found, message, properties)
            except ValueError as fault:
                log.error("a hook made a message that can't be published", client_id=client.client_id, fault=fault)
                return Answer(ReasonCode.UNSPECIFIED_ERROR, AckReason.MADE_INVALID_BY_HOOK)
            changed.append((delay + found.topic.encode(), bytes(found.payload), qos, found.retain, block))
        return chunk_of(changed)

    def _by_schemas(self, connection: Connection, rows: bytes) -> bytes | None:
        """The messages of a chunk as the schemas of their topics have them; None: one is refused."""
        session = connection.session
        client_id = session.client_id.decode() if session is not None else ""
        levels = self._data_plane.config.limits.max_topic_levels
        changed = []
        for topic, payload, qos, retain, properties in open_rows(rows):
            mismatch = self._schemas.judge(connection.address, client_id, topic, payload, retain=retain)
            published = (topic, properties) if mismatch is None else mismatch.applied(topic, properties, levels)
            if published is None:
                return None
            changed.append((published[0], payload, qos, retain, published[1]))
        return chunk_of(changed)
