"""`flockmq audit`: each weakness is found, with a way out, and good settings are not blamed."""

import json
from pathlib import Path

import pytest

from flockmq.broker.audit import SEVERITIES, Finding, audit
from flockmq.broker.auth.passwords import hash_password
from flockmq.broker.cli import main
from flockmq.broker.config.load import load
from tests.harness.certificates import Authority
from tests.security.access_files import quick_hash

FAR_SQL, FAR_MYSQL = "postgresql://u@10.0.0.5/mqtt", "mysql://u@10.0.0.5/mqtt"
NAMELESS = "SELECT password_hash FROM users WHERE username = ${username}"
QUERY = NAMELESS.replace("password_hash", "username, password_hash")
BY_CLIENT = "SELECT password_hash FROM users WHERE client = ${client_id}"
LDAP: dict[str, object] = {
    "auth__ldap_url": "ldap://10.0.0.5",
    "auth__ldap_base": "dc=example",
    "auth__ldap_bind_dn": "cn=reader,dc=example",
    "auth__ldap_password_file": "/nowhere",
}
PUBLIC: dict[str, object] = {"listen": "0.0.0.0:1883", "store.url": "memory"}


def found(severity: str = "", **settings: object) -> set[str]:
    """Where something of this severity, or of any, is found."""
    named = {name.replace("__", "."): str(value) for name, value in settings.items()}
    return {finding.where for finding in audit(load({**PUBLIC, **named}, env={})) if severity in ("", finding.severity)}


@pytest.fixture
def good(tmp_path: Path) -> dict[str, object]:
    """A configuration in which nothing is weak."""
    (tmp_path / "passwords").write_text("ada:" + hash_password(b"x").text + "\n")
    (tmp_path / "passwords").chmod(0o600)
    (tmp_path / "acl").write_text("user ada\ntopic readwrite #\n")
    pair = Authority(tmp_path / "ca").server(days=365)
    return {
        "listen": "mqtts://0.0.0.0:8883",
        "tls__certificate": pair.cert,
        "tls__key": pair.key,
        "auth__password_file": tmp_path / "passwords",
        "auth__acl_file": tmp_path / "acl",
        "quotas__max_connections_per_address": 100,
        "limits__max_keep_alive": "1h",
        "quotas__flapping": "15 in 60 s",
        "mqtt__session_expiry": "30d",
    }


def test_nothing_is_found_where_nothing_is_weak(good: dict[str, object]) -> None:
    assert found(**good) == set()


@pytest.mark.parametrize(
    ("more", "severity"),
    [
        ({"url": "mqtts://far.example:8883"}, ""),
        ({"url": "mqtt://127.0.0.1:1884"}, ""),
        ({"url": "mqtt://far.example:1883", "username": "u", "password": "p"}, "weak"),
        ({"url": "mqtts://far.example:8883", "insecure": True}, "weak"),
        ({"url": "mqtt://127.0.0.1:1884", "username": "u", "password_file": "/etc/passwd"}, "bad"),
    ],
)
def test_links(good: dict[str, object], more: dict[str, object], severity: str) -> None:
    links = json.dumps({"far": {"topics": ["a"], **more}})
    assert ("links.far" in found(severity, links=links, **good)) is (severity != "")


def test_the_password_of_a_link_in_a_file_that_all_may_read(tmp_path: Path) -> None:
    path = tmp_path / "flockmq.toml"
    path.write_text('[links.a]\nurl = "mqtts://b:1"\ntopics = ["a"]\nusername = "u"\npassword = "p"\n')
    path.chmod(0o644)
    assert str(path) in {finding.where for finding in audit(load({}, {}, path), str(path))}
    path.chmod(0o600)
    assert str(path) not in {finding.where for finding in audit(load({}, {}, path), str(path))}


