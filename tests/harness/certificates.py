"""Certificates for tests: authorities that sign what a test needs, written as the PEM files that programs read."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES = ("localhost", "broker.example")


class Pair:
    """A certificate and its key, in files."""

    def __init__(self, directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey):
        self.certificate = certificate
        self.cert = str(directory / f"{name}.crt")
        self.key = str(directory / f"{name}.key")
        self.private = key
        Path(self.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        Path(self.key).chmod(0o600)
        Path(self.cert).write_bytes(certificate.public_bytes(Encoding.PEM))

    def both(self) -> bytes:
        """Certificate and key as one file has them."""
        return Path(self.cert).read_bytes() + Path(self.key).read_bytes()


class Authority:
    """Signs certificates, and takes them back.

    Args:
        directory: where all files go.
        name: of the authority, and of its files.
    """

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pair = Pair(directory, name, *self._make(self.name, None, ca=True))
        self.ca = self.pair.cert
        self._revoked: list[x509.Certificate] = []

    def server(self, name: str = "server", hosts: Sequence[str] = NAMES, *, days: float = 30) -> Pair:
        """A certificate for these host names, and 127.0.0.1."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        made = self._make(subject, self.pair, hosts=hosts, usage=ExtendedKeyUsageOID.SERVER_AUTH, days=days)
        return Pair(self.directory, name, *made)

    def client(self, *common_names: str, organization: str = "Fleet", days: float = 30) -> Pair:
        """A client's certificate with these common names."""
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)]
        attributes += [x509.NameAttribute(NameOID.COMMON_NAME, each) for each in common_names]
        made = self._make(x509.Name(attributes), self.pair, usage=ExtendedKeyUsageOID.CLIENT_AUTH, days=days)
        return Pair(self.directory, f"client-{len(list(self.directory.iterdir()))}", *made)

    def revoke(self, *pairs: Pair) -> str:
        """The path of the list of all that was revoked so far, and of these."""
        self._revoked += [pair.certificate for pair in pairs]
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(now - timedelta(days=1)).next_update(now + timedelta(days=1))
        for each in self._revoked:
            one = x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(now)
            builder = builder.add_revoked_certificate(one.build())
        path = self.directory / "revoked.pem"
        path.write_bytes(builder.sign(self.pair.private, SHA256()).public_bytes(Encoding.PEM))
        return str(path)

    def _make(
        self,
        subject: x509.Name,
        issuer: Pair | None,
        *,
        hosts: Sequence[str] = (),
        usage: x509.ObjectIdentifier | None = None,
        ca: bool = False,
        days: float = 30,
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=60)).not_valid_after(now + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
            names.append(x509.IPAddress(ip_address("127.0.0.1")))
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(issuer.private if issuer else key, SHA256()), key
