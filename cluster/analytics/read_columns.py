"""From the name of a schema to the columns that it describes."""

from pathlib import Path

from ...broker.schemas.json_schema import JsonSchema
from ...broker.schemas.open import open_schema
from ...broker.schemas.payload_schema import RowSchema
from .columns import Columns
from .json_columns import JsonColumns
from .row_columns import RowColumns


def read_columns(name: str, folder: Path = Path()) -> Columns:
    """The columns of payloads.

    Args:
        name: of a schema, as `open_schema` takes it.
        folder: of a relative name.

    Raises:
        ValueError: the schema can't be read, is wrong, or describes no columns; the text begins with its name.
    """
    schema = open_schema(name, folder)
    try:
        if isinstance(schema, JsonSchema):
            return JsonColumns(schema.text)
        assert isinstance(schema, RowSchema)
        return RowColumns(schema)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
