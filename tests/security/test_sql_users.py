"""Users in PostgreSQL, MariaDB and SQLite: real servers, what attackers send, and what operators get wrong."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import psycopg
import pytest

from flockmq._speedups.session.rights import PUBLISH, READ
from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Verdict
from flockmq.broker.auth.back_end import MAX_FAILURES
from flockmq.broker.auth.chain import Chain
from flockmq.broker.auth.chain_builder import MAX_WAITING
from flockmq.broker.auth.passwords import parse_hash, scram_credentials
from flockmq.broker.auth.work_pool import Busy
from flockmq.broker.config.go_auth import counterpart
from flockmq.broker.errors import ConfigError
from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.certificates import Authority
from tests.harness.command import flockmq
from tests.harness.database_processes import MariaDbProcess, PostgreSqlProcess
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, UNAVAILABLE, WRONG, quick_hash, refused
from tests.security.one_method import code, connects, let_in, run
from tests.security.user_tables import QUERY, Method, UserTables, sqlite_tables

T = TypeVar("T")
ACCEPTED, BAD, AWAY = ReasonCode.SUCCESS, ReasonCode.BAD_USERNAME_OR_PASSWORD, ReasonCode.SERVER_UNAVAILABLE
CLAIM_QUERY = QUERY.replace("disabled", "disabled, org")


@pytest.fixture
def store() -> str:
    return "memory"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def postgresql(authority: Authority) -> Iterator[PostgreSqlProcess]:
    server = PostgreSqlProcess(authority.server("postgresql"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def mariadb(authority: Authority) -> Iterator[MariaDbProcess]:
    if shutil.which("mariadb-install-db") is None:
        pytest.skip("not installed: mariadb-server")
    server = MariaDbProcess(authority.server("mariadb"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> UserTables:
    """A table of users in each kind of database."""
    if request.param == "sqlite":
        return sqlite_tables(tmp_path).make()
    server = request.getfixturevalue(request.param)
    return UserTables(request.param, server.url, server).make()


@pytest.fixture
def in_postgresql(postgresql: PostgreSqlProcess) -> UserTables:
    return UserTables("postgresql", postgresql.url, postgresql).make()


@pytest.fixture
def in_mariadb(mariadb: MariaDbProcess) -> UserTables:
    return UserTables("mariadb", mariadb.url, mariadb).make()


# ---- at a broker ----


def test_a_broker_asks_the_database(tables: UserTables, start_broker: StartBroker) -> None:
    tables.add("ada", rules="topic read news\n\npattern write devices/%c/#")
    tables.add("bob", disabled=True)
    tables.add("eve", password_hash=None)
    broker = start_broker(tables.settings())
    with let_in(broker, "ada") as ada:
        ada.send("subscribe 1 news:0 other:0")
        ada.expect("suback 1 0 0x80")
    refused(broker, "user=ada pass=wrong", WRONG)
    refused(broker, "user=ada", WRONG)
    refused(broker, "user=nobody pass=nobody", WRONG)
    refused(broker, "user= pass=ada", WRONG)
    refused(broker, "user=eve pass=eve", WRONG)
    refused(broker, "user=bob pass=wrong", WRONG)
    refused(broker, "user=bob pass=bob", NOT_AUTHORIZED)
    refused(broker, "", NOT_AUTHORIZED)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_that_goes_away_and_returns(
    kind: str, request: pytest.FixtureRequest, start_broker: StartBroker
) -> None:
    """Users of other brokers had to restart them (emqx#10925, vernemq#609, mosquitto-go-auth#218)."""
    tables = request.getfixturevalue(f"in_{kind}")
    tables.add("ada")
    broker = start_broker(tables.settings(sql_remember=0, remember=0, remember_stored=0))
    let_in(broker, "ada").close()
    try:
        tables.server.kill()
        refused(broker, "user=ada pass=ada", UNAVAILABLE)
        refused(broker, "user=ada pass=wrong", UNAVAILABLE)
        refused(broker, "user=nobody pass=nobody", UNAVAILABLE)
        tables.server.start()
        let_in(broker, "ada").close()
        refused(broker, "user=ada pass=wrong", WRONG)
        tables.server.kill()
    finally:
        tables.server.start()
    let_in(broker, "ada").close()  # the connection of before has died unnoticed


def test_a_silent_server_holds_up_nobody_else(in_postgresql: UserTables, start_broker: StartBroker) -> None:
    in_postgresql.add("ada")
    broker = start_broker(in_postgresql.settings(sql_remember=0, sql_timeout=0.2, allow_anonymous=True))
    until(lambda: connects(broker), "the database replies")  # in time, on a busy machine
    with psycopg.connect(in_postgresql.url) as lock:
        lock.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")
        with Wire(broker.port, name="waits") as waits, Wire(broker.port, name="other") as other:
            waits.send("connect user=ada pass=ada")
            other.connect().subscribe("a:1")
            for number in range(50):
                other.send(f"publish a x q1 id={number + 1}")
                assert all(other.packet() for _ in range(2))
            waits.expect(f"connack {UNAVAILABLE}", None)
        for number in range(MAX_FAILURES + 2):
            refused(broker, "user=ada pass=ada", UNAVAILABLE, f"c{number}")
        broker.wait_for_log("authentication back end failed", failures=MAX_FAILURES)
        failures = [line["failures"] for line in broker.log if line["event"] == "authentication back end failed"]
        assert failures[-1] == max(failures) == MAX_FAILURES, "then it is left alone"
    until(lambda: connects(broker), "it is asked again")


def test_a_wrong_schema_is_named_in_the_log(tables: UserTables, start_broker: StartBroker) -> None:
    tables.add("ada")
    query = "SELECT pasword FROM users WHERE username = ${username}"
    broker = start_broker(tables.settings(sql_user_query=query))
    refused(broker, "user=ada pass=ada", UNAVAILABLE)
    assert "pasword" in str(broker.wait_for_log("a user can't be read from the database")["error"])


def test_no_password_of_the_database_is_logged_or_shown(
    postgresql: PostgreSqlProcess, tmp_path: Path, start_broker: StartBroker
) -> None:
    """emqx#8726."""
    for number, url in enumerate(
        (
            f"postgresql://flockmq:hush%40hush@127.0.0.1:{postgresql.port}/nowhere?sslmode=require",
            "postgresql://flockmq:hush%40hush@127.0.0.1:1/nowhere",
            "mysql://flockmq:hush%40hush@127.0.0.1:1/nowhere",
        )
    ):
        broker = start_broker({"auth.sql_url": url, "auth.sql_user_query": QUERY}, arguments=["--log-level", "debug"])
        refused(broker, "user=ada pass=ada", UNAVAILABLE, f"c{number}")
        broker.wait_for_log("authentication back end failed")
        assert "hush" not in broker.log_text() and "***@127.0.0.1" in broker.log_text()


def test_users_of_a_database_use_scram(tables: UserTables, start_broker: StartBroker) -> None:
    tables.add("ada", password_hash=scram_credentials(b"ada", 4096).text)
    broker = start_broker(tables.settings())
    let_in(broker, "ada").close()
    with Method(tables) as method:
        found = run(method.users.find_user("ada"))
        assert found is not None and found.stored.scheme == "scram-sha-256" and found.identity.method == "sql"
        assert run(method.users.find_user("nobody")) is None
        assert run(method.users.find_user("a\0b")) is None
    with Method(tables, f"{QUERY} AND '' <> ${{client_id}}") as method:
        assert run(method.users.find_user("ada")) is None, "it would be another query"


# ---- attackers ----

NAMES = [
    "' OR '1'='1",
    "' OR 1=1 -- ",
    "'; DROP TABLE users; -- ",
    "\\' OR 1=1 -- ",
    "\\",
    "\u00bf' OR 1=1 -- ",  # half of a character of GBK, and a quote
    "\u02bc OR 1=1",
    '" OR ""="',
    "` OR 1=1",
    "$1",
    "%s",
    "%(username)s",
    "?",
    ":username",
    "${client_id}",
    "%",
    "_",
    "{}",
    "x'61'",
    "\U0001f600",
    "a" * 60_000,
    "/* a */",
    "ada\n",
    "\u202eada",
]


def test_no_name_is_part_of_a_query(tables: UserTables) -> None:
    """Neither the user name nor the client identifier; a user may have such a name."""
    tables.add("ada")
    query = f"{QUERY} AND ${{client_id}} <> ''"
    with Method(tables, query, remember=0.0) as method:
        for name in NAMES:
            assert code(run(method.ask(name, b"ada"))) is None, name
            assert code(run(method.ask("nobody", b"ada", name))) is None, name
            assert code(run(method.ask("ada", b"ada", name))) == ACCEPTED, name
        assert not method.users._back_end._failures
        for name in (name for name in NAMES if len(name) <= 200):
            tables.add(name)
            assert code(run(method.ask(name))) == ACCEPTED, name
            assert code(run(method.ask(name, b"ada"))) == BAD, name


def test_a_name_that_is_no_text_is_unknown(tables: UserTables) -> None:
    tables.add("ada")
    query = f"{QUERY} AND ${{client_id}} <> ''"
    with Method(tables, query) as method:
        for name in ("a\0b", "\0", "ada\0", "\ud800", "ada\udc80"):
            assert run(method.ask(name, b"ada")) is None
            assert run(method.ask("ada", b"ada", name)) is None


def test_a_name_that_the_database_refuses_stops_nobody_else(in_postgresql: UserTables) -> None:
    """A column of numbers takes no "ada": an attacker could make the back end pause for all."""
    in_postgresql.run("ALTER TABLE users ALTER COLUMN username TYPE int USING username::int")
    in_postgresql.add("7")
    with Method(in_postgresql, QUERY.replace("username,", "username::text,")) as method:
        for _ in range(MAX_FAILURES + 1):
            assert code(run(method.ask("ada"))) == AWAY
        assert code(run(method.ask("7"))) == ACCEPTED


def test_a_character_set_that_lacks_a_character_stops_nobody_else(in_mariadb: UserTables) -> None:
    in_mariadb.run("ALTER TABLE users CONVERT TO CHARACTER SET latin1")
    in_mariadb.add("m\u00fcller")
    with Method(in_mariadb) as method:
        for name in ("\U0001f600", "\u4e2d\u6587") * MAX_FAILURES:
            assert code(run(method.ask(name))) in (None, AWAY)
        assert code(run(method.ask("m\u00fcller"))) == ACCEPTED


def test_a_database_that_compares_without_case_gives_the_name(in_mariadb: UserTables) -> None:
    """ADA and "ada " are ada: one user, with one name for rules, quotas and bans."""
    in_mariadb.add("ada")
    with Method(in_mariadb) as method:
        for name in ("ada", "ADA", "ada "):
            verdict = run(method.ask(name, b"ada"))
            assert verdict is not None and verdict.code == ACCEPTED and verdict.identity.username == "ada"


def test_a_password_is_never_sent(in_postgresql: UserTables) -> None:
    """Any bytes are compared by the node."""
    in_postgresql.add("ada")
    with Method(in_postgresql) as method:
        for password in (b"", b"\0", b"\xff\xfe", b"ada\0", b"' OR '1'='1", b"x" * 65_535):
            assert code(run(method.ask("ada", password))) == BAD


def test_an_unknown_user_costs_as_much_as_a_wrong_password(tables: UserTables) -> None:
    """A hash of the same kind is verified: argon2id until the first user was seen, then as the users have it."""
    bcrypt = pytest.importorskip("bcrypt")
    tables.add("ada", password_hash=bcrypt.hashpw(b"ada", bcrypt.gensalt(4)).decode())
    tables.add("eve", password_hash=None)
    with Method(tables, remember=0.0) as method:
        chain = Chain([method.users], method.verifier, anonymous=False)

        async def cost(name: str, password: bytes) -> int:
            before = method.verifier.verifications
            verdict = chain.authenticate(credentials(name, password))
            assert not isinstance(verdict, Verdict) and (await verdict).code == BAD
            return method.verifier.verifications - before

        assert [run(cost(name, b"x")) for name in ("nobody", "ada", "nobody", "eve", "ada")] == [1] * 5
        assert method.users.dummy_hash is not None
        assert method.users.dummy_hash.scheme == "bcrypt" and method.users.dummy_hash.iterations == 4


def credentials(name: str, password: bytes) -> Credentials:
    return Credentials("c", name, password, "192.0.2.1", 5)


def test_more_clients_than_may_wait(in_postgresql: UserTables) -> None:
    """A thousand at once: some are refused as busy, all others are answered rightly, and the loop goes on."""
    in_postgresql.add("ada")

    async def storm() -> None:
        with Method(in_postgresql, remember=0.0) as method:
            turns = 0

            async def turn() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(turn())
            names = [("ada", b"ada"), ("ada", b"wrong"), ("nobody", b"x")]
            asked = (method.ask(*names[number % 3], f"c{number}") for number in range(1000))
            found = await asyncio.gather(*asked, return_exceptions=True)
            ticking.cancel()
            assert turns > 10
            assert sum(isinstance(each, Busy) for each in found) <= 1000 - MAX_WAITING
            wanted = [ACCEPTED, BAD, None]
            for number, each in enumerate(found):
                assert isinstance(each, Busy) or code(each) == wanted[number % 3]  # type: ignore[arg-type]

    run(storm())


def test_clients_that_wait_while_the_settings_change_are_served(in_postgresql: UserTables) -> None:
    """A reload retires the threads and closes the connections of the settings of before."""
    in_postgresql.add("ada")

    async def change() -> None:
        method = Method(in_postgresql, remember=0.0)
        with psycopg.connect(in_postgresql.url) as lock:
            lock.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")
            waiting = [asyncio.create_task(method.ask("ada", client_id=f"c{number}")) for number in range(50)]
            await asyncio.sleep(0)
            method.pool.retire()
            method.database.close()
        assert {code(verdict) for verdict in await asyncio.gather(*waiting)} == {ACCEPTED}
        with pytest.raises(Busy):
            await method.ask("ada", b"other")
        method.verifier.close()

    run(change())
    ended = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%password_hash%' AND pid <> pg_backend_pid()"
    assert in_postgresql.server is not None
    server = in_postgresql.server
    until(lambda: not server.rows(ended), "its connections are closed")


# ---- what is remembered ----


def test_a_remembered_row_and_a_new_password(tables: UserTables) -> None:
    """The new password counts at once, though the row of before is remembered; then the old one no longer does."""
    tables.add("ada")
    with Method(tables) as method:
        assert code(run(method.ask("ada"))) == ACCEPTED
        tables.run("UPDATE users SET password_hash = %s", quick_hash("new"))
        assert code(run(method.ask("ada"))) == ACCEPTED, "it is remembered"
        assert code(run(method.ask("ada", b"new"))) == ACCEPTED
        assert code(run(method.ask("ada"))) == BAD
        tables.run("DELETE FROM users")
        assert code(run(method.ask("ada", b"wrong"))) is None
        assert code(run(method.ask("ada", b"new"))) is None


def test_a_fleet_that_returns_is_not_asked_for(tables: UserTables) -> None:
    tables.add("ada")
    with Method(tables) as method:
        assert code(run(method.ask("ada"))) == ACCEPTED
        tables.run("DROP TABLE users")
        for number in range(3):
            verdict = method.users.authenticate(credentials("ada", b"ada"))
            assert isinstance(verdict, Verdict) and verdict.code == ACCEPTED, number


def test_a_row_is_remembered_for_the_values_of_its_query(tables: UserTables) -> None:
    """Where a client may connect from is part of the question."""
    tables.add("ada", org="192.0.2.1")
    with Method(tables, "SELECT password_hash FROM users WHERE username = ${username} AND org = ${address}") as method:
        assert code(run(method.ask("ada"))) == ACCEPTED
        assert code(run(method.ask("ada", address="192.0.2.2"))) is None
        assert code(run(method.ask("ada"))) == ACCEPTED


# ---- rows ----


def test_rules_roles_and_claims(tables: UserTables) -> None:
    tables.add("ada", rules='["topic read a", "pattern write b/%u"]', roles='["x", "y"]', org="acme")
    tables.add("bob", rules='{"publish": ["b/#"]}', roles="x, y ,x")
    tables.add("eve", rules="", roles="")
    with Method(tables, CLAIM_QUERY, claims=("org", "unit")) as method:
        ada, bob, eve = (verdict.identity for name in ("ada", "bob", "eve") if (verdict := run(method.ask(name))))
    assert [rule.topic_filter for rule in ada.rules or ()] == ["a", "b/%u"]
    assert ada.roles == bob.roles == ("x", "y") and ada.claims == (("org", "acme"),)
    assert [rule.topic_filter for rule in bob.rules or ()] == ["b/#"] and bob.claims == ()
    assert eve.rules == () and eve.roles == (), "without a rule it may do nothing"


def test_arrays_and_json_of_postgresql(in_postgresql: UserTables) -> None:
    in_postgresql.run("ALTER TABLE users ALTER rules TYPE text[] USING NULL, ALTER roles TYPE jsonb USING NULL")
    in_postgresql.run(
        """INSERT INTO users VALUES ('ada', %s, ARRAY['topic read a'], '["x"]', false, '7')""", quick_hash("ada")
    )
    query = QUERY.replace("disabled", "org::int AS org")
    with Method(in_postgresql, query, claims=("org",)) as method:
        verdict = run(method.ask("ada"))
    assert verdict is not None and verdict.identity.rules and verdict.identity.roles == ("x",)
    assert verdict.identity.claims == (("org", "7"),)


def test_rules_of_a_second_query(tables: UserTables) -> None:
    """As access and filter, or as filters for an access, as queries of mosquitto-go-auth return them."""
    tables.add("ada")
    for access, topic in ((5, "read/%u"), (2, "write/%c"), (7, "both/#"), (1, "no subscription"), (4, "no reading")):
        tables.run("INSERT INTO rules VALUES (%s, %s, %s)", "ada", access, topic)
    wanted = {(READ, "read/%u"), (PUBLISH, "write/%c"), (READ, "both/#"), (PUBLISH, "both/#")}
    for query in (
        "SELECT access, topic FROM rules WHERE username = ${username} AND access IN (2, 5, 7)",
        "SELECT topic FROM rules WHERE username = ${username} AND access & ${access} = ${access}",
    ):
        with Method(tables, rules_query=query) as method:
            verdict = run(method.ask("ada"))
        assert verdict is not None and verdict.identity.rules is not None
        found = verdict.identity.rules
        assert all(rule.allow and rule.is_pattern for rule in found)
        assert {(bit, rule.topic_filter) for rule in found for bit in (READ, PUBLISH) if rule.access & bit} == wanted


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("SELECT username, password_hash AS password FROM users WHERE username = ${username}", "'password'"),
        ("SELECT password_hash, false AS disable FROM users WHERE username = ${username}", "'disable'"),
        ("SELECT password_hash, org AS disabled FROM users WHERE username = ${username}", "'disabled': expected a tr"),
        ("SELECT password_hash, NULL AS disabled FROM users WHERE username = ${username}", "COALESCE"),
        ("SELECT password_hash, password_hash FROM users WHERE username = ${username}", "twice"),
        ("SELECT username FROM users WHERE username = ${username}", "'password_hash': it is not a password hash"),
        ("SELECT password_hash, org AS rules FROM users WHERE username = ${username}", "'rules': "),
        ("SELECT password_hash, '[1]' AS roles FROM users WHERE username = ${username}", "'roles': "),
        ("SELECT password_hash, NULL AS username FROM users WHERE username = ${username}", "'username': "),
        ("SELECT password_hash FROM users WHERE ${username} <> ''", "several rows"),
    ],
)
def test_a_row_that_is_not_understood_lets_in_nobody(
    tmp_path: Path, query: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables = sqlite_tables(tmp_path).make()
    tables.add("ada", org="nonsense")
    tables.add("bob")
    with Method(tables, query) as method:
        assert code(run(method.ask("ada"))) == AWAY
    (record,) = caplog.records
    shown = str(record.__dict__["values"]["error"])
    assert fault in shown and "$6$" not in shown


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("SELECT topic FROM rules WHERE username = ${username}", "expected access and a topic filter"),
        ("SELECT access, topic FROM rules WHERE username = ${username} AND access > ${access}", "expected one"),
        ("SELECT 'all of it', topic FROM rules WHERE username = ${username}", "'all of it'"),
        ("SELECT 9, topic FROM rules WHERE username = ${username}", "9"),
        ("SELECT access, 'a/#/b' FROM rules WHERE username = ${username}", "a/#/b"),
        ("SELECT access, NULL FROM rules WHERE username = ${username}", "NoneType"),
    ],
)
def test_a_rule_that_is_not_understood_lets_in_nobody(
    tmp_path: Path, query: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables = sqlite_tables(tmp_path).make()
    tables.add("ada")
    tables.run("INSERT INTO rules VALUES ('ada', 2, 'a')")
    with Method(tables, rules_query=query) as method:
        assert code(run(method.ask("ada"))) == AWAY
    (record,) = caplog.records
    assert fault in str(record.__dict__["values"]["error"])


def test_a_changed_table_needs_no_restart(in_postgresql: UserTables) -> None:
    """A prepared statement has the plan of before ("cached plan must not change result type")."""
    in_postgresql.add("ada")
    with Method(in_postgresql, remember=0.0) as method:
        assert code(run(method.ask("ada"))) == ACCEPTED
        in_postgresql.run("ALTER TABLE users ALTER COLUMN password_hash TYPE text, ALTER username TYPE text")
        assert code(run(method.ask("ada"))) == ACCEPTED
        in_postgresql.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert code(run(method.ask("ada"))) == ACCEPTED


def test_a_query_that_takes_too_long_is_cancelled(in_postgresql: UserTables) -> None:
    in_postgresql.add("ada")
    query = "SELECT password_hash FROM users, pg_sleep(600) WHERE username = ${username}"
    with Method(in_postgresql, query, timeout=0.2) as method:
        assert code(run(method.ask("ada"))) == AWAY
    assert in_postgresql.server is not None
    running = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(600)%' AND pid <> "
    until(lambda: not in_postgresql.server.rows(f"{running} pg_backend_pid()"), "the query ends")  # type: ignore[union-attr]


def test_sqlite_is_bounded_and_only_read(tmp_path: Path) -> None:
    tables = sqlite_tables(tmp_path).make()
    tables.add("ada")
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n WHERE ${username} > ''"
    )
    with Method(tables, endless, timeout=0.1) as method:
        assert code(run(method.ask("ada"))) == AWAY
    with Method(tables, "DELETE FROM users WHERE username = ${username} RETURNING password_hash") as method:
        assert code(run(method.ask("ada"))) == AWAY
    with Method(tables) as method:
        assert code(run(method.ask("ada"))) == ACCEPTED
    with Method(tables) as method:
        Path(tables.url.removeprefix("sqlite:")).unlink()
        assert code(run(method.ask("ada"))) == AWAY


