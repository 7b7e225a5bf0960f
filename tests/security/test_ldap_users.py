"""Users in a directory: a real slapd, what attackers send, and groups that become roles."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from flockmq.broker.auth.access_control import AccessControl
from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Verdict
from flockmq.broker.auth.back_end import MAX_FAILURES
from flockmq.broker.auth.chain import Chain
from flockmq.broker.auth.chain_builder import LDAP_THREADS, MAX_WAITING
from flockmq.broker.auth.password_file import PasswordFile
from flockmq.broker.auth.verifier import Verifier
from flockmq.broker.auth.work_pool import Busy, WorkPool
from flockmq.broker.config.ldap_roles import LdapRole
from flockmq.broker.config.load import load
from flockmq.broker.errors import ConfigError
from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.certificates import Authority
from tests.harness.ldap_process import ADMIN, GROUPS, PASSWORD, PEOPLE, LdapProcess
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, UNAVAILABLE, WRONG, AccessFiles, refused
from tests.security.one_method import ask, code, connects, let_in, run

ldap_users = pytest.importorskip("flockmq.broker.auth.ldap_users")

T = TypeVar("T")
ACCEPTED, BAD, AWAY = ReasonCode.SUCCESS, ReasonCode.BAD_USERNAME_OR_PASSWORD, ReasonCode.SERVER_UNAVAILABLE
NORMAL, DISABLED = "512", "514"  # of userAccountControl


@pytest.fixture
def store() -> str:
    return "memory"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def directory(authority: Authority) -> Iterator[LdapProcess]:
    """Ada and bob, whose passwords are their names; ada is of the group operators."""
    server = LdapProcess(authority.server("slapd"))
    try:
        server.start()
        server.fill()
        ada = server.user("ada", o=["acme"])
        server.user("bob", objectClass=["inetOrgPerson", "user"], sAMAccountName="Bob", userAccountControl=NORMAL)
        server.user("eve", objectClass=["inetOrgPerson", "user"], sAMAccountName="Eve", userAccountControl=DISABLED)
        server.user("two", uid=["two", "second"], o=["acme", "globex"])
        inner = server.group("operators, all", ada)
        server.group("everybody", inner, f"uid=bob,{PEOPLE}")
        yield server
    finally:
        server.close()


def settings(directory: LdapProcess, authority: Authority, tmp_path: Path, **more: object) -> dict[str, object]:
    """The settings of a broker that uses the directory, by StartTLS."""
    path = tmp_path / "bind-password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    found: dict[str, object] = {"ldap_url": directory.url, "ldap_base": PEOPLE, "ldap_bind_dn": ADMIN}
    found |= {"ldap_password_file": path, "ldap_ca_file": authority.ca, "failure_delay": 0, **more}
    return {f"auth.{name}": value for name, value in found.items()}


class Method:
    """The authentication method by itself, within the test's process."""

    def __init__(self, directory: LdapProcess, **more: Any) -> None:
        found: dict[str, Any] = {"url": directory.socket_url, "base": PEOPLE, "bind_dn": ADMIN, "password": PASSWORD}
        found |= {"timeout": 30.0, **more}
        self.pool = WorkPool("ldap", LDAP_THREADS, MAX_WAITING)
        self.users = ldap_users.LdapUsers(ldap_users.LdapSettings(**found), self.pool)

    async def ask(self, username: str | None, password: bytes | None = None, client_id: str = "c") -> Verdict | None:
        """The verdict over a client; its password is its name unless another is given."""
        return await ask(self.users, username, password, client_id)

    def __enter__(self) -> "Method":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.users.close()


# ---- at a broker ----


def test_a_broker_asks_the_directory(
    directory: LdapProcess, authority: Authority, tmp_path: Path, start_broker: StartBroker
) -> None:
    broker = start_broker(settings(directory, authority, tmp_path))
    let_in(broker, "ada").close()
    refused(broker, "user=ada pass=wrong", WRONG)
    refused(broker, "user=ada", WRONG)
    refused(broker, "user=ada pass=", WRONG)
    refused(broker, "user=nobody pass=nobody", WRONG)
    refused(broker, "user= pass=ada", WRONG)
    refused(broker, "user=eve pass=wrong", WRONG)
    refused(broker, "user=eve pass=eve", NOT_AUTHORIZED)
    refused(broker, "", NOT_AUTHORIZED)
    assert PASSWORD not in broker.log_text()


