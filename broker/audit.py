"""Audit: the weaknesses of a configuration, each with its severity and its remedy.

A check is a function in `CHECKS` that yields findings. It reads the configuration and the files that it names, and
changes nothing. *bad*: an attacker has access. *weak*: one more fault gives access. *note*: for information.
"""

import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .auth import listener_exposure
from .auth.acl_file import AclFile
from .auth.listener_exposure import is_local
from .auth.methods import authenticates
from .auth.password_file import read_users
from .config.auth_config import AuthConfig
from .config.link import address_of
from .config.placeholders import Template
from .config.redis_url import RedisUrl, masked
from .config.schema import Config
from .config.sql_url import LOCAL, SqlUrl
from .errors import ConfigError

SEVERITIES = ("bad", "weak", "note")
MIN_ITERATIONS = 100_000  # of PBKDF2; Mosquitto's default is 101
REPEATED = ("pbkdf2", "scram-sha-256")  # schemes with PBKDF2
EXPIRES_SOON = 30  # days
MIN_KEY = 2048  # bits, of RSA
MAX_PACKET = 16 << 20
RETURNS_NAME = re.compile(r"\busername\b.*\bfrom\b", re.I | re.S)  # the column, before FROM
MAX_PENDING_SECONDS = 30.0
READABLE = (  # secrets in files
    *("auth.password_file", "auth.jwt_secret_file", "auth.sql_password_file", "auth.ldap_password_file"),
    "tls.key",
)


class Finding(NamedTuple):
    """A weakness."""

    severity: str
    where: str  # a configuration key, or a file
    what: str
    way_out: str


Findings = Iterator[Finding]


def audit(config: Config, file: str | None = None) -> list[Finding]:
    """All weaknesses, the worst first.

    Args:
        config: the effective configuration.
        file: of the configuration.
    """
    found = [finding for check in CHECKS for finding in check(config)]
    if file is not None and is_readable(file):
        secrets = {
            "the password of Redis": any(map(has_password, config.cluster.redis.split())),
            "the password of a link": any(link.password for link in config.links),
            "the password of a database": any(
                listener.auth.sql_url and SqlUrl.parse(listener.auth.sql_url).password for listener in config.listeners
            ),
        }
        found += [
            Finding("bad", file, f"holds {name}, and every user of this machine may read it", f"chmod 640 {file}")
            for name, is_there in secrets.items()
            if is_there
        ]
    return sorted(dict.fromkeys(found), key=lambda finding: SEVERITIES.index(finding.severity))


def is_readable(path: str) -> bool:
    """Whether every user of this machine may read a file; "" = there is none."""
    try:
        return bool(path) and bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def has_password(url: str) -> bool:
    """Whether the URL of a Redis has a password."""
    return bool(RedisUrl.parse(url).password)


def prefixed(name: str, key: str) -> str:
    """A key of a listener, as it stands in the configuration."""
    return key if name == "default" else f"listeners.{name}.{key}"


# ---- the checks ----


def connecting(config: Config) -> Findings:
    try:
        listener_exposure.check(config)
    except ConfigError as error:
        yield Finding("bad", "listen", f"{error.message}: the node will not start", error.hint)
    for listener, address in listener_exposure.reachable(config):
        key = prefixed(listener.name, "auth.allow_anonymous")
        if listener.auth.allow_anonymous:
            may = (
                "with the rights of anonymous clients in the ACL file"
                if listener.auth.acl_file
                else "and do everything"
            )
            yield Finding("bad", key, f"every client that reaches {address} may connect, {may}", f"{key} = false")
        if not listener_exposure.is_encrypted(address):
            where = prefixed(listener.name, "listen")
            yield Finding(
                "weak",
                where,
                f"traffic to {address} can be read and changed on its way, passwords too",
                "listen with TLS, or let only a load balancer that speaks TLS reach it",
            )


def rights(config: Config) -> Findings:
    for listener in config.listeners:
        key, auth = prefixed(listener.name, "auth.acl_file"), listener.auth
        if auth.acl_file:
            try:
                AclFile(auth.acl_file)
            except ConfigError as error:
                yield Finding("bad", key, f"{error.message}: the node will not start", error.hint)
        elif authenticates(listener):
            yield Finding(
                "weak",
                key,
                "users without rules of their own may publish and read everything",
                "write an ACL file",
            )
        if not auth.failure_delay and authenticates(listener):
            where = prefixed(listener.name, "auth.failure_delay")
            yield Finding("weak", where, "passwords can be guessed at full speed", 'set it to "500 ms"')


