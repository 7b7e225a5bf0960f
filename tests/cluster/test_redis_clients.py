"""Every form of URL reaches a real Redis: by redis-py, blocking and asyncio, and by our own connection."""

import asyncio
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
import uvloop

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.streams.message_log import LogAway
from flockmq.cluster.redis.clients import RedisAddress
from flockmq.cluster.streams.redis_log import RedisLog
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient

StartRedis = Callable[..., RedisProcess]
StartCluster = Callable[..., ClusterProcess]


def ping_raw(address: RedisAddress) -> bytes:
    """The answers to AUTH and PING over our own connection."""
    endpoint = asyncio.run(address.endpoint())
    if isinstance(endpoint, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(endpoint)
    else:
        connection = socket.create_connection(endpoint)
    with connection:
        context = address.ssl_context()
        if context is not None:
            assert isinstance(endpoint, tuple)
            connection = context.wrap_socket(connection, server_hostname=endpoint[0])
        if address.password:
            connection.sendall(f"AUTH {address.username or 'default'} {address.password}\r\n".encode())
            assert connection.recv(100) == b"+OK\r\n"
        connection.sendall(b"PING\r\n")
        answer = connection.recv(100)
        connection.close()
        return answer


async def check_async(address: RedisAddress) -> None:
    client = address.async_client()
    assert await client.ping()
    assert await client.get("who") == b"me"
    await client.aclose()


def check(url: str) -> None:
    """All ways to the Redis that `url` names."""
    address = RedisAddress.parse(url)
    with address.client() as client:
        assert client.ping()
        client.set("who", "me")
    asyncio.run(check_async(address))
    assert ping_raw(address) == b"+PONG\r\n"


def test_tcp_and_database(redis_server: RedisProcess) -> None:
    check(redis_server.url)
    check(f"{redis_server.url}/3")
    assert redis_server.client(db=3).get("who") == "me"
    assert redis_server.client(db=4).get("who") is None


def test_a_wrong_password(start_redis: StartRedis) -> None:
    server = start_redis(["--requirepass", "ses@me/1"], {"password": "ses@me/1"})
    check(f"redis://:ses%40me%2F1@127.0.0.1:{server.port}")
    with pytest.raises(redis.AuthenticationError):
        RedisAddress.parse(f"redis://:wrong@127.0.0.1:{server.port}").client().ping()


def test_a_password_from_a_file(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis(["--requirepass", "ses@me/1"], {"password": "ses@me/1"})
    (tmp_path / "password").write_text("ses@me/1\n")
    check(f"redis://127.0.0.1:{server.port}?password_file={tmp_path}/password")


def test_an_acl_user(redis_server: RedisProcess) -> None:
    redis_server.client().acl_setuser("node", enabled=True, passwords=["+sesame"], categories=["+@all"], keys=["*"])
    check(f"redis://node:sesame@127.0.0.1:{redis_server.port}")


def test_unix_socket(start_redis: StartRedis, tmp_path: Path) -> None:
    start_redis(["--unixsocket", str(tmp_path / "r.sock")])
    check(f"unix://{tmp_path}/r.sock")
    check(f"unix://{tmp_path}/r.sock?db=2")


def test_nobody_there() -> None:
    with pytest.raises(redis.ConnectionError):
        RedisAddress.parse(f"redis://127.0.0.1:{free_port()}").client().ping()


# ---- TLS ------------------------------------------------------------------------------------------------------------


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=DEADLINE)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and certificates for 127.0.0.1, for another name, and for a client."""
    directory = tmp_path_factory.mktemp("tls")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(directory, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    names = {"server": "IP:127.0.0.1", "other": "DNS:elsewhere.example", "client": "DNS:client.example"}
    for name, alternative in names.items():
        openssl(directory, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (directory / "ext").write_text(f"subjectAltName={alternative}\n")
        openssl(
            directory,
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            "ext",
            "-out",
            f"{name}.crt",
        )
    return directory


def tls_server(start_redis: StartRedis, directory: Path, name: str, *more: str, clients: bool = False) -> RedisProcess:
    """A Redis that speaks TLS only, as `name`; `clients` must have certificates."""
    try:
        return start_redis(
            [
                "--port",
                "0",
                "--tls-port",
                "0",
                "--tls-cert-file",
                f"{directory}/{name}.crt",
                "--tls-key-file",
                f"{directory}/{name}.key",
                "--tls-ca-cert-file",
                f"{directory}/ca.crt",
                "--tls-auth-clients",
                "yes" if clients else "no",
                *more,
            ],
            {
                "ssl": True,
                "ssl_cert_reqs": "none",
                "ssl_check_hostname": False,
                "ssl_certfile": f"{directory}/client.crt",
                "ssl_keyfile": f"{directory}/client.key",
            },
        )
    except AssertionError as error:
        if "Bad directive" in str(error):
            pytest.skip("this Redis has no TLS")
        raise


def test_tls(start_redis: StartRedis, certificates: Path) -> None:
    server = tls_server(start_redis, certificates, "server")
    place = f"rediss://127.0.0.1:{server.port}"
    check(f"{place}?ca_file={certificates}/ca.crt")
    check(f"{place}/1?verify=none")
    with pytest.raises(redis.ConnectionError):
        check(place)
    with pytest.raises(ssl.SSLCertVerificationError):
        ping_raw(RedisAddress.parse(place))


def test_tls_with_another_name(start_redis: StartRedis, certificates: Path) -> None:
    server = tls_server(start_redis, certificates, "other")
    place = f"rediss://127.0.0.1:{server.port}?ca_file={certificates}/ca.crt"
    check(f"{place}&verify=ca")
    with pytest.raises(redis.ConnectionError):
        check(place)
    with pytest.raises(ssl.SSLCertVerificationError):
        ping_raw(RedisAddress.parse(place))


def test_tls_with_a_client_certificate(start_redis: StartRedis, certificates: Path) -> None:
    server = tls_server(start_redis, certificates, "server", clients=True)
    place = f"rediss://127.0.0.1:{server.port}?ca_file={certificates}/ca.crt"
    check(f"{place}&cert_file={certificates}/client.crt&key_file={certificates}/client.key")
    with pytest.raises(redis.ConnectionError):
        RedisAddress.parse(place).client().ping()


def test_tls_of_a_redis_cluster(start_redis: StartRedis, certificates: Path) -> None:
    cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", str(free_port())]
    server = tls_server(start_redis, certificates, "server", *cluster)
    server.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
    place = f"127.0.0.1:{free_port()},127.0.0.1:{server.port}"
    until(lambda: "cluster_state:ok" in str(server.client().execute_command("CLUSTER", "INFO")))
    check(f"rediss+cluster://{place}?ca_file={certificates}/ca.crt")
    check(f"redis+cluster://{place}?tls=true&verify=none")
    with pytest.raises(redis.ConnectionError, match="certificate"):
        RedisAddress.parse(f"rediss+cluster://{place}").client().ping()
    with pytest.raises(OSError, match="certificate"):
        asyncio.run(RedisAddress.parse(f"rediss+cluster://{place}").endpoint())


# ---- Sentinel -------------------------------------------------------------------------------------------------------


@pytest.fixture
def sentinel(start_redis: StartRedis, tmp_path: Path) -> Iterator[tuple[RedisProcess, RedisProcess, RedisProcess]]:
    """A Sentinel with a password, its master named `fleet`, and a replica."""
    secret = ["--requirepass", "sesame", "--masterauth", "sesame"]
    master = start_redis(secret, {"password": "sesame"})
    replica = start_redis([*secret, "--replicaof", "127.0.0.1", str(master.port)], {"password": "sesame"})
    directory = tmp_path / "sentinel"
    directory.mkdir()
    (directory / "redis.conf").write_text(
        f"requirepass guard\nsentinel monitor fleet 127.0.0.1 {master.port} 1\nsentinel auth-pass fleet sesame\n"
        "sentinel down-after-milliseconds fleet 3000\nsentinel failover-timeout fleet 6000\n"
    )
    process = RedisProcess(directory, [], {"password": "guard"}, sentinel=True).start()
    yield process, master, replica
    process.kill()


def endpoint_or_error(address: RedisAddress) -> object:
    try:
        return asyncio.run(address.endpoint())
    except OSError as error:
        return error


def wait(condition: Callable[[], object]) -> None:
    """Wait for a condition that a Sentinel has to be asked for."""
    until(condition, deadline=60)


def test_sentinel(sentinel: tuple[RedisProcess, RedisProcess, RedisProcess]) -> None:
    guard, master, replica = sentinel
    down = free_port()
    url = f"redis+sentinel://:sesame@127.0.0.1:{down},127.0.0.1:{guard.port}/fleet/1?sentinel_password=guard"
    check(url)
    address = RedisAddress.parse(url)
    assert asyncio.run(address.endpoint()) == ("127.0.0.1", master.port)
    asked = guard.client()
    wait(lambda: asked.execute_command("SENTINEL", "REPLICAS", "fleet"))
    wait(lambda: replica.client().info("replication").get("master_link_status") == "up")
    master.kill()
    wait(lambda: endpoint_or_error(address) == ("127.0.0.1", replica.port))
    wait(lambda: replica.client().info("replication")["role"] == "master")
    check(url)


def test_sentinel_that_does_not_help(sentinel: tuple[RedisProcess, RedisProcess, RedisProcess]) -> None:
    guard = sentinel[0]
    place = f"redis+sentinel://127.0.0.1:{guard.port}"
    for url in (
        f"{place}/nobody?sentinel_password=guard",
        f"{place}/fleet",
        f"redis+sentinel://127.0.0.1:{free_port()}/fleet",
    ):
        address = RedisAddress.parse(url)
        with pytest.raises(OSError, match="no Sentinel names the master"):
            asyncio.run(address.endpoint())
        with pytest.raises(redis.RedisError):
            address.client().ping()


# ---- nodes ----------------------------------------------------------------------------------------------------------


def exchange(cluster: ClusterProcess) -> None:
    """Messages from one node to a client of the other, which all arrive, in order."""
    with SocketClient(cluster["a"].port, "sub") as subscriber, SocketClient(cluster["b"].port, "pub") as publisher:
        for qos in (0, 1):
            subscriber.subscribe((f"qos{qos}", qos))
            cluster.settle()
            payloads = [b"%d" % size + b"x" * size for size in (1, 300_000, 2, 70_000, 3)]
            for payload in payloads:
                publisher.send(Publish(f"qos{qos}", payload, qos, False, False, qos))
            received = [subscriber.receive() for _ in payloads]
            assert [packet.payload for packet in received if isinstance(packet, Publish)] == payloads


def test_nodes_over_tls(start_redis: StartRedis, start_cluster: StartCluster, certificates: Path) -> None:
    server = tls_server(start_redis, certificates, "server")
    url = f"rediss://127.0.0.1:{server.port}?ca_file={certificates}/ca.crt"
    cluster = start_cluster(redis=GivenRedis(server, url), nodes="ab")
    exchange(cluster)
    server.client().execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    for node in cluster.nodes:
        node.wait_for_log("Redis is back")
    exchange(cluster)


def test_nodes_over_a_unix_socket(start_redis: StartRedis, start_cluster: StartCluster, tmp_path: Path) -> None:
    server = start_redis(["--unixsocket", str(tmp_path / "r.sock")])
    exchange(start_cluster(redis=GivenRedis(server, f"unix://{tmp_path}/r.sock"), nodes="ab"))


@pytest.mark.parametrize("allowed", [True, False])
def test_redis_replies_to_publish_only_if_it_must(
    redis_server: RedisProcess, start_cluster: StartCluster, allowed: bool
) -> None:
    rights = ["+@all"] if allowed else ["+@all", "-client|reply"]
    redis_server.client().execute_command("ACL", "SETUSER", "node", "on", ">sesame", "~*", "&*", *rights)
    url = f"redis://node:sesame@127.0.0.1:{redis_server.port}/0"
    exchange(start_cluster(redis=GivenRedis(redis_server, url), nodes="ab"))
    calls = redis_server.client().info("commandstats").get("cmdstat_client|reply", {"calls": 0})["calls"]
    assert calls >= 2 + 5 if allowed else calls == 0


def test_a_connection_that_ends_while_it_is_made() -> None:
    """uvloop raises RuntimeError then, which redis-py passes on: for streams the log is away, and they go on later."""

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with server.accept()[0] as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                    connection.recv(1000)
                    connection.sendall(b"%0\r\n")

    async def read(url: str) -> None:
        message_log = RedisLog(RedisAddress.parse(url))
        for _ in range(20):
            with pytest.raises(LogAway):
                await message_log.nodes()
        message_log.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            uvloop.run(read(f"redis://127.0.0.1:{server.getsockname()[1]}"))
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join()
