"""TLS of `http.listen`'s https:// addresses: with the certificate of [tls], read again when its files have changed."""

import ssl
import time
from collections.abc import Callable

from broker import logs
from broker.config.schema import TlsConfig
from broker.errors import ConfigError
from broker.listeners.certificates import state

LOOK_SECONDS = 1.0  # between looks at the files
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

log = logs.get("flockmq.http")


class Https:
    """The context for handshakes; each of them takes the certificate that there is then.

    Args:
        config: gives what holds now.

    Raises:
        ConfigError: the certificate can't be used.
    """

    def __init__(self, config: Callable[[], TlsConfig]) -> None:
        self._config = config
        self._look_at = 0.0
        self._state = state(config())
        self.context = self._current = _read(config())
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """A handshake begins."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            self._look()
        connection.context = self._current

    def _look(self) -> None:
        found = state(self._config())
        if found == self._state:
            return
        self._state = found
        try:
            self._current = _read(self._config())
            log.info("the certificate was read again")
        except ConfigError as error:
            log.error("the certificate before is used on", reason=error)


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
