"""Credentials under attack: guessing, floods of CONNECT, and names with special letters."""

import asyncio
import re
import socket
import statistics
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, cast

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect
from flockmq.broker.auth.access_control import AccessControl
from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Verdict
from flockmq.broker.auth.passwords import StoredHash, hash_password
from flockmq.broker.auth.penalties import MAX_ADDRESSES, MAX_ATTEMPTS, MAX_DELAY, Penalties
from flockmq.broker.auth.verifier import Verifier
from flockmq.broker.auth.work_pool import Busy, WorkPool
from flockmq.broker.config.load import load
from flockmq.broker.core.networks import network_of
from flockmq.broker.public.testing import Broker
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import Wire
from tests.security.access_files import WRONG, AccessFiles, counted, login, refused


@pytest.fixture
def store() -> str:
    return "memory"


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    files = AccessFiles(tmp_path)
    files.users("ada")
    return files


def attempt(
    access: AccessControl, username: str | None, password: bytes | None, address: str = "192.0.2.1:5"
) -> Verdict:
    """The verdict on these credentials."""

    async def ask() -> Verdict:
        answer = access.authenticate(Credentials("c", username, password, address, 4))
        return answer if isinstance(answer, Verdict) else await answer

    return asyncio.run(ask())


@pytest.fixture
def access(tmp_path: Path) -> AccessControl:
    """With one user, ada, and a hash as `flockmq passwd` makes it."""
    (tmp_path / "argon").write_text("ada:" + hash_password(b"secret").text + "\n")
    settings = {"auth.password_file": str(tmp_path / "argon"), "auth.failure_delay": "0"}
    return AccessControl(load(settings, env={}), cast(Any, None))


def test_timing_an_unknown_user_costs_what_a_wrong_password_costs(access: AccessControl) -> None:
    """The same path: one verification, of a hash of the same kind and cost."""
    verifier = access._builder.verifier
    for username, password in (("ada", b"wrong"), ("nobody", b"secret"), ("ada", None), ("nobody", None)):
        before = verifier.verifications
        assert attempt(access, username, password).code == ReasonCode.BAD_USERNAME_OR_PASSWORD
        assert verifier.verifications == before + 1, username
    chain = access._chains["default"]
    dummy = chain._dummy_hash
    assert dummy is not None and dummy.text.split("$")[:4] == hash_password(b"").text.split("$")[:4]
    access.close()


def test_a_right_password_is_remembered_and_a_wrong_one_is_not(access: AccessControl) -> None:
    verifier = access._builder.verifier
    for password, verifications in ((b"secret", 1), (b"secret", 1), (b"wrong", 2), (b"wrong", 3), (b"secret", 3)):
        attempt(access, "ada", password)
        assert verifier.verifications == verifications
    assert b"secret" not in b"".join(verifier._right)
    access.close()


def test_what_is_remembered_is_of_one_hash_for_some_time() -> None:
    verifier = Verifier()
    verifier.configure(60.0)
    one, other = hash_password(b"x"), hash_password(b"x")
    assert asyncio.run(verifier.matches(one, b"x")) and verifier.remembers(one, b"x")
    assert not verifier.remembers(other, b"x")
    assert not verifier.remembers(one, b"y") and not verifier.remembers(one, None)
    (digest,) = verifier._right
    verifier._right[digest] = time.monotonic() - 1
    assert not verifier.remembers(one, b"x")
    verifier.close()


class KeptProofs(dict[str, bytes]):
    """Proofs that outlive a node."""

    def find(self, name: str) -> bytes | None:
        return self.get(name)

    def keep(self, name: str, proof: bytes, seconds: int) -> None:
        self[name] = proof


def cost_of(
    kept: KeptProofs, stored: StoredHash, password: bytes | None, *, secret: bytes = b"s", keep: float = 9
) -> str:
    """The verdict of a node that has just started, and how it came about."""
    verifier = Verifier(lambda: kept, lambda: secret)
    verifier.configure(0.0, keep)
    verdict = "right" if asyncio.run(verifier.matches(stored, password)) else "wrong"
    verifier.close()
    return f"{verdict}, {'slow' if verifier.verifications else 'fast'}"


