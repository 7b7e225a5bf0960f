"""Markdown from values."""

MARKUP = str.maketrans({sign: f"&#{ord(sign)};" for sign in "<>*[]|"})


def escaped(text: str) -> str:
    """A sentence of the product: its signs are no markup, and words in backticks are code."""
    parts = text.split("`")
    return "`".join(part if at % 2 else part.translate(MARKUP) for at, part in enumerate(parts))


def code(text: str) -> str:
    """A value as code, also within a table."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def table(head: tuple[str, ...], rows: list[str]) -> list[str]:
    """A table."""
    return [row(*head), row(*("---" for _ in head)), *rows, ""]
