"""Kafka: a transaction a batch, with the position in a topic of the pipe.

The topic is compacted, so its newest message is never deleted; committed offsets of a group would expire while the pipe
stands still. A second process with the pipe takes over: Kafka fences the first.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ..follow.settings import Section
from ..follow.target import Progress, TargetError
from ..tables.table import Overtaken
from .connector import Connector, Outlet
from .query import json_lines

SECONDS = 30.0  # for a reply
REFUSED = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError._KEY_SERIALIZATION}
NEWEST = 100  # offsets of the topic of positions that are read first
POLLED = 1000  # messages between two looks at acknowledgements
DEFAULTS = {"linger.ms": 5, "compression.type": "lz4"}
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
RAW = ("topic", "payload", "client_id", "qos", "retain", "accepted_at")  # columns of a message as it is
Headers = list[tuple[str, str | bytes | None]]
Message = tuple[str, Any, Any, Headers, int]  # topic, key, value, headers, ms


class Kafka(Connector):
    """Messages of a topic of Kafka.

    A message of MQTT as it is: the payload is the value, the topic is the key, client identifier, QoS and RETAIN are
    headers. A row of SQL: columns `key`, `value` and `kafka_topic` if it has them; the value is else all columns, as a
    JSON object.

    Args:
        outlet: of the pipe.
        options: `brokers`; `topic`; `properties` of librdkafka, as for TLS and passwords.
    """

    def __init__(self, outlet: Outlet, options: Section) -> None:
        super().__init__(outlet, options)
        self._topic = options.text("topic")
        settings: dict[str, Any] = {"bootstrap.servers": ",".join(options.texts("brokers")), "log_level": 2}
        settings |= options.mapping("properties")
        options.end()
        self._positions = f"flockmq-position-{outlet.pipe}"
        self._settings = settings
        self._writer_settings = DEFAULTS | settings | {"transactional.id": self._positions}
        self._is_raw = set(RAW) <= set(outlet.schema.names)
        self._producer: Producer | None = None
        self._failed: dict[int, KafkaError] = {}  # the errors of rows of the batch, by place

    def progress(self) -> Progress:
        self.close()
        try:
            producer = Producer(self._writer_settings)
            producer.init_transactions(SECONDS)  # ends a transaction of an earlier process
            text = self._read_position()
        except KafkaException as error:
            raise self._error(error) from None
        self._producer = producer
        return Progress() if text is None else Progress.parse(text)

    def append(self, rows: pa.Table, progress: Progress) -> None:
        try:
            self._try(rows, progress)
        except KafkaException as error:
            self.close()
            if error.args[0].code() in FENCED:
                raise Overtaken(f"{self._topic}: {error.args[0].str()}") from None
            raise self._error(error) from None

    def close(self) -> None:
        self._producer = None

    def _try(self, rows: pa.Table, progress: Progress) -> None:
        """Write a batch; if Kafka refuses rows, once more without these."""
        producer = self._producer
        assert producer is not None
        while True:
            producer.begin_transaction()
            self._failed.clear()
            for place, message in enumerate(self._messages(rows)):
                self._produce(producer, place, message)
            producer.flush(SECONDS)
            refused = {place: error.str() for place, error in self._failed.items() if error.code() in REFUSED}
            if not refused:
                break
            producer.abort_transaction(SECONDS)  # messages that it drops are no dead letters
            for place in sorted(refused):
                self.outlet.dead.add(rows.slice(place, 1), refused[place])
            self.outlet.dead.sync()
            rows = rows.filter(pa.array([place not in refused for place in range(rows.num_rows)]))
        producer.produce(self._positions, str(progress).encode(), self.outlet.pipe.encode(), 0)
        producer.commit_transaction(SECONDS)

    def _read_position(self) -> str | None:
        """The newest message of the topic of positions, which is made if it is not there."""
        settings = {"group.id": self._positions, "isolation.level": "read_committed", "enable.auto.commit": False}
        reader = Consumer(self._settings | settings | {"enable.partition.eof": True})
        try:
            if self._positions not in reader.list_topics(timeout=SECONDS).topics:
                self._create_positions()
            place = TopicPartition(self._positions, 0)
            first, end = reader.get_watermark_offsets(place, SECONDS)
            for start in (max(first, end - NEWEST), first):
                text = self._last(reader, start)
                if text is not None or start == first:
                    break
            return text
        finally:
            reader.close()

    def _create_positions(self) -> None:
        admin = AdminClient(self._settings)  # its end would end the request
        topic = NewTopic(self._positions, 1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([topic])[self._positions].result(SECONDS)
        except TimeoutError:
            raise TargetError(f"Kafka: the topic {self._positions} could not be made: no reply") from None

    def _last(self, reader: Consumer, start: int) -> str | None:
        """The last message of the topic of positions, from an offset on."""
        reader.assign([TopicPartition(self._positions, 0, start)])
        text = None
        while True:
            message = reader.poll(SECONDS)
            error = None if message is None else message.error()
            if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                raise TargetError(f"Kafka: {self._positions} can't be read: {error or 'no reply'}")
            if error is not None:
                return text
            value = message.value()
            text = value.decode() if isinstance(value, bytes) else text

    def _produce(self, producer: Producer, place: int, message: Message) -> None:
        topic, key, value, headers, ms = message

        def noted(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self._failed[place] = error

        while True:
            try:
                producer.produce(topic, value, key, timestamp=ms, headers=headers, on_delivery=noted)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() not in REFUSED:
                    raise
                self._failed[place] = error.args[0]
                break
        if place % POLLED == 0:
            producer.poll(0)

    def _messages(self, rows: pa.Table) -> Iterator[Message]:
        if self._is_raw:
            columns = [rows[name].to_pylist() for name in RAW[:-1]]
            times = rows["accepted_at"].cast(pa.int64()).to_pylist()
            for topic, payload, client_id, qos, retain, at in zip(*columns, times, strict=True):
                headers: Headers = [
                    ("client_id", client_id.encode()),
                    ("qos", b"%d" % qos),
                    ("retain", b"%d" % retain),
                ]
                yield self._topic, topic, payload, headers, at // 1000
            return
        names = rows.column_names
        values = rows["value"].to_pylist() if "value" in names else None
        rest = rows.drop_columns([name for name in ("key", "kafka_topic") if name in names])
        keys = rows["key"].to_pylist() if "key" in names else [None] * rows.num_rows
        topics = rows["kafka_topic"].to_pylist() if "kafka_topic" in names else [None] * rows.num_rows
        for topic, key, value in zip(topics, keys, values or json_lines(rest), strict=True):
            yield topic or self._topic, _encoded(key), _encoded(value), [], 0

    def _error(self, error: KafkaException) -> TargetError:
        return TargetError(f"Kafka: {error.args[0].str()}")


def _encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()