def test_a_right_password_is_proven_after_a_restart() -> None:
    kept, stored = KeptProofs(), hash_password(b"x")
    assert cost_of(kept, stored, b"y") == "wrong, slow" and not kept
    assert cost_of(kept, stored, b"x") == "right, slow"
    ((name, proof),) = kept.items()
    assert proof != b"x" and stored.text not in name
    assert cost_of(kept, stored, b"x") == "right, fast"
    assert cost_of(kept, stored, b"y") == cost_of(kept, stored, None) == cost_of(kept, stored, b"") == "wrong, slow"
    assert cost_of(kept, stored, b"x", secret=b"another") == "right, slow"
    assert cost_of(kept, hash_password(b"x"), b"x") == "right, slow", "the password has changed"
    kept[name] = kept[name][:-1]
    assert cost_of(kept, stored, b"x") == "right, slow" and kept[name] == proof


def test_a_proof_is_renewed_once_a_day_and_can_be_switched_off() -> None:
    kept, stored = KeptProofs(), hash_password(b"x")
    assert cost_of(kept, stored, b"x", keep=0) == "right, slow" and not kept
    cost_of(kept, stored, b"x")
    ((name, proof),) = kept.items()
    kept[name] = bytes(4) + proof[4:]
    assert cost_of(kept, stored, b"x") == "right, fast" and kept[name] == proof
    assert cost_of(kept, stored, b"x", keep=0) == "right, slow"


def test_a_client_that_returns_after_a_restart_costs_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[bytes] = []
    matches = StoredHash.matches

    def counted_matches(stored: StoredHash, password: bytes) -> bool:
        slow.append(password)
        return matches(stored, password)

    monkeypatch.setattr(StoredHash, "matches", counted_matches)
    (tmp_path / "argon").write_text("ada:" + hash_password(b"secret").text + "\n")
    settings = {"auth.password_file": tmp_path / "argon", "store.url": f"sqlite:{tmp_path}/store"}
    for password, code, hashed in ((b"secret", 0, [b"secret"]), (b"secret", 0, []), (b"wrong", WRONG, [b"wrong"])):
        slow.clear()
        with Broker(settings) as broker, socket.create_connection((broker.host, broker.port), DEADLINE) as client:
            client.sendall(encode(Connect(client_id="c", username="ada", password=password)))
            assert client.recv(4) == bytes((0x20, 2, 0, code))
        assert slow == hashed


def test_every_byte_of_a_password_counts() -> None:
    """Other hashes end at a zero byte, or after 72: a longer password then has the hash of its beginning."""
    password = b"a\0b" + b"c" * 97
    stored, verifier = hash_password(password), Verifier()
    verifier.configure(60.0)
    assert asyncio.run(verifier.matches(stored, password))
    for wrong in (password[:1], password[:8], password[:72], password[:-1], password[:-1] + b"d", password + b"c"):
        assert not stored.matches(wrong) and not verifier.remembers(stored, wrong)
    verifier.close()


