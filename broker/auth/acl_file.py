"""The ACL file, in Mosquitto's format: access rules for anonymous clients, for users, and for all clients.

    # Rules before the first `user` are for clients without a user name.
    topic read public/#
    user Ada Lovelace
    topic readwrite engine/#
    topic deny engine/secret
    # Patterns are for all clients, wherever they stand.
    pattern write devices/%c/#

Access that no rule allows is denied, so a file without rules denies everything (CVE-2018-12550). One invalid line makes
the whole file unusable: it is never applied in part. Without a line that denies, or that names the user of those after
it, somebody would get more than was written.
"""

from pathlib import Path

from ..._speedups.session.rights import Rights
from ..errors import ConfigError
from .rules import KINDS, Rule, Rules, is_text, parse_rule, rights_of

MAX_BYTES = 64 << 20  # bytes of a file
MARK = "\ufeff"  # that editors of Windows write at the begin


class AclFile:
    """The rules of a file.

    Args:
        path: of the file.

    Raises:
        ConfigError: it can't be read, or a line of it.
    """

    def __init__(self, path: str) -> None:
        self._by_user: dict[str | None, list[Rule]] = {}
        self._patterns: list[Rule] = []
        user: str | None = None
        text = read_text(path, "auth.acl_file", errors="surrogateescape")  # comments may be of any code
        for number, raw in enumerate(text.removeprefix(MARK).split("\n"), 1):
            line = raw.rstrip(" \t\r").lstrip(" ")
            if line.lstrip("\t ").startswith("#") or not line:
                continue
            try:
                user = self._add(line, user)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: expected {error}", "deploy/docs/ACCESS.md has examples") from None

    def _add(self, line: str, user: str | None) -> str | None:
        """Add a line; returns the user of the lines that follow."""
        if not is_text(line):
            raise ValueError("UTF-8")
        if "\t" in line:  # no separator in Mosquitto: it refuses most such lines, and reads the others in its own way
            raise ValueError("spaces between words, and no tab")
        word, _, name = line.partition(" ")
        if word == "user":
            if not name.strip():
                raise ValueError('a name after "user"')
            return name.strip()
        if word not in KINDS:
            raise ValueError('"user" and a name, or "topic" or "pattern" and a rule')
        rule = parse_rule(line)
        if rule.is_pattern:
            self._patterns.append(rule)
        else:
            self._by_user.setdefault(user, []).append(rule)
        return user

    @property
    def size(self) -> int:
        """The number of its rules."""
        return len(self._patterns) + sum(map(len, self._by_user.values()))

    def section(self, username: str | None) -> str | None:
        """The name of the user whose rules hold for a client, None for anonymous clients, "" if there are no such."""
        return username if username in self._by_user else ""

    def rules(self, section: str | None) -> Rules:
        """The patterns, and the rules of a section."""
        return (*self._patterns, *self._by_user.get(section, ()))

    def rights(self, username: str | None, client_id: str) -> Rights:
        """The rights of a client by the file alone."""
        return rights_of(self.rules(self.section(username)), username, client_id)


def read_text(path: str, key: str, errors: str = "strict") -> str:
    """The text of a file that a configuration key names.

    Args:
        path: of the file.
        key: for errors.
        errors: as for `bytes.decode`.

    Raises:
        ConfigError: it can't be read.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{key} = {path!r} is larger than {MAX_BYTES >> 20} MiB")
        return data.decode(errors=errors)
    except OSError as error:
        raise ConfigError(f"{key} = {path!r} can't be read: {error.strerror}", "check path and permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {path!r} is not UTF-8 at byte {error.start}") from error
