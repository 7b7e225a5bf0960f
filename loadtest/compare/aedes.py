"""Aedes, installed with npm into `build/aedes` at first use; its server is `peers/aedes/server.js`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from .brokers import ROOT, BrokerError

SOURCE = Path(__file__).resolve().parent / "peers" / "aedes"
BUILD = ROOT / "build" / "aedes"
INSTALL_LIMIT = 180.0  # seconds


def installed_server() -> Path:
    """Return the path of the server, installed with its dependencies.

    Raises:
        BrokerError: there is no npm, or it failed.
    """
    if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
        raise BrokerError("npm is not installed")
    wanted = (SOURCE / "package.json").read_bytes()
    marker = BUILD / "installed.json"
    if not marker.exists() or marker.read_bytes() != wanted:
        BUILD.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / "package.json", BUILD)
        _install([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"])
        marker.write_bytes(wanted)
    return Path(shutil.copy(SOURCE / "server.js", BUILD))


def versions() -> str:
    """Return the requested versions of Aedes and its dependencies."""
    wanted: dict[str, str] = json.loads((SOURCE / "package.json").read_bytes())["dependencies"]
    return ", ".join(f"{name} {version}" for name, version in wanted.items())


def _install(command: list[str]) -> None:
    try:
        done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired:
        raise BrokerError(f"npm did not install Aedes within {INSTALL_LIMIT:g} s") from None
    if done.returncode:
        reasons = [line.removeprefix("npm error").strip() for line in done.stderr.splitlines()]
        raise BrokerError(f"npm could not install Aedes: {next(filter(None, reasons), f'status {done.returncode}')}")
