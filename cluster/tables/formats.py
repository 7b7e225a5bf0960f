"""From the name of a format to its table."""

from .place import DELTA, Place
from .table import Table, TableError


def open_table(kind: str, place: Place) -> Table:
    """The table of a format of FORMATS. Its library is imported here: each needs one only.

    Raises:
        TableError: the library is not installed.
    """
    try:
        if kind == DELTA:
            from .delta import Delta

            return Delta(place)
        from .iceberg import Iceberg

        return Iceberg(place)
    except ImportError as error:
        raise TableError(f"{error.name} is not installed", "pip install 'flockmq[lake]'") from None
