"""The node's password file: Home Assistant itself, other add-ons, and local users.

A line is written again only if the password has changed: with a new hash of the same password, clients would have to
prove it once more after each start of the add-on.
"""

import json
import re
import secrets

from flockmq.broker.auth.password_file import USERNAME, read_users
from flockmq.broker.auth.passwords import StoredHash, hash_password, parse_hash
from flockmq.broker.files import replace_file

from .errors import AddonError
from .options import Login
from .places import Places

HOME_ASSISTANT = "homeassistant"  # the integration MQTT
ADDONS = "addons"  # other add-ons that use the service
SYSTEM = (HOME_ASSISTANT, ADDONS)
MOSQUITTOS = re.compile(r"PBKDF2\$sha512\$(\d+)\$([^$]+)\$([^$]+)")  # by `pw` of the Mosquitto add-on


def system_passwords(places: Places) -> dict[str, str]:
    """The passwords of the users that the add-on makes; generated at the first start."""
    path = places.data / "system_users.json"
    if not path.exists():
        replace_file(path, json.dumps({name: secrets.token_urlsafe(48) for name in SYSTEM}))
    passwords: dict[str, str] = json.loads(path.read_text())
    return passwords


def write_users(places: Places, system: dict[str, str], logins: tuple[Login, ...]) -> None:
    """Write the password file.

    Raises:
        AddonError: a local user has a name that can't be, or a damaged hash.
    """
    path = places.passwords
    old = read_users(str(path)) if path.exists() else {}
    users = {name: hash_of(password, old.get(name)) for name, password in system.items()}
    for login in logins:
        if login.username in SYSTEM or not USERNAME.fullmatch(login.username):
            raise AddonError(f"logins: {login.username!r} can't be the name of a local user")
        users[login.username] = (
            given_hash(login) if login.is_hashed else hash_of(login.password, old.get(login.username))
        )
    replace_file(path, "".join(f"{name}:{stored.text}\n" for name, stored in users.items()))


def hash_of(password: str, old: StoredHash | None) -> StoredHash:
    """A hash of the password: the old one, if it is that."""
    raw = password.encode()
    return old if old is not None and old.matches(raw) else hash_password(raw)


def given_hash(login: Login) -> StoredHash:
    """The hash that stands in place of a password: by `flockmq passwd`, `mosquitto_passwd`, or the Mosquitto add-on."""
    found = MOSQUITTOS.fullmatch(login.password)
    text = "$7${}${}${}".format(*found.groups()) if found else login.password
    try:
        return parse_hash(text)
    except ValueError as error:
        raise AddonError(f"logins: the hash of {login.username!r}: {error}") from None
