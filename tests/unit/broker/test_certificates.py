"""Certificates that can't be used, and the errors; changes of files that are noticed; the names in certificates."""

from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from flockmq._speedups.net.ticket_keys import TicketKeyRing
from flockmq._speedups.net.tls import TlsContext, TlsError
from flockmq.broker.auth.access_control import AccessControl
from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Verdict
from flockmq.broker.config.load import load
from flockmq.broker.config.schema import Config
from flockmq.broker.errors import ConfigError
from flockmq.broker.listeners import certificates
from tests.harness.certificates import Authority
from tests.security.access_files import quick_hash


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def settings(authority: Authority, **tls: object) -> dict[str, object]:
    pair = authority.server()
    keys = {"certificate": pair.cert, "key": pair.key, **tls}
    return {"listen": "mqtts://127.0.0.1:0", **{f"tls.{key}": str(value) for key, value in keys.items()}}


def config(authority: Authority, **tls: object) -> Config:
    return load(settings(authority, **tls), {})


def context(config: Config) -> TlsContext | None:
    """Of the first listener."""
    return certificates.load(config.listeners[0], TicketKeyRing())


@pytest.mark.parametrize(
    ("key", "content", "words"),
    [
        ("certificate", None, "can't read .*: No such file or directory; FlockMQ must be able to read it"),
        ("certificate", b"nothing", "has no certificate in PEM format"),
        ("key", None, "No such file"),
        ("key", b"nothing", "has no private key that can be read without a password"),
        ("key", "encrypted", "has no private key that can be read without a password"),
        ("key", "other", "is not the key of"),
        ("client_ca", None, "No such file"),
        ("client_ca", b"nothing", "has no certificates in PEM format"),
        ("client_crl", b"nothing", "has no list of revoked certificates in PEM format"),
        ("certificates", b"nothing", "has no certificate in PEM format"),
        ("certificates", None, "No such file"),
    ],
)
def test_what_is_refused(
    authority: Authority, tmp_path: Path, key: str, content: bytes | str | None, words: str
) -> None:
    path = tmp_path / "file.pem"
    other = authority.server("other")
    if content == "encrypted":
        scheme = BestAvailableEncryption(b"secret")
        content = other.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, scheme)
    elif content == "other":
        content = Path(other.key).read_bytes()
    if isinstance(content, bytes):
        path.write_bytes(content)
        path.chmod(0o600)
    more = {"client_ca": authority.ca, "client_certificate": "optional"} if key.startswith("client") else {}
    with pytest.raises(ConfigError, match=words):
        context(config(authority, **{**more, key: str(path)}))


def test_a_key_that_others_can_read(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    pair = authority.server("readable")
    Path(pair.key).chmod(0o604)
    assert context(config(authority, certificate=pair.cert, key=pair.key)) is not None
    assert "every user of this machine can read a private key" in caplog.text


def test_without_tls_nothing_is_read() -> None:
    assert context(load({"tls.certificate": "/none"}, {})) is None


def test_changes_are_seen(authority: Authority, tmp_path: Path) -> None:
    place = tmp_path / "more"
    place.mkdir()
    tls = config(authority, certificates=str(place)).listeners[0].tls
    seen = [certificates.state(tls)]
    file = place / "a.pem"
    file.write_bytes(authority.server("a").both())
    seen.append(certificates.state(tls))
    file.write_bytes(authority.server("b").both() + b"\n")
    seen.append(certificates.state(tls))
    file.unlink()
    assert certificates.state(tls) == seen[0]
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize("name", ["client_ca", "client_crl"])
def test_a_file_that_is_gone_when_it_is_read(authority: Authority, name: str) -> None:
    pair = authority.server("gone")
    with pytest.raises(TlsError, match="/none can't be read: No such file or directory"):
        TlsContext(pair.cert, pair.key, **{"client_ca": authority.ca, name: "/none"})  # type: ignore[arg-type]


def test_one_that_has_expired(authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context(config(authority))
    assert "expired" not in caplog.text
    old = authority.server("old", days=-1)
    (tmp_path / "old.pem").write_bytes(old.both())
    assert context(config(authority, certificates=str(tmp_path))) is not None
    assert "a certificate has expired: clients refuse it" in caplog.text


def test_the_first_to_expire(authority: Authority, tmp_path: Path) -> None:
    soon = authority.server("soon", days=3)
    (tmp_path / "soon.pem").write_bytes(soon.both())
    found = context(config(authority, certificates=str(tmp_path)))
    assert found is not None
    assert found.expires == int(soon.certificate.not_valid_after_utc.timestamp())


@pytest.mark.parametrize(
    ("username", "password"), [("admin", b"admin"), ("admin", b"wrong"), ("lamp", None), (None, None)]
)
def test_a_client_certificate_names_the_user_whatever_connect_says(
    authority: Authority, tmp_path: Path, username: str | None, password: bytes | None
) -> None:
    users = tmp_path / "users"
    users.write_text(f"admin:{quick_hash('admin')}\n")
    strict = {"client_ca": authority.ca, "client_certificate": "optional", "username_from": "cn"}
    access = AccessControl(
        load({**settings(authority, **strict), "auth.password_file": str(users)}, {}), cast(Any, None)
    )
    sent = Credentials("id", username, password, "127.0.0.1:1", 4, certificate="lamp")
    verdict = access.authenticate(sent)
    access.close()
    assert isinstance(verdict, Verdict)
    assert verdict.code == ReasonCode.ACCEPTED
    assert (verdict.identity.username, verdict.identity.method) == ("lamp", "certificate")