def secrets_in_files(config: Config) -> Findings:
    for listener in config.listeners:
        for key in READABLE:
            section, _, name = key.partition(".")
            path = str(getattr(getattr(listener, section), name))
            if path and is_readable(path):
                yield Finding(
                    "bad",
                    prefixed(listener.name, key),
                    f"every user of this machine may read {path}",
                    f"chmod 600 {path}",
                )
    kind, _, path = config.store.url.partition(":")
    if kind == "sqlite" and not config.cluster.redis and is_readable(path):
        yield Finding("bad", "store.url", f"every user of this machine may read {path}", f"chmod 600 {path}*")


def hashes(config: Config) -> Findings:
    for listener in config.listeners:
        if not listener.auth.password_file:
            continue
        key, path = prefixed(listener.name, "auth.password_file"), listener.auth.password_file
        faults: list[tuple[str, str]] = []
        try:
            users = read_users(path, lambda *fault, to=faults: to.append(fault)).values()
        except ConfigError as error:
            yield Finding("bad", key, f"{error.message}: the node will not start", error.hint)
            continue
        for where, fault in faults:
            yield Finding("weak", key, f"{where}: {fault}", "correct the line, or delete it")
        weak = sum(stored.scheme == "sha512" for stored in users)
        few = sum(stored.scheme in REPEATED and stored.iterations < MIN_ITERATIONS for stored in users)
        way_out = "set these passwords again: `flockmq passwd`"
        if weak:
            yield Finding(
                "bad",
                key,
                f"{weak} passwords are hashed once (sha512): easy to guess",
                way_out,
            )
        if few:
            yield Finding("weak", key, f"{few} passwords are hashed with few iterations (PBKDF2)", way_out)


def certificates(config: Config) -> Findings:
    for listener in config.listeners:
        path, key = listener.tls.certificate, prefixed(listener.name, "tls.certificate")
        if path:
            yield from _certificate(path, key)


def _certificate(path: str, key: str) -> Findings:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ModuleNotFoundError:
        yield Finding("note", key, "is not checked: a package is missing", "pip install 'flockmq[auth]'")
        return
    try:
        certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
        public = certificate.public_key()
    except (OSError, ValueError) as error:
        yield Finding("bad", key, f"{path} can't be read: {error}", "check path and permissions")
        return
    days = (certificate.not_valid_after_utc.timestamp() - time.time()) / 86_400
    if days < EXPIRES_SOON:
        when = "has expired" if days < 0 else f"expires in {days:.0f} days"
        yield Finding("bad" if days < 0 else "weak", key, f"{path} {when}", "renew it; the node reloads it by itself")
    if isinstance(public, rsa.RSAPublicKey) and public.key_size < MIN_KEY:
        yield Finding("bad", key, f"{path} has a key of {public.key_size} bits", f"make one of {MIN_KEY} or more")


def the_cluster(config: Config) -> Findings:
    for text in config.cluster.redis.split():
        url, key = RedisUrl.parse(text), "cluster.redis"
        if url.kind == "unix" or all(
            is_local(f"{host}:0" if ":" not in host else f"[{host}]:0") for host, _ in url.hosts
        ):
            continue
        if not has_password(text):
            yield Finding(
                "bad",
                key,
                f"{url} has no password: every host that reaches it can read all messages and all users",
                "requirepass, and redis://:PASSWORD@HOST or ?password_file=FILE",
            )
        if not url.tls:
            yield Finding(
                "weak",
                key,
                f"traffic between nodes and {url} is not encrypted",
                "rediss:// if other hosts are on that network",
            )


def http(config: Config) -> Findings:
    for address in config.http.listen:
        if is_local(address.rpartition("//")[2]):
            if not config.http.tokens_file:
                yield Finding(
                    "weak",
                    "http.tokens_file",
                    f"every program of this machine may do everything at {address}, a proxy for all its clients too",
                    "`flockmq token FILE NAME --role admin`, and name the file",
                )
            continue
        if not config.http.metrics_token:
            yield Finding(
                "weak", "http.metrics_token", f"{address} shows metrics to all hosts that reach it", "set it to true"
            )
        if config.http.tokens_file and not address.startswith("https://"):
            yield Finding(
                "weak", "http.listen", f"tokens can be read on their way to {address}", f"set it to https://{address}"
            )
    if is_readable(config.http.tokens_file):
        yield Finding(
            "bad",
            "http.tokens_file",
            "every user of this machine may read the tokens' file",
            f"chmod 600 {config.http.tokens_file}",
        )
    for listener in config.listeners:
        url = listener.auth.http_url
        if url.startswith("http://") and not is_local(url.split("/")[2] + ("" if ":" in url[8:] else ":80")):
            yield Finding(
                "bad", prefixed(listener.name, "auth.http_url"), "passwords are sent to it unencrypted", "https://"
            )