def test_a_directory_that_goes_away_and_returns(
    directory: LdapProcess, authority: Authority, tmp_path: Path, start_broker: StartBroker
) -> None:
    broker = start_broker(settings(directory, authority, tmp_path, ldap_remember=0))
    let_in(broker, "ada").close()
    try:
        directory.kill()
        refused(broker, "user=ada pass=ada", UNAVAILABLE)
        refused(broker, "user=nobody pass=nobody", UNAVAILABLE)
        directory.start()
        let_in(broker, "ada").close()
        directory.kill()
    finally:
        directory.start()
    let_in(broker, "ada").close()  # both connections of before have died unnoticed
    refused(broker, "user=ada pass=wrong", WRONG)


def test_a_silent_directory_holds_up_nobody_else(
    directory: LdapProcess, authority: Authority, tmp_path: Path, start_broker: StartBroker
) -> None:
    more = {"ldap_remember": 0, "ldap_timeout": 0.2, "allow_anonymous": True, "ldap_start_tls": False}
    broker = start_broker(settings(directory, authority, tmp_path, **more))
    until(lambda: connects(broker), "the directory replies")  # in time, on a busy machine
    assert directory._process is not None
    process = directory._process.pid
    os.kill(process, signal.SIGSTOP)
    until(lambda: all(is_stopped(thread) for thread in Path(f"/proc/{process}/task").iterdir()), "it is stopped")
    try:
        with Wire(broker.port, name="waits") as waits, Wire(broker.port, name="other") as other:
            waits.send("connect user=ada pass=ada")
            other.connect().subscribe("a:1")
            for number in range(50):
                other.send(f"publish a x q1 id={number + 1}")
                assert all(other.packet() for _ in range(2))
            waits.expect(f"connack {UNAVAILABLE}", None)
        for number in range(MAX_FAILURES + 2):
            refused(broker, "user=ada pass=ada", UNAVAILABLE, f"c{number}")
        failures = [line["failures"] for line in broker.log if line["event"] == "authentication back end failed"]
        assert failures[-1] == max(failures) == MAX_FAILURES, "then it is left alone"
    finally:
        os.kill(process, signal.SIGCONT)
    until(lambda: connects(broker), "it is asked again")


