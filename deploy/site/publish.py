"""Puts a built site into the folder of its version: `python deploy/site/publish.py build/site PUBLISHED v1.2.3`.

PUBLISHED is a checkout of the branch that the web server shows. A release replaces the folder of its minor version,
1.2, and `latest`, if no newer version is there. versions.json is the list from which a reader chooses.
"""

import json
import re
import shutil
import sys
from pathlib import Path

LATEST = "latest"
TAG = re.compile(r"v(\d+\.\d+)\.\d+")
INDEX = f"""<!doctype html>
<meta charset="utf-8">
<title>FlockMQ</title>
<meta http-equiv="refresh" content="0; url={LATEST}/">
<link rel="canonical" href="{LATEST}/">
<a href="{LATEST}/">The documentation of FlockMQ</a>
"""


def publish(site: Path, published: Path, tag: str) -> None:
    """Publish a site. Raises SystemExit: the tag is none of a release, such as v1.2.3rc1."""
    match = TAG.fullmatch(tag)
    if match is None:
        sys.exit(f"{tag}: expected the tag of a release, such as v1.2.3")
    version = match[1]
    _replace(published / version, site)
    folders = (path.name for path in published.iterdir() if re.fullmatch(r"\d+\.\d+", path.name))
    versions = sorted(folders, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    if version == versions[0]:
        _replace(published / LATEST, site)
    listed = [{"version": each, "title": each, "aliases": [LATEST] if each == versions[0] else []} for each in versions]
    (published / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    (published / "index.html").write_text(INDEX)
    (published / ".nojekyll").touch()  # GitHub then serves the files as they are


def _replace(folder: Path, site: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(site, folder)


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
