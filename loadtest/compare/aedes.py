"""Aedes, installed with npm when it is first wanted, into `build/aedes`; the server is `peers/aedes/server.js`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from loadtest.compare.brokers import ROOT, BrokerError

_SOURCE = Path(__file__).resolve().parent / "peers" / "aedes"
_BUILD = ROOT / "build" / "aedes"
_INSTALL_LIMIT = 180.0  # seconds


def installed_server() -> Path:
    """Return the path of the server, beside everything it needs.

    Raises:
        BrokerError: there is no npm, or it could not install.
    """
    if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
        raise BrokerError("npm is not installed")
    wanted = (_SOURCE / "package.json").read_bytes()
    stamp = _BUILD / "installed.json"
    if not stamp.exists() or stamp.read_bytes() != wanted:
        _BUILD.mkdir(parents=True, exist_ok=True)
        shutil.copy(_SOURCE / "package.json", _BUILD)
        _install([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"])
        stamp.write_bytes(wanted)
    return Path(shutil.copy(_SOURCE / "server.js", _BUILD))


def versions() -> str:
    """Return the versions of Aedes and what it uses, as asked for."""
    wanted: dict[str, str] = json.loads((_SOURCE / "package.json").read_bytes())["dependencies"]
    return ", ".join(f"{name} {version}" for name, version in wanted.items())


def _install(command: list[str]) -> None:
    try:
        done = subprocess.run(command, cwd=_BUILD, capture_output=True, text=True, check=False, timeout=_INSTALL_LIMIT)
    except subprocess.TimeoutExpired:
        raise BrokerError(f"npm did not install Aedes within {_INSTALL_LIMIT:g} s") from None
    if done.returncode:
        reasons = [line.removeprefix("npm error").strip() for line in done.stderr.splitlines()]
        raise BrokerError(f"npm could not install Aedes: {next(filter(None, reasons), f'status {done.returncode}')}")
