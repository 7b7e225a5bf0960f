"""The files that an imported configuration names: whether they can be read, and how much is in them."""

import ssl
from collections.abc import Callable, Iterator
from functools import partial

from ...broker.auth.acl_file import AclFile, read_text
from ...broker.auth.password_file import read_users
from ...broker.config.mosquitto import Loss
from ...broker.config.schema import Config
from ...broker.errors import ConfigError, reason_of

Look = Callable[[str], Iterator[str]]  # the contents of a file, then the faults of its lines


def reports(config: Config, losses: list[Loss]) -> Iterator[tuple[str, bool]]:
    """Sentences about the files, and whether each is a warning."""
    for (path, purpose), look in _files(config, losses).items():
        try:
            contents, *faults = look(path)
        except ConfigError as error:
            yield error.message, True
        except OSError as error:  # of OpenSSL, too
            yield f"{path} can't be used as {purpose}: {reason_of(error)}", True
        else:
            yield f"{path}: {contents}", False
            yield from ((fault, True) for fault in faults)


def _files(config: Config, losses: list[Loss]) -> dict[tuple[str, str], Look]:
    """Each file once, with its purpose."""
    found: dict[tuple[str, str], Look] = {(loss.value, loss.name): _keys for loss in losses if loss.name == "psk_file"}
    for listener in config.listeners:
        auth, tls = listener.auth, listener.tls
        found |= {
            (auth.password_file, "auth.password_file"): _users,
            (auth.acl_file, "auth.acl_file"): _rules,
            (tls.certificate, f"the certificate of {tls.key}"): partial(_certificate, tls.key),
            (tls.client_ca, "tls.client_ca"): partial(_count, "x509", "certificate"),
            (tls.client_crl, "tls.client_crl"): partial(_count, "crl", "revocation list"),
        }
    for link in config.links:
        found |= {
            (link.ca_file, "the ca_file of a link"): partial(_count, "x509", "certificate"),
            (link.certificate, f"the certificate of {link.key}"): partial(_certificate, link.key),
        }
    return {(path, purpose): look for (path, purpose), look in found.items() if path}


def _users(path: str) -> Iterator[str]:
    faults: list[str] = []
    users = read_users(path, lambda where, fault: faults.append(f"{where}: {fault}"))
    yield from (_number(len(users), "user"), *faults)


def _rules(path: str) -> Iterator[str]:
    yield _number(AclFile(path).size, "rule")


def _keys(path: str) -> Iterator[str]:
    lines = read_text(path, "psk_file", errors="replace").splitlines()
    yield _number(sum(":" in line and not line.startswith("#") for line in lines), "pre-shared key")


def _certificate(key: str, path: str) -> Iterator[str]:
    with open(path, "rb"), open(key, "rb"):  # OpenSSL does not say which one is missing
        pass
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, key, password=lambda: b"")
    yield f"a certificate; {key} has its key"


def _count(kind: str, name: str, path: str) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(path)
    yield _number(context.cert_store_stats()[kind], name)


def _number(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"
