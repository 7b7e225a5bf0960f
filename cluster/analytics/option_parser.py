"""Options as Spark passes them, of the source and of the sink: by name, with an error of one sentence."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...broker.config.redis_url import masked
from ...broker.errors import nearest
from .errors import OptionError


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        field: of the options, which has the value.
        parse: makes the value of the text; raises ValueError, whose words complete "expected ...".
        is_url: an error hides passwords in the text.
    """

    name: str
    field: str
    parse: Callable[..., Any]
    is_url: bool = False


def parse_fields(
    kind: str,
    options: Mapping[str, str],
    known: Mapping[str, Option],
    *more: Any,
    shown: Collection[str],
    ignored: Collection[str] = (),
) -> dict[str, Any]:
    """The values by field; the case of the names is ignored.

    Args:
        kind: `source` or `sink`.
        known: by the name in lower case.
        more: arguments of `parse` behind the text.
        shown: names for an error about an unknown one.
        ignored: names in lower case that are no options of ours.

    Raises:
        OptionError: an option is unknown or wrong.
    """
    fields: dict[str, Any] = {}
    for name, text in ((name.lower(), text) for name, text in options.items()):
        option = known.get(name)
        if option is None:
            if name in ignored:
                continue
            near = nearest(name, known)
            hint = f"did you mean {known[near].name}?" if near else f"known are {', '.join(shown)}"
            raise OptionError(f"the {kind} flockmq has no option {name}", hint)
        try:
            fields[option.field] = option.parse(text, *more)
        except ValueError as error:
            words = masked(text) if option.is_url else text
            raise OptionError(f"option {option.name}: expected {error}, not {words!r}") from None
    return fields


def boolean(text: str, *_: Any) -> bool:
    """`true` or `false` in any case. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def seconds(text: str, *_: Any) -> float:
    """Seconds, not negative. Raises ValueError."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text):
        raise ValueError("seconds")
    return float(text)
