"""TLS of `http.listen`'s https:// addresses: with the certificates of [tls], reloaded when their files have changed."""

import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

from ...._speedups.net.tls import TlsContext, TlsError
from ... import logs
from ...config.schema import TlsConfig
from ...errors import ConfigError
from ...listeners.certificates import pairs, state

CHECK_SECONDS = 1.0  # between checks of the files
PROTOCOLS = ["http/1.1"]  # for ALPN
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

log = logs.get("flockmq.http")


class Https:
    """The context for handshakes; each of them uses the certificates of that moment, chosen by the requested name.

    Args:
        config: returns the configuration in force.

    Raises:
        ConfigError: a certificate is invalid.
    """

    def __init__(self, config: Callable[[], TlsConfig]) -> None:
        self._config = config
        self._check_at = 0.0
        self._state = state(config())
        self._current = _read(config())
        self.context = self._current.contexts[0]
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """A handshake starts."""
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_SECONDS
            self._check()
        connection.context = self._current.for_name(name)

    def _check(self) -> None:
        found = state(self._config())
        if found == self._state:
            return
        self._state = found
        try:
            self._current = _read(self._config())
            log.info("certificates were reloaded")
        except ConfigError as error:
            log.error("certificate reload failed; the previous certificate stays in use", reason=error)


class Certificates(NamedTuple):
    """The certificates that were read together."""

    names: TlsContext  # finds the certificate of a name, as the listeners do
    contexts: tuple[ssl.SSLContext, ...]

    def for_name(self, name: str | None) -> ssl.SSLContext:
        """The context for a client that requests this name, or none."""
        return self.contexts[0 if name is None else self.names.index_of(name)]


def _read(tls: TlsConfig) -> Certificates:
    found = [(tls.certificate, tls.key or tls.certificate), *pairs(tls)]
    contexts = []
    certificate = key = ""
    try:
        for certificate, key in found:
            contexts.append(_context(tls, certificate, key))
        return Certificates(TlsContext(*found[0], found[1:], protocols=PROTOCOLS), tuple(contexts))
    except (OSError, ssl.SSLError, TlsError) as error:
        raise ConfigError(
            f"http.listen asks for TLS, and the certificate {certificate!r}, key {key!r}, can't be used: {error}",
            "name PEM files in tls.certificate, tls.key and tls.certificates",
        ) from error


def _context(tls: TlsConfig, certificate: str, key: str) -> ssl.SSLContext:
    """Raises OSError, SSLError: a file can't be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = VERSIONS[tls.min_version]
    context.set_alpn_protocols(PROTOCOLS)
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


def _no_password() -> bytes:
    """A key with a password is refused: there is no prompt for it."""
    return b""
