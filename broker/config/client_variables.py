"""Variables of commands that speak to a node."""

import os

TOKEN_VARIABLE = "FLOCKMQ_TOKEN_FILE"


def token_file() -> str | None:
    """The file of the token that commands show; None: none is named."""
    return os.environ.get(TOKEN_VARIABLE) or None