def test_a_queue_of_work_is_bounded() -> None:
    pool = WorkPool("test", threads=1, max_waiting=3)
    go = threading.Event()

    async def flood() -> list[object]:
        tasks = [asyncio.ensure_future(pool.run(go.wait, 20)) for _ in range(10)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # a task that gives up does not make room: its thread is still busy
        more = await asyncio.gather(pool.run(go.wait, 20), return_exceptions=True)
        go.set()
        return [*await asyncio.gather(*tasks, return_exceptions=True), *more]

    found = asyncio.run(flood())
    assert sum(isinstance(one, Busy) for one in found) == 8
    pool.close()


def test_wrong_credentials_wait_longer_each_time() -> None:
    penalties = Penalties()
    penalties.configure(0.5)
    assert penalties.begin("192.0.2.1:5")
    assert [penalties.failed("192.0.2.1:5") for _ in range(7)] == [0.5, 1, 2, 4, MAX_DELAY, MAX_DELAY, MAX_DELAY]
    assert penalties.failed("192.0.2.2:5") == 0.5
    for _ in range(MAX_ATTEMPTS - 1):
        assert penalties.begin("192.0.2.1:77")
    assert not penalties.begin("192.0.2.1:78") and penalties.begin("192.0.2.3:78")
    penalties.end("192.0.2.1:5")
    assert penalties.begin("192.0.2.1:78")
    for number in range(MAX_ADDRESSES + 10):
        penalties.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1")
    assert len(penalties._records) == MAX_ADDRESSES


def test_addresses_are_those_of_customers() -> None:
    assert network_of("192.0.2.1:5") == "192.0.2.1"
    assert network_of("[2001:db8:1:2:3:4:5:6]:5") == network_of("[2001:db8:1:2::9]:6") == "2001:db8:1:2::"
    assert network_of("[::ffff:192.0.2.1]:5") == "192.0.2.1"
    assert network_of("2001:db8:1:2:a::b") == network_of("[2001:db8:1:2::9]:6")
    assert network_of("192.0.2.1") == network_of("192.0.2.1:5")
    assert network_of("unix:/run/x") == network_of("unix:/run/x")


def test_a_wrong_password_is_answered_late(files: AccessFiles, start_broker: StartBroker) -> None:
    """And a client with the right one does not wait, at the same address."""
    broker = files.start(start_broker, auth__failure_delay=0.3)
    began = time.monotonic()
    refused(broker, "user=ada pass=wrong", WRONG)
    assert time.monotonic() - began >= 0.3
    with Wire(broker.port) as guesser:
        guesser.send("connect user=ada pass=wrong")
        login(broker, "ada").close()
        assert not guesser.frames
        guesser.expect(f"connack {WRONG}", None)


def test_a_flood_of_passwords_does_not_stop_publishing(start_broker: StartBroker, tmp_path: Path) -> None:
    """Argon2 is slow on purpose: latency with and without a flood is compared, in one run, and loosely."""
    (tmp_path / "argon").write_text("ada:" + hash_password(b"secret").text + "\n")
    settings = {"auth.password_file": tmp_path / "argon", "auth.failure_delay": 0, "auth.allow_anonymous": True}
    broker = start_broker({**settings, "http.listen": "127.0.0.1:0"})
    enough = threading.Event()
    with Wire(broker.port, name="steady") as client:
        client.connect().subscribe("a:0")
        quiet = round_trips(client)
        thread = threading.Thread(target=flood, args=(broker, 60, enough))
        thread.start()
        broker.wait_for_log("connection refused", username="ada")
        busy = round_trips(client)
        until(lambda: counted(broker, "auth_failures") > 10, "a flood")
        enough.set()
        thread.join()
    print(f"nine of ten within {quiet * 1e3:.2f} ms quiet, {busy * 1e3:.2f} ms in a flood")
    assert busy < 20 * quiet + 0.02, "one verification takes 25 ms, and sixty wait"


def round_trips(client: Wire) -> float:
    """The time from PUBLISH to its delivery that nine of ten take, of a second of them."""
    times: list[float] = []
    while sum(times) < 1.0:
        began = time.monotonic()
        client.send("publish a x")
        client.expect("publish a x")
        times.append(time.monotonic() - began)
    return statistics.quantiles(times, n=10)[-1]


def flood(broker: BrokerProcess, connections: int, enough: threading.Event) -> None:
    """So many clients at a time with wrong passwords, again and again."""
    while not enough.is_set():
        clients = [Wire(broker.port, name=f"f{number}") for number in range(connections)]
        for client in clients:
            client.send("connect user=ada pass=wrong")
        for client in clients:
            if not enough.is_set():
                client.receive()
            client.drop()


def test_more_passwords_than_can_wait_are_refused_at_once(access: AccessControl) -> None:
    async def rush() -> list[Verdict]:
        credentials = [Credentials(f"c{n}", "ada", b"wrong", f"10.0.{n >> 8}.{n & 255}:1", 4) for n in range(230)]
        answers = [access.authenticate(each) for each in credentials]
        found = await asyncio.gather(*(each for each in answers if not isinstance(each, Verdict)))
        return list(found)

    access._builder.verifier._pool._max = 20
    codes = [verdict.code for verdict in asyncio.run(rush())]
    assert codes.count(ReasonCode.SERVER_BUSY) == 210
    assert codes.count(ReasonCode.BAD_USERNAME_OR_PASSWORD) == 20
    access.close()


# ---- what clients write into names ----


def test_log_injection(files: AccessFiles, tmp_path: Path) -> None:
    """A name with line ends and escapes is one line of the log, whatever it pretends to be."""
    broker = BrokerProcess(
        tmp_path, settings=files.settings(mqtt__control_characters=True), arguments=["--log-format", "text"]
    )
    broker.spawn()
    try:
        broker.port = int(broker.wait_for_log("is ready")["event"].rpartition(":")[2])
        name = 'x\r\n1999-01-01 00:00:00.000 info    client connected  client_id="admin" \x1b[31m\u202e\u2028'
        with Wire(broker.port, name=name) as client:
            client.send(f"connect user='{name}' pass=x")
            client.expect(f"connack {WRONG}", None)
        line = broker.wait_for_log("connection refused")["event"]
        assert line.isprintable() and line.count("\\r\\n1999") == 2 and "\\x1b[31m" in line
        assert not any(line["event"].startswith("1999") for line in broker.log)
    finally:
        broker.close()


def test_prometheus_labels_are_not_made_by_clients(files: AccessFiles, start_broker: StartBroker) -> None:
    broker = files.start(start_broker, auth__allow_anonymous=True)

    def series() -> set[str]:
        address = broker.wait_for_log("HTTP server is listening")["listen"]
        with urllib.request.urlopen(f"{address}/metrics", timeout=DEADLINE) as answer:
            return set(re.findall(r"^(flockmq_\S+) ", answer.read().decode(), re.M))

    before = series()
    for number in range(30):
        with Wire(broker.port, name=f'c{number}",a="') as client:
            client.connect().subscribe(f"t/{number}:1")
            client.send(f"publish t/{number} x retain")
            client.expect(f"publish t/{number} x")
        refused(broker, f"user=u{number} pass=x", WRONG)
    assert series() == before


def test_redis_keys_are_not_widened_by_client_ids(start_cluster: StartCluster) -> None:
    """Neither globs nor hash tags nor what looks like another key: each id is a name and nothing else."""
    cluster = start_cluster({"auth.allow_anonymous": True}, nodes="a")
    names = ["plain", "*", "?", "[a-z]*", "\\*", "{x}", "a:b", "s:plain", "plain:x", "q:plain", "../x", "mq:s:plain"]
    clients = [Wire(cluster["a"].port, name=name).connect("clean=0") for name in names]
    for client in clients:
        client.send("subscribe 1 a/#:1")
        client.expect("suback 1 1")
    keys = {key for key in cluster.redis.key_names() if key.startswith(("mq:s:", "mq:subs:"))}
    assert keys == {f"mq:{kind}:{name}" for name in names for kind in ("s", "subs")}
    clients[1].send("disconnect")
    with Wire(cluster["a"].port, name="*") as star:
        star.connect("")  # a clean session ends the session before: the session of `*`
        star.send("pingreq")
        star.expect("pingresp")
        left = {key for key in cluster.redis.key_names() if key.startswith("mq:subs:")}
        assert left == {f"mq:subs:{name}" for name in names if name != "*"}
    for client in clients:
        client.drop()


@pytest.mark.parametrize("name", ["*", ">", "a.*", "a/>", "?", "[a-z]", "%", "{a}"])
def test_nats_globs_are_letters(name: str, files: AccessFiles, start_broker: StartBroker) -> None:
    """Wildcards of other systems are letters here: in rules, in topics, in names."""
    files.rules("user ada", f"topic readwrite {name}", f"topic readwrite x/{name}/y")
    broker = files.start(start_broker)
    with login(broker, "ada", name) as ada:
        ada.send(f"subscribe 1 {name}:0 x/{name}/y:0 other:0 x/z/y:0 a.b:0 a/b:0")
        ada.expect("suback 1 0 0 0x80 0x80 0x80 0x80")
        ada.send("publish other 1 q1 id=1", "publish x/z/y 1 q1 id=2", f"publish {name} 1")
        ada.expect("puback 1", "puback 2", f"publish {name} 1")


def test_cve_2017_9868_what_is_kept_is_its_owners_only(tmp_path: Path) -> None:
    """Whatever the umask: the database, the files beside it while it is open, and the password file."""
    broker = BrokerProcess(tmp_path, "sqlite").start(umask=0)
    try:
        with Wire(broker.port, name="c") as client:
            client.connect("clean=0").subscribe("a:1")
            client.send("publish a secret q1 id=1 retain")
            client.expect("puback 1")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
            assert modes.keys() >= {"flockmq.db", "flockmq.db-wal"} and set(modes.values()) == {0o600}, modes
    finally:
        broker.close()
