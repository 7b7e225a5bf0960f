"""Elements of HTML and SVG as text. All text except Markup is escaped, so data can't become markup."""

from html import escape

from . import words


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element: `tag("td", "a < b", class_="n")`.

    An attribute that is None or False is omitted, True has no value. `_` in a name stands for `-`; one at its end is
    dropped. A child that is None is omitted.
    """
    inner = "".join(text(child) for child in children)
    return Markup(f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>{inner}</{name}>")


def text(child: object) -> Markup:
    """A child as markup."""
    if child is None:
        return Markup()
    return child if isinstance(child, Markup) else Markup(escape(_safe(str(child))))


def join(children: "list[Markup]") -> Markup:
    """Elements in a row."""
    return Markup("".join(children))


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(_safe(str(value)))}"'


def _safe(data: str) -> str:
    """Text without characters that HTML forbids or that reverse text; in names `words.shown` has escaped them."""
    return data if data.isprintable() else words.escaped(data)
