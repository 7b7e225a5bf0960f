"""Checks of the configuration that concern more than one key."""

from collections.abc import Mapping
from typing import cast

from ..errors import ConfigError
from .listen_url import ListenUrl, clash
from .placeholders import Template
from .schema import Config, ListenerConfig


def check(config: Config, origins: Mapping[str, str]) -> None:
    """Check a configuration.

    Args:
        config: each value is valid by itself.
        origins: where the value of each key stands, by its name.

    Raises:
        ConfigError: keys contradict each other.
    """
    _check_listeners(config, origins)
    known = {listener.name for listener in config.listeners}
    named = [("mqtt.auto_subscribe", rule.listener) for rule in config.mqtt.auto_subscribe]
    named += [("tenants", name) for rule in config.tenants for name in (rule.listener, rule.auth_of)]
    for key, name in named:
        if name and name not in known:
            raise ConfigError(
                f"{key} ({origins[key]}): there is no listener {name}", f"one of {', '.join(sorted(known))}"
            )
    for listener in config.listeners:
        _check_back_ends(listener)
    _check_tenants(config, origins)
    cluster = config.cluster
    if cluster.workers > 1 and cluster.replicas and not cluster.redis:
        raise ConfigError(
            f"cluster.replicas = {cluster.replicas} ({origins['cluster.replicas']}): "
            "the Redis that workers start has no replicas",
            "name one with --redis redis://HOST:PORT, or leave it at 0",
        )
    _check_log(config, origins)


def _check_tenants(config: Config, origins: Mapping[str, str]) -> None:
    """Raise ConfigError: the users of a tenant are not the same by each of its rules."""
    for rule in config.tenants:
        own = {other.auth_of or other.listener for other in config.tenants if other.name == rule.name}
        if rule.auth_of and own != {rule.auth_of}:
            raise ConfigError(
                f"tenants ({origins['tenants']}): rules of {rule.name} differ in auth_of = {rule.auth_of!r}",
                "clients could take the other one: write it in each rule of the tenant",
            )


def _check_back_ends(listener: ListenerConfig) -> None:
    """Raise ConfigError: users in a database or directory could not be found."""
    auth, prefix = listener.auth, "" if listener.name == "default" else f"listeners.{listener.name}."
    if auth.sql_url and not {"username", "client_id"} & set(Template.parse(auth.sql_user_query).names):
        raise ConfigError(
            f"{prefix}auth.sql_user_query has no placeholder for the user of auth.sql_url",
            "such as SELECT password_hash FROM users WHERE username = ${username}",
        )
    if auth.ldap_url and not (auth.ldap_base and "username" in Template.parse(auth.ldap_filter).names):
        raise ConfigError(
            f"{prefix}auth.ldap_url needs auth.ldap_base, and ${{username}} in auth.ldap_filter",
            'such as auth.ldap_base = "ou=people,dc=example,dc=org"',
        )
    if bool(auth.ldap_bind_dn) != bool(auth.ldap_password_file):
        raise ConfigError(
            f"{prefix}auth.ldap_bind_dn and auth.ldap_password_file: one is missing",
            "a name without a password would be no authentication",
        )


def _check_log(config: Config, origins: Mapping[str, str]) -> None:
    topics = config.analytics.topics
    if not topics or config.cluster.redis:
        return
    key = f"analytics.topics = {list(topics)} ({origins['analytics.topics']})"
    if config.cluster.workers > 1:
        raise ConfigError(
            f"{key}: messages are logged into a Redis of yours, and none is configured",
            "name one with --redis redis://HOST:PORT, or serve with one worker",
        )
    if config.store.url == "memory":
        raise ConfigError(
            f"{key}: the log of messages is in files beside the store, and store memory has none",
            "name a file with --store sqlite:PATH, or a Redis with --redis redis://HOST:PORT",
        )


def _check_listeners(config: Config, origins: Mapping[str, str]) -> None:
    for name, table in config.tables:
        if "listen" not in dict(table) and not any(rule.auth_of == name for rule in config.tenants):
            raise ConfigError(f"listeners.{name} has no addresses", 'give it `listen = ["HOST:PORT"]`')
    _check_places(config)
    is_secure = False
    for listener in config.listeners:
        prefix = "" if listener.name == "default" else f"listeners.{listener.name}."
        urls = [ListenUrl.parse(address) for address in listener.listen]
        _check_tls(listener, prefix, any(url.secure for url in urls))
        is_secure = is_secure or any(url.secure for url in urls)
        for section, used in (("tls", any(url.secure for url in urls)), ("websocket", any(u.websocket for u in urls))):
            vain = [key for key in origins if prefix and key.startswith(f"{prefix}{section}.")]
            if vain and not used:  # a setting must not be ignored silently
                raise ConfigError(
                    f"{vain[0]} ({origins[vain[0]]}): no address of this listener is one for it",
                    f"write {'mqtts://HOST:PORT' if section == 'tls' else 'ws://HOST:PORT'} in {prefix}listen",
                )

    if config.tls.client_certificate != "none" and not is_secure:
        raise ConfigError(
            f"tls.client_certificate ({origins['tls.client_certificate']}): no address of any listener has TLS",
            "write mqtts://HOST:PORT in `listen`",
        )


def _check_places(config: Config) -> None:
    """Raise ConfigError if two addresses of the node clash: the kernel would name one of them only."""
    named = [("listen", config.listen), ("proxy.listen", config.proxy.listen)]
    named += [
        (f"listeners.{name}.listen", cast(tuple[str, ...], dict(table).get("listen", ())))
        for name, table in config.tables
    ]
    found = [(key, address, ListenUrl.parse(address)) for key, addresses in named for address in addresses]
    pages = ((address, address.rpartition("://")[2]) for address in config.http.listen)
    found += [("http.listen", address, ListenUrl("mqtt", place)) for address, place in pages]
    for number, (key, address, url) in enumerate(found):
        for other_key, other_address, other in found[:number]:
            # Shared sockets of one port may be of all addresses and of one: the kernel takes the nearest.
            is_same = not set(url.places).isdisjoint(other.places)
            if is_same or (clash(url, other) and not config.listen_shared):
                raise ConfigError(
                    f"{other_key} {other_address} and {key} {address} clash: the node can't listen on both",
                    "each address belongs to one listener: choose another port, or remove one of the two",
                )


def _check_tls(listener: ListenerConfig, prefix: str, used: bool) -> None:
    tls = listener.tls
    wrong = {
        "certificate: mqtts:// and wss:// need one": used and not (tls.certificate and tls.key),
        "client_ca: no authority for client certificates": tls.client_certificate != "none" and not tls.client_ca,
        "client_crl: clients need no certificate": tls.client_certificate == "none" and tls.client_crl,
        "username_from: clients need no certificate": tls.client_certificate == "none" and tls.username_from != "none",
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            hint = "set tls.certificate and tls.key" if "need one" in text else "see tls.client_certificate"
            raise ConfigError(f"{prefix}tls.{text}", hint)
