"""Builds the site of the documentation, as `make docs` does."""

import subprocess
import sys
from pathlib import Path

from tests.harness.broker_process import ROOT

SITE = ROOT / "deploy" / "site"


def build_strictly(directory: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a directory with zensical.toml, into `site` in it."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(directory / "zensical.toml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def build_documentation(directory: Path, ref: str) -> Path:
    """Build the documentation, with links to the sources of a branch or tag; returns the site."""
    subprocess.run([sys.executable, SITE / "pages.py", directory, ref], check=True, timeout=60)
    done = build_strictly(directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "site"