def is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"ldap_base": ""}, r"auth\.ldap_base"),
        ({"ldap_filter": "(uid=ada)"}, "username"),
        ({"ldap_filter": "uid=${username}"}, r'such as "\(uid='),
        ({"ldap_filter": "(uid=${usernam})"}, "did you mean username"),
        ({"ldap_group_filter": "(member=${password})"}, "placeholders"),
        ({"ldap_password_file": ""}, "one is missing"),
        ({"ldap_password_file": "/dev/null"}, "is empty"),
        ({"ldap_url": "ldap://a ldaps://b"}, "mixes schemes"),
        ({"ldap_url": "http://a"}, "a URL such as"),
        ({"ldap_ca_file": "/nowhere.pem"}, "ldap_ca_file"),
        ({"ldap_roles": '[{"group": "cn=a,,b", "role": "x"}]'}, "no distinguished name"),
        ({"ldap_roles": '[{"group": "operators", "role": "x"}]'}, "the distinguished name of a group"),
        ({"ldap_roles": '[{"group": "*"}]'}, "tables such as"),
    ],
)
def test_a_node_that_could_find_nobody_does_not_start(more: dict[str, str], fault: str, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("hush")
    found = {"ldap_url": "ldap://127.0.0.1:1", "ldap_base": PEOPLE, "ldap_bind_dn": ADMIN, **more}
    found.setdefault("ldap_password_file", str(path))
    with pytest.raises(ConfigError, match=fault):
        AccessControl(load({f"auth.{name}": value for name, value in found.items()}, {}), cast(Any, None)).close()


# ---- attackers ----


def test_no_name_is_part_of_a_filter(directory: LdapProcess) -> None:
    names = ["*", "a*", "ada)(uid=*", "*)(uid=*))(|(uid=*", "ada)(|(uid=bob)", "\\2a", "\\", "(", ")", "&", "|", "!"]
    names += ["x" * 60_000, "ada\n", "\U0001f600", "uid=ada", "ada,ou=people", "#", "${dn}"]
    with Method(directory, filter="(&(uid=${username})(!(cn=${client_id})))", remember=0) as method:
        for name in names:
            assert code(run(method.ask(name, b"ada"))) is None, name
            assert code(run(method.ask("ada", b"ada", name))) == ACCEPTED, name
        assert run(method.ask("ada", b"ada", "ada")) is None


def test_a_user_may_have_any_name(directory: LdapProcess) -> None:
    names = ["a*b", "a(b)", "a\\b", "m\u00fcller"]
    with Method(directory, filter="(&(cn=${username})(sn=odd))", username="cn") as method:
        for number, name in enumerate(names):
            directory.user(f"odd-{number}", f"password {number}", cn=name, sn="odd")
        for number, name in enumerate(names):
            assert code(run(method.ask(name, f"password {number}".encode()))) == ACCEPTED
            assert code(run(method.ask(name, b"password 9"))) == BAD


@pytest.mark.parametrize("password", [b"", b"\0", b"\0ada", b"ada\0", b"ada\0x", b"\xff", b"x" * 65_535])
def test_no_password_that_is_cut_or_empty_is_sent(directory: LdapProcess, password: bytes) -> None:
    """A directory accepts any name with an empty password, as anonymous: slapd does with `bind_anon_cred`, too."""
    with Method(directory) as method:
        assert code(run(method.ask("ada", password))) == BAD
        assert run(method.ask("nobody", password)) is None


def test_an_unauthenticated_bind_that_the_directory_accepts() -> None:
    """As Active Directory does by default."""
    server = LdapProcess()
    try:
        server.options.append("allow bind_anon_cred bind_anon_dn")
        server.start()
        server.fill()
        server.user("ada")
        connection = server.connect()
        connection.simple_bind_s(f"uid=ada,{PEOPLE}", "")  # it does
        with Method(server) as method:
            for password in (b"", b"\0", b"\0ada"):
                assert code(run(method.ask("ada", password))) == BAD
            assert code(run(method.ask("ada"))) == ACCEPTED
    finally:
        server.close()


@pytest.mark.parametrize("name", ["a\0b", "ada\0", "\0", "\ud800", "ada\udc80", "", None])
def test_a_name_that_is_no_text_is_unknown(directory: LdapProcess, name: str | None) -> None:
    with Method(directory) as method:
        assert run(method.ask(name, b"ada")) is None


def test_an_unknown_user_costs_as_much_as_a_wrong_password(directory: LdapProcess) -> None:
    """The same requests: a search and a bind."""
    with Method(directory) as method:
        made: list[str] = []
        bind = ldap_users._bind

        def noted(connection: Any, dn: str, password: str) -> bool:
            made.append(dn)
            return bool(bind(connection, dn, password))

        ldap_users._bind = noted
        try:
            for name, password in (("ada", b"wrong"), ("nobody", b"wrong"), ("ada", b"")):
                run(method.ask(name, password))
        finally:
            ldap_users._bind = bind
        assert len(made) == 3 and made[0].startswith("uid=ada,")
        assert not made[1].startswith("uid") and not made[2].startswith("uid")


def test_an_unknown_user_costs_as_much_as_a_wrong_password_beside_a_file(
    directory: LdapProcess, tmp_path: Path
) -> None:
    """Otherwise a hash would tell which names the directory has."""
    files = AccessFiles(tmp_path)
    files.users("fay")
    verifier = Verifier()
    with Method(directory) as method:
        chain = Chain([PasswordFile(str(files.passwords), verifier), method.users], verifier, anonymous=False)

        async def cost(name: str) -> int:
            before = verifier.verifications
            verdict = chain.authenticate(Credentials("c", name, b"wrong", "192.0.2.1", 5))
            assert not isinstance(verdict, Verdict) and (await verdict).code == BAD
            return verifier.verifications - before

        assert [run(cost(name)) for name in ("fay", "ada", "nobody")] == [1, 1, 1]
    verifier.close()


def test_more_clients_than_may_wait(directory: LdapProcess) -> None:
    async def storm() -> None:
        with Method(directory, remember=0) as method:
            names = [("ada", b"ada"), ("ada", b"wrong"), ("nobody", b"x")]
            asked = (method.ask(*names[number % 3]) for number in range(1000))
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(isinstance(each, Busy) for each in found) <= 1000 - MAX_WAITING
            wanted = [ACCEPTED, BAD, None]
            for number, each in enumerate(found):
                assert isinstance(each, Busy) or code(each) == wanted[number % 3]  # type: ignore[arg-type]

    run(storm())


# ---- what is remembered, and what follows from an entry ----


def test_a_right_password_is_remembered_and_no_wrong_one(directory: LdapProcess) -> None:
    directory.user("fay")
    with Method(directory) as method:
        assert code(run(method.ask("fay", b"wrong"))) == BAD
        assert code(run(method.ask("fay"))) == ACCEPTED
        directory.connect().delete_s(f"uid=fay,{PEOPLE}")
        found = method.users.authenticate(Credentials("c", "fay", b"fay", "192.0.2.1", 5))
        assert isinstance(found, Verdict) and found.code == ACCEPTED, "no request is made"
        assert run(method.ask("fay", b"wrong")) is None


def test_groups_become_roles(directory: LdapProcess) -> None:
    """By the attribute, in whatever form the name of the group is written; by a search, also of a group in a group."""
    operators = LdapRole(f"CN=Operators\\, all, {GROUPS.upper()}", "operator")
    everybody, all_of_them = LdapRole(f"cn=everybody,{GROUPS}", "member"), LdapRole("*", "user")
    other = LdapRole(f"cn=operators,{GROUPS}", "other")
    found = {"roles": (operators, everybody, all_of_them, other)}

    def roles(name: str, **more: Any) -> tuple[str, ...]:
        with Method(directory, **found, **more) as method:
            verdict = run(method.ask(name))
        assert verdict is not None and verdict.code == ACCEPTED
        return verdict.identity.roles

    assert roles("ada") == ("operator", "user")
    assert roles("bob") == ("member", "user")
    assert roles("ada", group_attribute="") == ("user",)
    searched: dict[str, Any] = {"group_attribute": "", "group_base": GROUPS}
    assert roles("ada", **searched) == ("operator", "user")
    assert roles("bob", **searched) == ("member", "user")
    nobody = "(&(cn=none)(member=${dn}))"
    assert roles("bob", **searched, group_filter=nobody) == ("user",)


def test_the_name_is_the_entrys(directory: LdapProcess) -> None:
    """A directory compares without case: ADA is ada, with one name for rules, quotas and bans."""
    with Method(directory) as method:
        for name, own in (("ADA", "ada"), ("ada", "ada"), ("SECOND", "second")):
            verdict = run(method.ask(name, b"two" if own == "second" else b"ada"))
            assert verdict is not None and verdict.identity.username == own
    with Method(directory, filter="(sAMAccountName=${username})", username="sAMAccountName") as method:
        verdict = run(method.ask("BOB", b"bob"))
        assert verdict is not None and verdict.identity.username == "Bob"
        assert code(run(method.ask("eve", b"eve"))) == ReasonCode.NOT_AUTHORIZED
        assert code(run(method.ask("eve", b"wrong"))) == BAD


def test_attributes_become_claims(directory: LdapProcess, caplog: pytest.LogCaptureFixture) -> None:
    with Method(directory, claims=("o", "ou")) as method:
        verdict = run(method.ask("ada"))
        assert verdict is not None and verdict.identity.claims == (("o", "acme"),)
        verdict = run(method.ask("bob"))
        assert verdict is not None and verdict.identity.claims == ()
        assert code(run(method.ask("two"))) == AWAY, "of which tenant is it?"
    assert "several values of 'o'" in str(caplog.records[-1].__dict__["values"]["error"])


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"filter": "(|(uid=${username})(uid=*))"}, "more than 2|several entries"),
        ({"base": "ou=none,dc=example,dc=org"}, "No such object"),
        ({"username": "mail"}, "no attribute 'mail'"),
        ({"password": "wrong"}, "can't bind"),
        ({"url": "ldapi://%2Fnowhere"}, "Can't contact"),
    ],
)
def test_a_wrong_configuration_lets_in_nobody(
    directory: LdapProcess, more: dict[str, Any], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Method(directory, **more) as method:
        assert code(run(method.ask("ada"))) == AWAY
    shown = str(caplog.records[-1].__dict__["values"]["error"])
    assert re.search(fault, shown) and PASSWORD not in shown


# ---- TLS ----


def test_tls_to_a_directory(directory: LdapProcess, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other").ca
    for url, ca, start_tls, wanted in (
        (directory.url, authority.ca, True, ACCEPTED),
        (directory.tls_url, authority.ca, True, ACCEPTED),
        (directory.url, other, True, AWAY),
        (directory.tls_url, other, True, AWAY),
        (directory.url, "", True, AWAY),
        (directory.url.replace("127.0.0.1", "127.0.0.2"), authority.ca, True, AWAY),
        (directory.url, "", False, ACCEPTED),
    ):
        with Method(directory, url=url, ca_file=ca, start_tls=start_tls) as method:
            assert code(run(method.ask("ada"))) == wanted, (url, ca, start_tls)


def test_a_server_without_tls_gets_no_password(authority: Authority) -> None:
    """Whoever sits between could refuse StartTLS."""
    server = LdapProcess()
    try:
        server.start()
        server.fill()
        server.user("ada")
        with Method(server, url=server.url, ca_file=authority.ca) as method:
            assert code(run(method.ask("ada"))) == AWAY
    finally:
        server.close()


def test_a_changed_password_of_the_bind_counts(
    directory: LdapProcess, authority: Authority, tmp_path: Path, start_broker: StartBroker
) -> None:
    """Without a restart: the method of before is closed, with its connections."""
    found = settings(directory, authority, tmp_path, ldap_remember=0)
    path = Path(str(found["auth.ldap_password_file"]))
    path.write_text("wrong\n")
    broker = start_broker(found)
    refused(broker, "user=ada pass=ada", UNAVAILABLE)
    path.write_text(PASSWORD)
    broker.wait_for_log("users and access rules were reloaded")
    let_in(broker, "ada").close()
