"""The beginning of the first message of SCRAM and OAUTHBEARER (GS2, RFC 5801): channel binding and user name."""

import re
from typing import NamedTuple

HEADER = re.compile(r"(?:n|y|(p=[A-Za-z0-9.-]+)),(?:a=([^,]+))?,")
NAME = re.compile(r"(?:[^=,\0]|=2C|=3D)+")


class Gs2Header(NamedTuple):
    """The header of a first message."""

    text: str  # the header itself, its last comma included
    authorization: str  # user that the client wants to act as; empty = not said
    rest: str  # the message after the header


def parse_header(message: str) -> Gs2Header:
    """Split a first message.

    Raises:
        ValueError: it does not begin with a header, or the client demands channel binding, which there is not.
    """
    found = HEADER.match(message)
    if found is None:
        raise ValueError("the first message has no GS2 header")
    if found[1]:
        raise ValueError("the client demands channel binding")
    return Gs2Header(found[0], parse_name(found[2]) if found[2] else "", message[found.end() :])


def parse_name(text: str) -> str:
    """A user name, in which a comma stands as =2C and an equals sign as =3D.

    Raises:
        ValueError: it is none.
    """
    if not NAME.fullmatch(text):
        raise ValueError("the user name is not written as RFC 5802 asks for")
    return text.replace("=2C", ",").replace("=3D", "=")
