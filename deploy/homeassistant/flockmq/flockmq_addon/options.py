"""The options of the add-on, and the node's settings that follow from them."""

import json
from dataclasses import dataclass
from typing import Any

from .errors import AddonError
from .places import Places

PLAIN = (":1883", "ws://:1884")
ENCRYPTED = ("mqtts://:8883", "wss://:8884")
HTTP = "0.0.0.0:8080"  # the Supervisor's watchdog asks /healthz from outside of the container


@dataclass(frozen=True)
class Login:
    """A local user."""

    username: str
    password: str
    is_hashed: bool


@dataclass(frozen=True)
class Options:
    """What the user has set, after the Supervisor has checked it by config.yaml."""

    logins: tuple[Login, ...]
    require_certificate: bool
    certfile: str
    keyfile: str
    cafile: str
    log_level: str


def read_options(places: Places) -> Options:
    """Read them from the file that the Supervisor writes before each start."""
    raw: dict[str, Any] = json.loads((places.data / "options.json").read_text())
    logins = (
        Login(login["username"], login["password"], login.get("password_pre_hashed", False)) for login in raw["logins"]
    )
    names = ("require_certificate", "certfile", "keyfile", "log_level")
    return Options(tuple(logins), cafile=raw.get("cafile", ""), **{name: raw[name] for name in names})


def node_settings(options: Options, places: Places, http_url: str) -> dict[str, str]:
    """Environment variables of the node.

    Args:
        http_url: where the node asks about users that it does not know.

    Raises:
        AddonError: a certificate is required of clients, and there is nothing to check it by.
    """
    settings = {
        "FLOCKMQ_LISTEN": ",".join(PLAIN),
        "FLOCKMQ_HTTP_LISTEN": HTTP,
        "FLOCKMQ_STORE_URL": f"sqlite:{places.store}",
        "FLOCKMQ_LOG_LEVEL": options.log_level,
        "FLOCKMQ_AUTH_PASSWORD_FILE": str(places.passwords),
        "FLOCKMQ_AUTH_HTTP_URL": http_url,
        "FLOCKMQ_AUTH_HTTP_TIMEOUT": "10s",  # Home Assistant takes a second or two
        "FLOCKMQ_AUTH_HTTP_REMEMBER": "300s",
    }
    certificate, key = places.ssl / options.certfile, places.ssl / options.keyfile
    if certificate.is_file() and key.is_file():
        settings["FLOCKMQ_LISTEN"] = ",".join(PLAIN + ENCRYPTED)
        settings["FLOCKMQ_TLS_CERTIFICATE"] = str(certificate)
        settings["FLOCKMQ_TLS_KEY"] = str(key)
    if options.require_certificate:
        authorities = places.ssl / options.cafile
        if not authorities.is_file():
            raise AddonError(
                "require_certificate needs cafile, a file in the folder ssl: who signs clients' certificates"
            )
        settings["FLOCKMQ_TLS_CLIENT_CERTIFICATE"] = "required"
        settings["FLOCKMQ_TLS_CLIENT_CA"] = str(authorities)
    return settings
