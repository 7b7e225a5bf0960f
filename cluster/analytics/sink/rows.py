"""The columns that the sink knows, and their types."""

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from ..errors import RowError
from .packets import OF_MQTT_5

INTEGERS = (ByteType, ShortType, IntegerType, LongType)
# The columns and their types, with words for an error.
COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "a string"),
    "payload": ((BinaryType, StringType), "binary or a string"),
    "qos": (INTEGERS, "an integer"),
    "retain": ((BooleanType,), "a boolean"),
    "expiry": (INTEGERS, "an integer, in seconds"),
    "content_type": ((StringType,), "a string"),
    "response_topic": ((StringType,), "a string"),
    "correlation_data": ((BinaryType, StringType), "binary or a string"),
    "user_properties": ((MapType,), "a map of strings to strings"),
}
NEEDED = ("topic", "payload")


def check_columns(schema: StructType, level: int) -> None:
    """Whether the sink can write rows of this schema. Raises RowError: it can't."""
    found = {field.name: field.dataType for field in schema.fields}
    for name in NEEDED:
        if name not in found:
            raise RowError(f"the sink flockmq needs a column {name}", f"its columns are {', '.join(COLUMNS)}")
    for name, kind in found.items():
        if name not in COLUMNS:
            raise RowError(
                f"the sink flockmq has no use for a column {name}", f"select columns out of {', '.join(COLUMNS)}"
            )
        types, words = COLUMNS[name]
        is_wrong = isinstance(kind, MapType) and not isinstance(kind.keyType, StringType)
        is_wrong = is_wrong or (isinstance(kind, MapType) and not isinstance(kind.valueType, StringType))
        if not isinstance(kind, types) or is_wrong:
            raise RowError(f"the column {name} must be {words}, not {kind.simpleString()}")
        if level < 5 and name in OF_MQTT_5:
            raise RowError(f"MQTT 3.1.1 has no {name}", 'drop the column, or leave .option("protocol", "3.1.1") out')
