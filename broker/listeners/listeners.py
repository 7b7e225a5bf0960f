"""All listeners of a node: opens their sockets, sets limits, and reads certificates again when their files change.

They outlive the reactor: a node that rejoins opens them again. Sockets are bound at the start and stay. Limits,
certificates and WebSocket settings follow the configuration, and certificates their files.
"""

import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..._speedups.net.listener import Endpoint, Listener
from ..._speedups.net.reactor import Reactor
from ..._speedups.net.ticket_keys import TicketKeyRing
from ..._speedups.net.tls import TlsContext
from .. import logs
from ..config.limits_config import QuotasConfig
from ..config.listen_url import EVERYWHERE, ListenUrl, split_address
from ..config.schema import Config, ListenerConfig
from ..errors import ConfigError
from . import certificates
from .bind import address_of, bind, host_name, is_own_address, truster
from .unix_socket import bind_unix, inherit, remove
from .websocket import Upgrade

BACKLOG = 4096  # connections that the kernel completes before the node accepts them
UNLIMITED = 2**32 - 1
CERTIFICATE_SECONDS = 5.0  # between checks of the files of certificates

log = logs.get("flockmq.tls")


class Address(NamedTuple):
    """A bound socket."""

    url: ListenUrl  # with the real port
    socket: socket.socket
    proxied: bool
    listener: str


class Listeners:
    """The listeners that a configuration names."""

    def __init__(self) -> None:
        self.ticket_keys = TicketKeyRing()
        self._addresses: list[Address] = []
        self._listeners: dict[str, Listener] = {}
        self._upgrades: dict[str, Upgrade] = {}
        self._states: dict[str, object] = {}  # of the files of certificates, when they were read

    def bind(self, config: Config) -> None:
        """Bind all addresses.

        Raises:
            FlockError: an address is taken, or a certificate is invalid.
        """
        contexts = self.prepare(config)
        proxies = truster(config.http.trusted_proxies) if config.http.trusted_proxies else None
        for each in config.listeners:
            self._listeners[each.name] = Listener(each.name)
            self._upgrades[each.name] = Upgrade(each.websocket, proxies)
            for text, proxied in each.places:
                url = ListenUrl.parse(text)
                for bound in _bind(url, each, config.listen_shared):
                    real = url if url.scheme in ("unix", "fd") else url.at(address_of(bound))
                    self._addresses.append(Address(real, bound, proxied, each.name))
        self.configure(config, contexts)

    def of(self, name: str) -> Listener:
        """A listener, by its name."""
        return self._listeners[name]

    def urls(self, *, proxied: bool = False) -> list[str]:
        """Addresses for clients, or for proxies that send a PROXY header."""
        return [str(address.url) for address in self._addresses if address.proxied == proxied]

    def urls_of(self, name: str) -> list[str]:
        """Addresses of one listener."""
        return [str(address.url) for address in self._addresses if address.listener == name]

    def are_named(self, reference: str, name: str) -> bool:
        """Whether a server reference, HOST[:PORT], names one of the addresses for clients.

        HOST may be an address, or the first part of a host name. Without a port it is of any port.

        Args:
            reference: by which clients find a server.
            name: of this node.
        """
        try:
            host, port = split_address(reference)
        except ValueError:
            host, port = reference, 0
        for url in (address.url for address in self._addresses if address.url.scheme not in ("unix", "fd")):
            own, own_port = split_address(url.address)
            if port not in (0, own_port):
                continue
            if host == own or (own in EVERYWHERE and is_own_address(host)):
                return True
            if any(f"{host.lower()}.".startswith(f"{known.lower()}.") for known in (name, host_name())):
                return True
        return False

    def listen(self) -> None:
        """Let the kernel complete connections."""
        for address in self._addresses:
            address.socket.listen(BACKLOG)

    def open(self, reactor: Reactor, trusted: Iterable[str]) -> None:
        """Accept clients."""
        trusts = truster(trusted)
        for url, bound, proxied, name in self._addresses:
            transport = "unix" if url.scheme == "fd" else url.scheme
            listener, upgrade = self._listeners[name], self._upgrades[name]
            reactor.listen(Endpoint(listener, bound, transport, trusts if proxied else None, upgrade))

    def prepare(self, config: Config) -> dict[str, TlsContext | None]:
        """The certificates of a configuration, for `configure`. Raises ConfigError."""
        return {each.name: certificates.load(each, self.ticket_keys) for each in config.listeners}

    def configure(self, config: Config, contexts: dict[str, TlsContext | None]) -> None:
        """Apply the settings that may change while clients are connected."""
        for each in config.listeners:
            listener = self._listeners[each.name]
            listener.use(contexts[each.name])
            _limit(listener, each.quotas)
            self._upgrades[each.name].configure(each.websocket)
            self._states[each.name] = certificates.state(each.tls)

    def check_certificates(self, config: Config) -> None:
        """Read certificates whose files have changed; to be called every `CERTIFICATE_SECONDS`."""
        for each in config.listeners:
            listener = self._listeners[each.name]
            if listener.tls is not None and (found := certificates.state(each.tls)) != self._states[each.name]:
                self._states[each.name] = found
                self._reload(each, listener)

    def _reload(self, each: ListenerConfig, listener: Listener) -> None:
        try:
            listener.use(certificates.load(each, self.ticket_keys))
        except ConfigError as error:
            log.error("certificate reload failed; the previous certificate stays in use", error=error)
        else:
            log.info("certificates were reloaded", listener=each.name)

    def close(self) -> None:
        """Release all addresses."""
        for address in self._addresses:
            if address.url.scheme == "unix":
                remove(address.url.address, address.socket)
            address.socket.close()


def _limit(listener: Listener, quotas: QuotasConfig) -> None:
    listener.set_limits(
        max_connections=quotas.max_connections or UNLIMITED,
        max_per_address=quotas.max_connections_per_address,
        connects=quotas.connects_per_second,
        client_messages=quotas.messages_per_second,
        client_bytes=quotas.bytes_per_second,
        total_messages=quotas.listener_messages_per_second,
        total_bytes=quotas.listener_bytes_per_second,
        max_packet_size=quotas.max_packet_size or UNLIMITED,
    )


def _bind(url: ListenUrl, listener: ListenerConfig, shared: bool) -> list[socket.socket]:
    openers: dict[str, Callable[[], list[socket.socket]]] = {
        "unix": lambda: [bind_unix(url.address, int(listener.socket_mode, 8))],
        "fd": lambda: [inherit(int(url.address))],
    }
    return openers.get(url.scheme, lambda: bind(url.address, shared))()
