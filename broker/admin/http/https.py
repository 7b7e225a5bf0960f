"""TLS of `http.listen`'s https:// addresses: with the certificate of [tls], reloaded when its files have changed."""

import ssl
import time
from collections.abc import Callable

from broker import logs
from broker.config.schema import TlsConfig
from broker.errors import ConfigError
from broker.listeners.certificates import state

CHECK_SECONDS = 1.0  # between checks of the files
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

log = logs.get("flockmq.http")


class Https:
    """The context for handshakes; each of them uses the certificate of that moment.

    Args:
        config: returns the configuration in force.

    Raises:
        ConfigError: the certificate is invalid.
    """

    def __init__(self, config: Callable[[], TlsConfig]) -> None:
        self._config = config
        self._check_at = 0.0
        self._state = state(config())
        self.context = self._current = _read(config())
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """A handshake starts."""
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_SECONDS
            self._check()
        connection.context = self._current

    def _check(self) -> None:
        found = state(self._config())
        if found == self._state:
            return
        self._state = found
        try:
            self._current = _read(self._config())
            log.info("certificate was reloaded")
        except ConfigError as error:
            log.error("certificate reload failed; the previous certificate stays in use", reason=error)


def _read(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = VERSIONS[tls.min_version]
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.certificate, tls.key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"http.listen asks for TLS, and tls.certificate {tls.certificate!r} can't be used: {error}",
            "name PEM files in tls.certificate and tls.key",
        ) from error
    return context
