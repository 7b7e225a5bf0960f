"""%c and %u in topics of the configuration: the client identifier and the user name of a client."""


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
    return bool(value) and not any(char in str(value) for char in "+#/\0")


def filled_plainly(text: str, username: str | None, client_id: str) -> str | None:
    """The text with the names in place of %c and %u; None: a name that it needs is missing, or is not one level."""
    needed = [value for mark, value in (("%c", client_id), ("%u", username)) if mark in text]
    return filled(text, username, client_id) if all(map(is_plain, needed)) else None
