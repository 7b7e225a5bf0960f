"""Certificates of the listeners: found, read, and checked for changes.

The certificates of a listener are one `TlsContext`, made whole or not at all: with an invalid file the previous one
stays in use.
"""

import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ..._speedups.net.ticket_keys import TicketKeyRing
from ..._speedups.net.tls import TlsContext, TlsError
from .. import logs
from ..config.listen_url import ListenUrl
from ..config.schema import ListenerConfig, TlsConfig
from ..errors import ConfigError

PROTOCOLS = {"mqtts": "mqtt", "wss": "http/1.1"}  # names for ALPN

log = logs.get("flockmq.tls")


def load(listener: ListenerConfig, ticket_keys: TicketKeyRing) -> TlsContext | None:
    """The TLS context of a listener; None if none of its addresses needs one.

    Args:
        listener: its settings.
        ticket_keys: seal its session tickets.

    Raises:
        ConfigError: a file is missing or invalid.
    """
    urls = [ListenUrl.parse(address) for address, _ in listener.places]
    protocols = sorted({PROTOCOLS[url.scheme] for url in urls if url.secure}, reverse=True)
    if not protocols:
        return None
    tls = listener.tls
    others = list(pairs(tls))
    keys = {tls.key, *(key for _, key in others)}
    for path in files(tls):
        if _is_readable_by_others(path, listener.name) and path in keys:
            log.warning("every user of this machine can read a private key: chmod o-r", file=path)
    try:
        context = TlsContext(
            tls.certificate,
            tls.key,
            others,
            client_ca=tls.client_ca if tls.client_certificate != "none" else "",
            client_crl=tls.client_crl,
            required=tls.client_certificate == "required",
            username_from=tls.username_from,
            version=tls.min_version,
            protocols=protocols,
            name=listener.name,
            ticket_keys=ticket_keys if tls.session_lifetime else None,
            session_lifetime=math.ceil(tls.session_lifetime),
        )
    except TlsError as error:
        hint = "`flockmq sample-config` describes [tls]"
        raise ConfigError(f"TLS of listener {listener.name!r}: {error}", hint) from error
    if context.expires <= time.time():
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(context.expires))
        log.warning("a certificate has expired: clients refuse it", listener=listener.name, expired=ended)
    return context


def files(tls: TlsConfig) -> list[str]:
    """All files of the TLS of a listener."""
    others = [path for pair in pairs(tls) for path in pair]
    return [path for path in (tls.certificate, tls.key, *others, tls.client_ca, tls.client_crl) if path]


def state(tls: TlsConfig) -> list[tuple[str, int, int, int]]:
    """A stamp of the files, which differs after one was changed, added or removed."""
    found = []
    for path in files(tls):
        try:
            now = os.stat(path)
        except OSError:
            found.append((path, 0, 0, 0))
        else:
            found.append((path, now.st_mtime_ns, now.st_size, now.st_ino))
    return found


def pairs(tls: TlsConfig) -> Iterator[tuple[str, str]]:
    """Certificate and key of each further certificate."""
    for path in map(Path, tls.certificates):
        try:
            places = sorted(path.iterdir())
        except OSError:  # a file; or an unreadable directory, which fails when it is opened as a file
            places = [path]
        for place in places:
            if os.path.exists(place / "fullchain.pem"):  # as certbot lays them out, a directory for each name
                yield str(place / "fullchain.pem"), str(place / "privkey.pem")
            elif place.suffix in (".pem", ".crt"):
                key = place.with_suffix(".key")
                yield str(place), str(key if os.path.exists(key) else place)
            elif place == path:
                yield str(place), str(place)


def _is_readable_by_others(path: str, name: str) -> bool:
    """Whether every user can read a file.

    Raises:
        ConfigError: this process can't.
    """
    try:
        with open(path, "rb") as file:
            return bool(os.fstat(file.fileno()).st_mode & stat.S_IROTH)
    except OSError as error:
        raise ConfigError(
            f"TLS of listener {name!r} can't read {path}: {error.strerror}", "FlockMQ must be able to read it"
        ) from error
