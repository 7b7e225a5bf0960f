"""Topics of an MQTT broker: a transaction a batch if it is FlockMQ, else at least once."""

import pyarrow as pa

from ..analytics.errors import BrokerError, OptionError, RowError
from ..analytics.sink.options import SinkOptions, parse_options
from ..analytics.sink.packets import Encoder, Packet
from ..analytics.sink.publisher import Publisher
from ..analytics.sink.staging import Transaction, commit_parts, stage
from ..follow.settings import REQUIRED, Section
from ..follow.target import TargetError
from ..tables.table import told
from .connector import JournaledConnector, Outlet, need
from .refusals import Refused

COLUMNS = ("topic", "payload", "qos", "retain", "expiry", "content_type", "response_topic", "correlation_data")
OPTIONS = {"url": "url", "client_id": "clientId", "ca_file": "caFile", "cert_file": "certFile", "key_file": "keyFile"}


class Mqtt(JournaledConnector):
    """A message for each row.

    Args:
        outlet: of the pipe.
        options: `url`; `qos` and `retain` of rows without such a column; `client_id`; files of TLS.
    """

    def __init__(self, outlet: Outlet, options: Section) -> None:
        super().__init__(outlet, options)
        need(options, outlet.schema, ("topic", "payload"))
        texts = {name: options.text(key, REQUIRED if key == "url" else "") for key, name in OPTIONS.items()}
        given = {"clientId": outlet.pipe} | {name: text for name, text in texts.items() if text}
        qos, retain = options.number("qos", 0, 2, 1), options.boolean("retain", False)
        options.end()
        try:
            self._options: SinkOptions = parse_options(given | {"qos": str(qos), "retain": str(retain).lower()})
        except OptionError as error:
            raise options.error(str(error)) from None
        self._encoder = Encoder(self._options.level, self._options.qos, self._options.retain)

    def send(self, rows: pa.Table, number: int) -> None:
        packets: list[Packet] = []
        known = rows.select([name for name in rows.column_names if name in COLUMNS])
        self.split(known, lambda some: packets.extend(self._encoded(some)))
        if not packets:
            return
        try:
            with Publisher(self._options) as publisher:
                if publisher.has_transactions:
                    transaction = Transaction(f"{self.outlet.pipe}-{self.outlet.journal.id}", number)
                    part = stage(publisher, transaction, packets)
                    commit_parts(publisher, transaction, {part.name: part.chunks})
                else:
                    publisher.publish(packets)
                    publisher.finish()
        except BrokerError as error:
            raise TargetError(told(error)) from None

    def _encoded(self, rows: pa.Table) -> list[Packet]:
        try:
            return [packet for batch in rows.to_batches() for packet in self._encoder.packets(batch)]
        except RowError as error:
            raise Refused(str(error)) from None
