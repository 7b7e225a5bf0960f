"""A real slapd in a directory, with the users and groups of a test."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import ldap
import ldap.dn
import ldap.modlist

from tests.harness.certificates import Pair
from tests.harness.database_processes import DatabaseProcess
from tests.harness.ports import free_port

BASE = "dc=example,dc=org"
ADMIN, PASSWORD = f"cn=admin,{BASE}", "the directory's"
PEOPLE, GROUPS = f"ou=people,{BASE}", f"ou=groups,{BASE}"
SCHEMAS = ("core", "cosine", "inetorgperson")
TEXT, NUMBER = "1.3.6.1.4.1.1466.115.121.1.15", "1.3.6.1.4.1.1466.115.121.1.27"
# Two attributes as Active Directory has them, for entries of inetOrgPerson.
ACTIVE_DIRECTORY = (
    f"attributetype ( 1.2.840.113556.1.4.221 NAME 'sAMAccountName' EQUALITY caseIgnoreMatch SYNTAX {TEXT} )",
    f"attributetype ( 1.2.840.113556.1.4.8 NAME 'userAccountControl' EQUALITY integerMatch SYNTAX {NUMBER} )",
    "objectclass ( 1.2.840.113556.1.5.9 NAME 'user' SUP top AUXILIARY MAY ( sAMAccountName $ userAccountControl ) )",
)


class LdapProcess(DatabaseProcess):
    """A slapd with overlay memberof and the attributes of Active Directory.

    Args:
        certificate: for ldaps:// and StartTLS.
    """

    def __init__(self, certificate: Pair | None = None) -> None:
        super().__init__()
        self.port, self.tls_port = free_port(), free_port()
        self._certificate = certificate
        self.options: list[str] = []  # further lines of its configuration
        self.socket_url = f"ldapi://{quote(f'{self.directory}/socket', safe='')}"
        self.url = f"ldap://127.0.0.1:{self.port}"
        self.tls_url = f"ldaps://127.0.0.1:{self.tls_port}"  # libldap would compare localhost with the host's name

    def command(self) -> list[str]:
        (self.directory / "data").mkdir(exist_ok=True)
        lines = [f"include /etc/ldap/schema/{name}.schema" for name in SCHEMAS]
        lines += [*ACTIVE_DIRECTORY, "modulepath /usr/lib/ldap", "moduleload back_mdb", "moduleload memberof"]
        if self._certificate is not None:
            lines += [f"TLSCertificateFile {self._certificate.cert}", f"TLSCertificateKeyFile {self._certificate.key}"]
        lines += [*self.options, "database mdb", f'suffix "{BASE}"', f'rootdn "{ADMIN}"', f'rootpw "{PASSWORD}"']
        lines += [f"directory {self.directory}/data", "dbnosync", "index uid eq", "overlay memberof"]
        lines += ["memberof-refint true", "access to attrs=userPassword by anonymous auth by * none"]
        lines += ["access to * by users read by anonymous auth"]
        path = self.directory / "slapd.conf"
        path.write_text("\n".join(lines) + "\n")
        urls = [f"{self.url}/", f"{self.socket_url}/"] + ([f"{self.tls_url}/"] if self._certificate else [])
        program = shutil.which("slapd", path=f"{os.environ['PATH']}:/usr/sbin") or "slapd"
        return [program, "-f", str(path), "-h", " ".join(urls), "-d", "0"]

    def accepts(self) -> bool:
        try:
            self.connect()
        except ldap.SERVER_DOWN:
            return False
        return True

    def connect(self) -> Any:
        """A connection of the administrator."""
        connection = ldap.initialize(self.socket_url)
        connection.simple_bind_s(ADMIN, PASSWORD)
        return connection

    def fill(self) -> None:
        """Make the base, and the folders of people and groups."""
        self.add(BASE, objectClass=["dcObject", "organization"], dc="example", o="Example")
        for folder in (PEOPLE, GROUPS):
            self.add(folder, objectClass="organizationalUnit")

    def add(self, dn: str, **attributes: str | Sequence[str]) -> str:
        """Add an entry; returns its name."""
        kind, value, _ = ldap.dn.str2dn(dn)[0][0]
        found: Mapping[str, str | Sequence[str]] = {kind: value, **attributes}
        encoded = {
            name: [each.encode() for each in ([texts] if isinstance(texts, str) else texts)]
            for name, texts in found.items()
        }
        self.connect().add_s(dn, ldap.modlist.addModlist(encoded))
        return dn

    def user(self, name: str, password: str = "", **attributes: str | Sequence[str]) -> str:
        """Add a user, whose password is its name unless another is given; returns its name."""
        person: dict[str, str | Sequence[str]] = {"objectClass": "inetOrgPerson", "cn": name, "sn": name}
        return self.add(f"uid={name},{PEOPLE}", **{**person, "userPassword": password or name, **attributes})

    def group(self, name: str, *members: str) -> str:
        """Add a group; returns its name."""
        return self.add(
            f"cn={ldap.dn.escape_dn_chars(name)},{GROUPS}", objectClass="groupOfNames", member=list(members)
        )
