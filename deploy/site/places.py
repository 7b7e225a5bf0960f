"""Where a page of the site comes from, and where a link on it leads.

Pages are written for GitHub: a link is a path in the repository. On the site a link to a page leads to the page, and a
link to any other file to the file in the repository's web view.
"""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "deploy/docs"
# Pages that stand outside of DOCS, by their names on the site. SECURITY.md is also the name of a guide.
OUTSIDE = {"CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md", "POLICY.md": "SECURITY.md"}
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
NESTED = re.compile(r"^(?: {2})+(?=- )", re.MULTILINE)


class DeadLink(Exception):
    """A link to a file that the repository does not have."""


def in_repository(page: str) -> str:
    """The path in the repository of a page of the site."""
    return OUTSIDE.get(page) or f"{DOCS}/{page}"


def of_site(path: str) -> str:
    """The page of the site for a path in the repository; empty: it is no page."""
    for page, source in OUTSIDE.items():
        if source == path:
            return page
    is_page = path.startswith(f"{DOCS}/") and (ROOT / path).is_file()
    return path.removeprefix(f"{DOCS}/") if is_page else ""


def adapted(text: str, page: str, source: str) -> str:
    """The Markdown of a page for the site.

    Args:
        text: as GitHub shows it.
        page: its name on the site.
        source: the address of the repository's web view, at one commit: `https://.../blob/main`.

    Raises:
        DeadLink: the text has one.
    """
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [_adapted(text[end : fence.start()], page, source), fence[0]]
        end = fence.end()
    return "".join([*parts, _adapted(text[end:], page, source)])


def _adapted(text: str, page: str, source: str) -> str:
    """Text without fenced code. Python-Markdown nests a list by four spaces, where GitHub needs two."""
    return LINK.sub(lambda link: _target(link, page, source), NESTED.sub(lambda indent: indent[0] * 2, text))


def _target(link: re.Match[str], page: str, source: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository(page)), link["path"]))
    anchor = link["anchor"] or ""
    if found := of_site(path):
        return posixpath.relpath(found, posixpath.dirname(page) or ".") + anchor
    if path.startswith("../") or not (ROOT / path).exists():
        raise DeadLink(f"{in_repository(page)}: {link[0]} is not there")
    return f"{source}/{path}{anchor}"
