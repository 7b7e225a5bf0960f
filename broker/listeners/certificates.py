"""Certificates of the listeners: found, read, and seen when they change.

A listener's certificates are one `TlsContext`, made whole or not at all: what can't be used leaves the one before.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from _speedups.net.tls import TlsContext, TlsError
from broker import logs
from broker.config.listen_url import ListenUrl
from broker.config.schema import ListenerConfig, TlsConfig
from broker.errors import ConfigError

PROTOCOLS = {"mqtts": "mqtt", "wss": "http/1.1"}  # names for ALPN

log = logs.get("flockmq.tls")


def load(listener: ListenerConfig) -> TlsContext | None:
    """What a listener needs for TLS; None if none of its addresses does.

    Raises:
        ConfigError: a file is missing or is not what it should be.
    """
    urls = [ListenUrl.parse(address) for address, _ in listener.places]
    protocols = sorted({PROTOCOLS[url.scheme] for url in urls if url.secure}, reverse=True)
    if not protocols:
        return None
    tls = listener.tls
    others = list(_pairs(tls))
    keys = {tls.key, *(key for _, key in others)}
    for path in files(tls):
        if _is_readable_by_others(path, listener.name) and path in keys:
            log.warning("everybody on this machine can read a private key: chmod o-r", file=path)
    try:
        return TlsContext(
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
        )
    except TlsError as error:
        hint = "`flockmq sample-config` says what [tls] takes"
        raise ConfigError(f"TLS of listener {listener.name!r}: {error}", hint) from error


def files(tls: TlsConfig) -> list[str]:
    """All files that a listener's TLS is made of."""
    others = [path for pair in _pairs(tls) for path in pair]
    return [path for path in (tls.certificate, tls.key, *others, tls.client_ca, tls.client_crl) if path]


def state(tls: TlsConfig) -> list[tuple[str, int, int, int]]:
    """What is different after a file has changed, has come or has gone."""
    found = []
    for path in files(tls):
        try:
            now = os.stat(path)
        except OSError:
            found.append((path, 0, 0, 0))
        else:
            found.append((path, now.st_mtime_ns, now.st_size, now.st_ino))
    return found


def _pairs(tls: TlsConfig) -> Iterator[tuple[str, str]]:
    """Certificate and key of each further certificate."""
    for path in map(Path, tls.certificates):
        try:
            places = sorted(path.iterdir())
        except OSError:  # a file; or a directory that can't be read, which is told when it is opened like one
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
    """Open a file, to see that it can be; whether everybody can."""
    try:
        with open(path, "rb") as file:
            return bool(os.fstat(file.fileno()).st_mode & stat.S_IROTH)
    except OSError as error:
        raise ConfigError(
            f"TLS of listener {name!r} can't read {path}: {error.strerror}", "FlockMQ must be able to read it"
        ) from error