@pytest.mark.parametrize(
    ("changes", "severity", "where"),
    [
        ({"auth__password_file": ""}, "bad", "listen"),
        ({"auth__allow_anonymous": True}, "bad", "auth.allow_anonymous"),
        ({"listen": "0.0.0.0:1883"}, "weak", "listen"),
        ({"listen": ":1883"}, "weak", "listen"),
        ({"listen": "*:1883"}, "weak", "listen"),
        ({"auth__acl_file": ""}, "weak", "auth.acl_file"),
        ({"auth__acl_file": "/nowhere"}, "bad", "auth.acl_file"),
        ({"auth__password_file": "/nowhere"}, "bad", "auth.password_file"),
        ({"auth__failure_delay": 0}, "weak", "auth.failure_delay"),
        ({"cluster__redis": "redis://10.0.0.5"}, "bad", "cluster.redis"),
        ({"cluster__redis": "redis://:x@10.0.0.5"}, "weak", "cluster.redis"),
        ({"http__listen": "https://0.0.0.0:8080"}, "weak", "http.metrics_token"),
        ({"http__listen": "127.0.0.1:8080"}, "weak", "http.tokens_file"),
        ({"http__listen": "https://localhost:8080"}, "weak", "http.tokens_file"),
        ({"http__listen": "https://:8080"}, "weak", "http.metrics_token"),
        ({"http__listen": "0.0.0.0:8080", "http__tokens_file": "/nowhere"}, "weak", "http.listen"),
        ({"auth__http_url": "http://10.0.0.5/users"}, "bad", "auth.http_url"),
        ({"auth__sql_url": f"{FAR_SQL}?sslmode=require", "auth__sql_user_query": QUERY}, "bad", "auth.sql_url"),
        ({"auth__sql_url": f"{FAR_MYSQL}?verify=none", "auth__sql_user_query": QUERY}, "bad", "auth.sql_url"),
        ({"auth__sql_url": FAR_SQL, "auth__sql_user_query": BY_CLIENT}, "weak", "auth.sql_user_query"),
        ({"auth__sql_url": FAR_MYSQL, "auth__sql_user_query": NAMELESS}, "weak", "auth.sql_user_query"),
        ({"auth__sql_url": "sqlite:/etc/passwd", "auth__sql_user_query": QUERY}, "bad", "auth.sql_url"),
        ({**LDAP, "auth__ldap_start_tls": False}, "bad", "auth.ldap_start_tls"),
        ({**LDAP, "auth__ldap_password_file": "/etc/passwd"}, "bad", "auth.ldap_password_file"),
        ({**LDAP, "auth__ldap_bind_dn": "", "auth__ldap_password_file": ""}, "note", "auth.ldap_bind_dn"),
        ({"quotas__max_connections_per_address": 0}, "weak", "quotas.max_connections_per_address"),
        ({"limits__connect_timeout": 60}, "weak", "limits.connect_timeout"),
        ({"limits__max_packet_size": "64MiB"}, "weak", "limits.max_packet_size"),
        ({"limits__max_keep_alive": 0}, "note", "limits.max_keep_alive"),
        ({"quotas__flapping": ""}, "note", "quotas.flapping"),
        ({"mqtt__session_expiry": 0}, "note", "mqtt.session_expiry"),
    ],
)
def test_what_is_weak_is_found(changes: dict[str, object], severity: str, where: str, good: dict[str, object]) -> None:
    assert where in found(severity, **{**good, **changes})


