"""What is weak in a configuration: one finding each, how bad it is, and the way out.

A check is a function in `CHECKS` that yields findings. It reads the configuration and the files that it names, and
changes nothing. *bad*: somebody may do what nobody wanted. *weak*: one thing more has to go wrong first. *note*: worth
knowing.
"""

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker.auth import exposure
from broker.auth.acl_file import AclFile
from broker.auth.exposure import is_local
from broker.auth.password_file import read_users
from broker.config.redis_url import RedisUrl
from broker.config.schema import Config
from broker.errors import ConfigError

SEVERITIES = ("bad", "weak", "note")
ITERATIONS_LEAST = 100_000  # of PBKDF2; Mosquitto's default is 101
EXPIRES_SOON = 30  # days
KEY_LEAST = 2048  # bits, of RSA
PACKET_MOST = 16 << 20
PENDING_SECONDS_MOST = 30.0
READABLE = ("auth.password_file", "auth.jwt_secret_file", "tls.key")  # secrets in files


class Finding(NamedTuple):
    """Something weak."""

    severity: str
    where: str  # a configuration key, or a file
    what: str
    way_out: str


Findings = Iterator[Finding]


def audit(config: Config, file: str | None = None) -> list[Finding]:
    """All that is weak, the worst first.

    Args:
        config: the effective configuration.
        file: that it was read from.
    """
    found = [finding for check in CHECKS for finding in check(config)]
    if file is not None and is_readable(file) and has_password(config.cluster.redis):
        found.append(
            Finding(
                "bad",
                file,
                "has the password of Redis in it, and every user of this machine may read it",
                f"chmod 640 {file}",
            )
        )
    return sorted(dict.fromkeys(found), key=lambda finding: SEVERITIES.index(finding.severity))


def is_readable(path: str) -> bool:
    """Whether every user of this machine may read a file; "" = there is none."""
    try:
        return bool(path) and bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def has_password(url: str) -> bool:
    """Whether the URL of a Redis, if there is one, says a password."""
    return bool(url) and bool(RedisUrl.parse(url).password)


def prefixed(name: str, key: str) -> str:
    """A key of a listener, as it stands in the configuration."""
    return key if name == "default" else f"listeners.{name}.{key}"


# ---- the checks ----


def who_may_connect(config: Config) -> Findings:
    try:
        exposure.check(config)
    except ConfigError as error:
        yield Finding("bad", "listen", f"{error.message}: the node will not start", error.hint)
    for listener, address in exposure.reachable(config):
        key = prefixed(listener.name, "auth.allow_anonymous")
        if listener.auth.allow_anonymous:
            may = "what the ACL file lets anonymous clients do" if listener.auth.acl_file else "and do everything"
            yield Finding("bad", key, f"anybody who reaches {address} may connect, {may}", f"{key} = false")
        if not exposure.is_encrypted(address):
            where = prefixed(listener.name, "listen")
            yield Finding(
                "weak",
                where,
                f"what passes {address} can be read and changed on its way, passwords too",
                "listen with TLS, or let only a load balancer that speaks TLS reach it",
            )


def what_they_may_do(config: Config) -> Findings:
    for listener in config.listeners:
        key, auth = prefixed(listener.name, "auth.acl_file"), listener.auth
        if auth.acl_file:
            try:
                AclFile(auth.acl_file)
            except ConfigError as error:
                yield Finding("bad", key, f"{error.message}: the node will not start", error.hint)
        elif exposure.authenticates(listener):
            yield Finding(
                "weak",
                key,
                "users without rules of their own may publish and read everything",
                "write down who may do what in an ACL file",
            )
        if not auth.failure_delay and exposure.authenticates(listener):
            where = prefixed(listener.name, "auth.failure_delay")
            yield Finding("weak", where, "passwords can be guessed at full speed", '"500 ms"')


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
        try:
            users = read_users(path).values()
        except ConfigError as error:
            yield Finding("bad", key, f"{error.message}: the node will not start", error.hint)
            continue
        weak = sum(stored.scheme == "sha512" for stored in users)
        few = sum(stored.scheme == "pbkdf2" and stored.iterations < ITERATIONS_LEAST for stored in users)
        way_out = "set these passwords anew: `flockmq passwd`"
        if weak:
            yield Finding("bad", key, f"{weak} passwords are hashed once (sha512), and soon found by a thief", way_out)
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
        yield Finding("note", key, "is not looked at: a package is missing", "pip install 'flockmq[auth]'")
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
        yield Finding("bad" if days < 0 else "weak", key, f"{path} {when}", "renew it; the node reads it by itself")
    if isinstance(public, rsa.RSAPublicKey) and public.key_size < KEY_LEAST:
        yield Finding("bad", key, f"{path} has a key of {public.key_size} bits", f"make one of {KEY_LEAST} or more")


def the_cluster(config: Config) -> Findings:
    if not config.cluster.redis:
        return
    url = RedisUrl.parse(config.cluster.redis)
    if url.kind == "unix" or all(is_local(f"{host}:0" if ":" not in host else f"[{host}]:0") for host, _ in url.hosts):
        return
    key = "cluster.redis"
    if not has_password(config.cluster.redis):
        yield Finding(
            "bad",
            key,
            "Redis asks for no password: who reaches it has all messages and all users",
            "requirepass, and redis://:PASSWORD@HOST or ?password_file=FILE",
        )
    if not url.tls:
        yield Finding(
            "weak",
            key,
            "what nodes and Redis say to each other is not encrypted",
            "rediss:// if others are on that network",
        )


def http(config: Config) -> Findings:
    for address in config.http.listen:
        if is_local(address.rpartition("//")[2]):
            continue
        if not config.http.metrics_token:
            yield Finding("weak", "http.metrics_token", f"{address} tells figures to everybody who reaches it", "true")
        if config.http.tokens_file and not address.startswith("https://"):
            yield Finding("weak", "http.listen", f"tokens can be read on their way to {address}", f"https://{address}")
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


def limits(config: Config) -> Findings:
    if not any(exposure.reachable(config)):
        return
    for listener, _ in exposure.reachable(config):
        where = prefixed(listener.name, "quotas.max_connections_per_address")
        if not listener.quotas.max_connections_per_address:
            yield Finding("weak", where, "one peer may take all connections", "as many as come from behind one address")
    if config.limits.connect_timeout > PENDING_SECONDS_MOST:
        yield Finding("weak", "limits.connect_timeout", "who never says CONNECT is waited for for long", '"10 s"')
    if config.limits.max_packet_size > PACKET_MOST:
        yield Finding("weak", "limits.max_packet_size", "every client may make the node hold so much", '"2 MiB"')
    if not config.limits.max_keep_alive:
        yield Finding("note", "limits.max_keep_alive", "who has no keep alive and is gone is never noticed", '"1 h"')
    if not config.quotas.flapping:
        yield Finding("note", "quotas.flapping", "who comes back again and again is not held off", '"15 in 60 s"')
    if not config.mqtt.session_expiry:
        yield Finding("note", "mqtt.session_expiry", "sessions of who never comes back stay for ever", '"30 d"')


CHECKS: tuple[Callable[[Config], Findings], ...] = (
    who_may_connect,
    what_they_may_do,
    secrets_in_files,
    hashes,
    certificates,
    the_cluster,
    http,
    limits,
)
