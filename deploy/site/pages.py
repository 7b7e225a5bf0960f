"""Writes all that the site is made of: `python deploy/site/pages.py build/docs`.

The directory has zensical.toml, the theme and, in pages/, plain Markdown: the pages of deploy/docs, pages that stand
elsewhere in the repository, and pages that are printed from code.
"""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import places
from reference import api, commands, configuration, metrics, reason_codes

HERE = Path(__file__).parent
CONFIG = "zensical.toml"
PRINTED = {
    "reference/configuration.md": configuration.page,
    "reference/commands.md": commands.page,
    "reference/metrics.md": metrics.page,
    "reference/api.md": api.page,
    "reference/openapi.json": api.document,
    "reference/reason-codes.md": reason_codes.page,
}
# The site of a release asks the server for the list of versions, in the form that mike has: publish.py writes it.
VERSIONS = '\n[project.extra.version]\nprovider = "mike"\n'
BRANCH = "main"
WITHOUT_EDIT = "---\nwithout_edit: true\n---\n"  # a page whose text is not in deploy/docs


def write(directory: Path, ref: str) -> None:
    """Write everything into an empty directory; `ref` is the branch or tag to which links to sources lead."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = directory / "pages"
    shutil.copytree(places.ROOT / places.DOCS, pages)
    shutil.copytree(HERE / "theme", directory / "theme")
    text = (HERE / CONFIG).read_text("utf-8")
    (directory / CONFIG).write_text(text if ref == BRANCH else text + VERSIONS, "utf-8")
    config = tomllib.loads(text)["project"]
    for page, source in places.OUTSIDE.items():
        (pages / page).write_text(WITHOUT_EDIT + (places.ROOT / source).read_text("utf-8"), "utf-8")
    for path in pages.rglob("*.md"):
        page = str(path.relative_to(pages))
        path.write_text(places.adapted(path.read_text("utf-8"), page, f"{config['repo_url']}/blob/{ref}"), "utf-8")
    for page, printed in PRINTED.items():
        (pages / page).parent.mkdir(exist_ok=True)
        (pages / page).write_text((WITHOUT_EDIT if page.endswith(".md") else "") + printed(), "utf-8")
    if absent := without_place(pages, config["nav"]):
        sys.exit(f"pages without a place in `nav` of {CONFIG}: {', '.join(absent)}")


def without_place(pages: Path, nav: list[dict[str, Any]]) -> list[str]:
    """The pages that the navigation does not name. Zensical looks only for the opposite."""
    return sorted({str(path.relative_to(pages)) for path in pages.rglob("*.md")} - set(named(nav)))


def named(entries: list[dict[str, Any]]) -> Iterator[str]:
    """The pages of the navigation and of its sections."""
    for entry in entries:
        for target in entry.values():
            yield from (target,) if isinstance(target, str) else named(target)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *(sys.argv[2:] or [BRANCH]))