@pytest.mark.parametrize(
    "settings",
    [
        {"cluster__redis": "rediss://:x@10.0.0.5"},
        {"cluster__redis": "redis://127.0.0.1"},
        {"cluster__redis": "unix:///run/redis.sock"},
        {"auth__http_url": "http://127.0.0.1:8000/x"},
        {"auth__http_url": "https://10.0.0.5/users"},
        {"auth__sql_url": FAR_SQL, "auth__sql_user_query": NAMELESS},
        {"auth__sql_url": f"{FAR_MYSQL}?verify=ca", "auth__sql_user_query": QUERY},
        {"auth__sql_url": "mysql://u@127.0.0.1/mqtt", "auth__sql_user_query": QUERY},
        LDAP,
        {**LDAP, "auth__ldap_url": "ldaps://10.0.0.5"},
        {**LDAP, "auth__ldap_url": "ldapi://%2Frun%2Fslapd", "auth__ldap_start_tls": False},
        {**LDAP, "auth__ldap_url": "ldap://[::1]:389 ldap://localhost", "auth__ldap_start_tls": False},
        {"listen": "127.0.0.1:1883"},
        {"listen": "localhost:1883"},
        {"http__listen": "https://10.0.0.5:8080", "http__metrics_token": True},
        {"http__listen": "127.0.0.1:8080", "http__tokens_file": "/nowhere"},
    ],
)
def test_what_is_good_is_not_blamed(settings: dict[str, object], good: dict[str, object]) -> None:
    assert found(**{**good, **settings}) == set()


def test_files_that_others_read(good: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "passwords").chmod(0o644)
    Path(str(good["tls__key"])).chmod(0o644)
    (tmp_path / "tokens").touch(0o644)
    (tmp_path / "state.db").touch()
    (tmp_path / "state.db").chmod(0o644)
    more = {"store__url": f"sqlite:{tmp_path / 'state.db'}", "http__tokens_file": tmp_path / "tokens"}
    assert found("bad", **good, **more) == {"auth.password_file", "tls.key", "store.url", "http.tokens_file"}


def test_hashes_that_are_quickly_found(good: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text(f"ada:{quick_hash('x')}\n")
    assert found("bad", **good) == {"auth.password_file"}
    mosquitto = "$7$101$vIQaRBINjufdcuRx$" + quick_hash("x").rpartition("$")[2]
    (tmp_path / "passwords").write_text(f"ada:{mosquitto}\n")
    assert found("weak", **good) == {"auth.password_file"}


def test_lines_of_a_password_file_that_are_none(good: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"{path.read_text()}bob:cut\n")
    assert found("weak", **good) == {"auth.password_file"}
    path.write_text("bob:cut\n")
    assert found("bad", **good) == {"auth.password_file"}


def test_certificates(good: dict[str, object], tmp_path: Path) -> None:
    authority = Authority(tmp_path / "others")
    for days, severity in ((-1, "bad"), (10, "weak")):
        pair = authority.server(days=days)
        settings = {**good, "tls__certificate": pair.cert, "tls__key": pair.key}
        assert found(severity, **settings) == {"tls.certificate"}


def test_each_listener_is_looked_at(good: dict[str, object]) -> None:
    named = {name.replace("__", "."): str(value) for name, value in good.items()}
    open_one = {"listeners.open.listen": "0.0.0.0:1884", "listeners.open.auth.allow_anonymous": "true"}
    loaded = load({**named, **open_one, "store.url": "memory"}, env={})
    wheres = {finding.where for finding in audit(loaded)}
    assert wheres == {"listeners.open.auth.allow_anonymous", "listeners.open.listen"}


def test_the_worst_comes_first() -> None:
    order = [SEVERITIES.index(finding.severity) for finding in audit(load(dict(PUBLIC), env={}))]
    assert order == sorted(order) and order[0] == 0


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "flockmq.toml"
    file.write_text('listen = ["0.0.0.0:1883"]\n[cluster]\nredis = "redis://:secret@10.0.0.5"\n')
    file.chmod(0o644)
    for more in ([], ["--json"]):
        assert main(["audit", "--config", str(file), *more]) == 1
        output, errors = capsys.readouterr()
        assert "secret" not in output + errors
    said = [Finding(**finding) for finding in json.loads(output)]
    assert any(finding.where == str(file) for finding in said) and all(finding.way_out for finding in said)
    assert main(["audit"]) == 0
    assert capsys.readouterr().out == "no weaknesses found\n"
