"""Makes the credentials that are stored for a user from a password, and knows the names of users and roles."""

import re
from typing import NamedTuple

from .passwords import (
    MAX_ITERATIONS,
    MAX_PASSWORD,
    SCRAM_MIN_ROUNDS,
    SCRAM_ROUNDS,
    StoredHash,
    hash_password,
    scram_credentials,
)
from .rules import is_text
from .saslprep import saslprep

MAX_NAME = 1000  # characters


class Names(NamedTuple):
    """The names that things of a kind can have."""

    pattern: re.Pattern[str]
    expected: str  # in words

    def has(self, name: str) -> bool:
        """Whether it is such a name."""
        return self.pattern.fullmatch(name) is not None and is_text(name)


USER_NAMES = Names(
    re.compile(rf"(?!\s)[^\x00-\x1f\x7f-\x9f]{{1,{MAX_NAME}}}(?<!\s)"),
    f"1 to {MAX_NAME} characters, no control characters, no space at an end",
)
# Without the comma, which separates roles in a column of a database, and the characters of topic filters.
ROLE_NAMES = Names(
    re.compile(rf"(?!\s)[^\x00-\x1f\x7f-\x9f,/+#]{{1,{MAX_NAME}}}(?<!\s)"),
    f"1 to {MAX_NAME} characters, none of them a comma, / + # or a control character, and no space at an end",
)


def make_credentials(user: str, password: bytes, *, scram: bool = False, rounds: int = SCRAM_ROUNDS) -> StoredHash:
    """The credentials of a user; slow on purpose.

    Args:
        user: its name.
        password: of the user.
        scram: whether SCRAM-SHA-256 can be used, too.
        rounds: of SCRAM.

    Raises:
        ValueError: there is no password, or SCRAM can't have this user, this password or so many rounds.
    """
    if not 0 < len(password) <= MAX_PASSWORD:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD} bytes")
    if not scram:
        return hash_password(password)
    try:
        prepared = saslprep(user, stored=True)
    except ValueError as error:
        raise ValueError(f"SCRAM can't have the user {user!r}: {error}") from error
    if prepared != user:
        raise ValueError(f"SCRAM clients write the user {user!r} as {prepared!r}")
    if not SCRAM_MIN_ROUNDS <= rounds <= MAX_ITERATIONS:
        raise ValueError(f"--rounds: SCRAM has {SCRAM_MIN_ROUNDS} to {MAX_ITERATIONS}")
    try:
        return scram_credentials(password, rounds)
    except ValueError as error:
        raise ValueError(f"SCRAM can't have this password: {error}") from error