def test_a_file_that_is_missing_prevents_the_start(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/users.db"
    query = "SELECT password_hash FROM users WHERE username = ${username}"
    keys = ("listen=127.0.0.1:0", "store.url=memory", f"auth.sql_url={url}", f"auth.sql_user_query={query}")
    said = flockmq("serve", *(word for key in keys for word in ("--set", key)), status=2)
    assert f"auth.sql_url = {url!r} can't be read: No such file or directory" in said and "check the path" in said


# ---- TLS ----


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_tls_to_a_database(
    kind: str, request: pytest.FixtureRequest, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = request.getfixturevalue(f"in_{kind}")
    tables.add("ada")
    assert tables.server is not None
    if kind == "mariadb":
        tables.run("CREATE OR REPLACE USER 'remote'@'%%' IDENTIFIED BY 'hush' REQUIRE SSL")
        tables.run("GRANT ALL ON mqtt.* TO 'remote'@'%%'")
    right, other = quote(authority.ca, safe=""), quote(Authority(tmp_path / "other").ca, safe="")
    if kind == "postgresql":
        place, database = "postgresql://flockmq", "postgres"
        full, plain = "sslmode=verify-full&sslrootcert={}", "sslmode=disable"
    else:
        place, database = "mysql://remote:hush", "mqtt"
        full, plain = "verify=full&ca_file={}", "verify=none"
    url = f"{place}@127.0.0.1:{tables.server.port}/{database}?"
    for options, wanted in ((full.format(right), ACCEPTED), (full.format(other), AWAY)):
        with Method(UserTables(kind, url + options)) as method:
            assert code(run(method.ask("ada"))) == wanted, caplog.text
    if kind == "mariadb":
        with Method(UserTables(kind, url + plain)) as method:
            assert code(run(method.ask("ada"))) == AWAY
    assert "hush" not in caplog.text
    with pytest.raises((ConfigError, ValueError), match=r"nonsense|after \?"):
        Method(UserTables(kind, url + "nonsense=1"))


def test_a_kind_of_hash_of_each_program(tables: UserTables) -> None:
    """Hashes that users bring along."""
    bcrypt = pytest.importorskip("bcrypt")
    hashes = [
        quick_hash("x"),
        bcrypt.hashpw(b"x", bcrypt.gensalt(4)).decode(),
        "PBKDF2$sha256$1$c2FsdA==$VawEblbjCJ/sFpHCJUS2BflBhSFt3gRl5oudV8INrLw=",  # of "passwd"
    ]
    for number, stored in enumerate(hashes):
        tables.add(f"u{number}", password_hash=stored + " " * number)
    with Method(tables) as method:
        assert [code(run(method.ask(f"u{number}", b"x"))) for number in range(3)] == [ACCEPTED, ACCEPTED, BAD]
        assert code(run(method.ask("u2", b"passwd"))) == ACCEPTED
    assert parse_hash(hashes[2]).algorithm == "sha256"


def test_queries_of_mosquitto_go_auth(tables: UserTables) -> None:
    """As its documentation has them, imported: users, rules by access, and superusers."""
    prefix = {"postgresql": "pg", "mariadb": "mysql"}.get(tables.kind, tables.kind)
    user, access = ("$1", "$2") if prefix == "pg" else ("?", "?")
    options = {
        "userquery": f"SELECT password_hash FROM users WHERE username = {user} limit 1",
        "superquery": f"SELECT COUNT(*) FROM users WHERE username = {user} AND org = 'super'",
        "aclquery": f"SELECT topic FROM rules WHERE (username = {user}) AND (access & {access}) <> 0 LIMIT 10",
        **dict.fromkeys(("user", "password", "dbname", "source"), "x"),
    }
    kind = {"postgresql": "postgres", "mariadb": "mysql"}.get(tables.kind, tables.kind)
    values = counterpart({"backends": kind, **{f"{prefix}_{name}": value for name, value in options.items()}}).values
    tables.add("ada")
    tables.add("root", org="super")
    for topic, access_of in (("a/%u", 5), ("b", 2)):
        tables.run("INSERT INTO rules VALUES (%s, %s, %s)", "ada", access_of, topic)
    found = {}
    with Method(tables, str(values["auth.sql_user_query"]), rules_query=str(values["auth.sql_rules_query"])) as method:
        for name in ("ada", "root"):
            verdict = run(method.ask(name))
            assert verdict is not None and verdict.code == ACCEPTED and verdict.identity.rules is not None
            found[name] = {(rule.access, rule.topic_filter) for rule in verdict.identity.rules}
    assert found["ada"] == {(READ, "a/%u"), (PUBLISH, "b")}
    assert found["root"] == {(access, topic) for access in (READ, PUBLISH) for topic in ("#", "$SYS/#")}