def databases(config: Config) -> Findings:
    for listener in config.listeners:
        if listener.auth.sql_url:
            yield from _database(listener.auth, listener.name)


def _database(auth: AuthConfig, name: str) -> Findings:
    url, names = SqlUrl.parse(auth.sql_url), set(Template.parse(auth.sql_user_query).names)
    where, query = prefixed(name, "auth.sql_url"), prefixed(name, "auth.sql_user_query")
    if url.kind == "sqlite":
        if is_readable(url.database):
            what = f"every user of this machine may read {url.database}, with the hashes of all passwords"
            yield Finding("bad", where, what, f"chmod 600 {url.database}")
    elif not url.is_local and not url.is_verified:
        what = f"hashes and rules from {masked(auth.sql_url)} can be read and changed on their way"
        yield Finding("bad", where, what, "sslmode=verify-full, or verify=full for MySQL")
    if "username" not in names:
        what = "users are found by their client identifiers alone, which are no secrets, and often printed on devices"
        yield Finding("weak", query, what, "WHERE username = ${username}")
    elif url.kind == "mysql" and not RETURNS_NAME.search(auth.sql_user_query):
        what = "MySQL compares without case and spaces at the end: one user may have several names, for bans and quotas"
        yield Finding("weak", query, what, "SELECT username, password_hash, ...")


def directories(config: Config) -> Findings:
    for listener in config.listeners:
        auth = listener.auth
        for url in auth.ldap_url.split():
            host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
            host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if url.startswith("ldap:") and not auth.ldap_start_tls and not (host in LOCAL or host.startswith("127.")):
                where = prefixed(listener.name, "auth.ldap_start_tls")
                yield Finding("bad", where, f"passwords are sent to {url} unencrypted", f"{where} = true, or ldaps://")
        if auth.ldap_url and not auth.ldap_bind_dn:
            where = prefixed(listener.name, "auth.ldap_bind_dn")
            yield Finding("note", where, "users are looked up without authentication", "name an entry that may search")


def links(config: Config) -> Findings:
    for link in config.links:
        where = f"links.{link.name}"
        for url in link.url:
            scheme, host, port = address_of(url)
            if scheme in ("mqtt", "ws") and not is_local(f"{f'[{host}]' if ':' in host else host}:{port}"):
                text = "can be read and changed on its way" + (", the password too" if link.username else "")
                yield Finding("weak", where, f"traffic to {url} {text}", f"url = {scheme}s://{host}...")
        if link.insecure:
            yield Finding("weak", where, "any certificate of a known authority is accepted", "insecure = false")
        for path in filter(is_readable, (link.password_file, link.key)):
            yield Finding("bad", where, f"every user of this machine may read {path}", f"chmod 600 {path}")


def limits(config: Config) -> Findings:
    if not any(listener_exposure.reachable(config)):
        return
    for listener, _ in listener_exposure.reachable(config):
        where = prefixed(listener.name, "quotas.max_connections_per_address")
        if not listener.quotas.max_connections_per_address:
            yield Finding(
                "weak", where, "one peer may take all connections", "set it to the clients behind one address"
            )
    if config.limits.connect_timeout > MAX_PENDING_SECONDS:
        yield Finding(
            "weak", "limits.connect_timeout", "connections without CONNECT stay open for long", 'set it to "10 s"'
        )
    if config.limits.max_packet_size > MAX_PACKET:
        yield Finding(
            "weak", "limits.max_packet_size", "every client may make the node hold such a packet", 'set it to "2 MiB"'
        )
    if not config.limits.max_keep_alive:
        yield Finding(
            "note", "limits.max_keep_alive", "dead clients without keep alive are never noticed", 'set it to "1 h"'
        )
    if not config.quotas.flapping:
        yield Finding(
            "note", "quotas.flapping", "clients that reconnect in a loop are not refused", 'set it to "15 in 60 s"'
        )
    if not config.mqtt.session_expiry:
        yield Finding("note", "mqtt.session_expiry", "abandoned sessions never expire", 'set it to "30 d"')


CHECKS: tuple[Callable[[Config], Findings], ...] = (
    connecting,
    rights,
    secrets_in_files,
    hashes,
    certificates,
    the_cluster,
    http,
    databases,
    directories,
    links,
    limits,
)
