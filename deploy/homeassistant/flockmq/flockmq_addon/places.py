"""Folders that the Supervisor mounts."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """Paths below a root, which is / in the container."""

    root: Path = Path("/")

    @property
    def data(self) -> Path:
        """The add-on's own folder: options, users, the store. It is part of backups."""
        return self.root / "data"

    @property
    def ssl(self) -> Path:
        """Certificates of Home Assistant."""
        return self.root / "ssl"

    @property
    def config(self) -> Path:
        """Files that the user gives to the add-on."""
        return self.root / "config"

    @property
    def passwords(self) -> Path:
        """The node's password file."""
        return self.data / "passwords"

    @property
    def store(self) -> Path:
        """The node's store."""
        return self.data / "flockmq.db"
