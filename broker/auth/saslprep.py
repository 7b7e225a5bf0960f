"""SASLprep (RFC 4013): two ways to write the same name or password become the same text.

The tables are of Unicode 3.2, as RFC 3454 has them.
"""

import re
import stringprep
from unicodedata import ucd_3_2_0

CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # all of ASCII that a table has
PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str, *, stored: bool = False, most: int = 0) -> str:
    """The prepared form of a name or a password.

    Args:
        text: as a person or a client wrote it.
        stored: it will be stored, so that characters which Unicode 3.2 does not know are refused.
        most: characters of the prepared form; 0 = any number.

    Raises:
        ValueError: it is empty or too long, or has a character that is not allowed.
    """
    mapped = text
    if not text.isascii():
        kept = [" " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)]
        mapped = ucd_3_2_0.normalize("NFKC", "".join(kept))
    if not mapped:
        raise ValueError("the text is empty")
    if most and len(mapped) > most:
        raise ValueError(f"the text has more than {most} characters")
    if CONTROL.search(mapped) or any(is_in(c) for c in mapped if not c.isascii() for is_in in PROHIBITED):
        raise ValueError("the text has a character that names and passwords can't have")
    if mapped.isascii():
        return mapped
    if stored and any(map(stringprep.in_table_a1, mapped)):
        raise ValueError("the text has a character that Unicode 3.2 does not know")
    if any(map(stringprep.in_table_d1, mapped)):
        ends = stringprep.in_table_d1(mapped[0]) and stringprep.in_table_d1(mapped[-1])
        if not ends or any(map(stringprep.in_table_d2, mapped)):
            raise ValueError("the text mixes directions of writing")
    return mapped
