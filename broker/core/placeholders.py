"""%c and %u in configured topics and access rules: the client identifier and the user name of a client.

A name never makes a first level that begins with `$`: such topics have a meaning, and rules without `$` leave them
closed [MQTT-4.7.2-1].
"""

import re

UNFIT = re.compile(r"[+#/\0]")
# The text that may stand before the first level of the topic itself.
WRAPPERS = re.compile(r"(?:\$(?:delayed|share|stream|tenant)/[^/]*/)*")


def filled(text: str, username: str | None, client_id: str) -> str:
    """The text with the names in place of %c and %u, in one pass: names that were filled in are not replaced again."""
    head, *rest = text.split("%")
    found = [head]
    for part in rest:
        value = {"c": client_id, "u": username or ""}.get(part[:1])
        found.append(f"%{part}" if value is None else value + part[1:])
    return "".join(found)


def is_plain(value: str | None) -> bool:
    """Whether a name stands for one level of a topic, as `#` and `a/b` do not (CVE-2017-7650)."""
    return bool(value) and UNFIT.search(str(value)) is None


def first_level(text: str) -> str:
    """The first level of the topic itself."""
    return text[WRAPPERS.match(text).end() :].partition("/")[0]  # type: ignore[union-attr]


def opens_system_topics(text: str, username: str | None, client_id: str) -> bool:
    """Whether a name would make the first level of the topic begin with `$`."""
    first = first_level(text)
    return filled(first, username, client_id) != first and filled(first, username, client_id).startswith("$")


def filled_plainly(text: str, username: str | None, client_id: str) -> str | None:
    """The text with the names in place of %c and %u.

    None: a name that it needs is missing, is not one level, or makes a first level that begins with `$`.
    """
    needed = [value for mark, value in (("%c", client_id), ("%u", username)) if mark in text]
    if not all(map(is_plain, needed)) or (needed and opens_system_topics(text, username, client_id)):
        return None
    return filled(text, username, client_id)
