"""The columns that take the place of payloads. A payload that does not fit is a value of the column `unparsed`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import pyarrow as pa

# Names of other columns.
TAKEN = ["accepted_at", "node", "client_id", "topic", "qos", "retain", "dup", "unparsed", "properties", "date", "hour"]


class Columns(ABC):
    """Makes columns of payloads. Spark sends it to its executors.

    Args:
        types: by the names of the columns.

    Raises:
        ValueError: another column has the same name.
    """

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        for name in types:
            if name in TAKEN:
                raise ValueError(f"the column {name} is of the message itself; it can't be of the payload, too")
        self.types = types
        self._schema = pa.schema(list(types.items()))

    @abstractmethod
    def decode(self, payloads: pa.Array) -> tuple[pa.Table, pa.Array]:
        """The columns of these payloads, null where one does not fit; and the payloads that do not, null elsewhere."""

    def shape(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch of messages with these columns, and `unparsed`, in place of its payloads."""
        columns, unparsed = self.decode(batch.column("payload"))
        table = pa.Table.from_batches([batch])
        place = batch.schema.get_field_index("payload")
        table = table.set_column(place, "unparsed", unparsed)
        for name in columns.column_names:
            table = table.append_column(name, columns[name])
        yield from table.combine_chunks().to_batches()
