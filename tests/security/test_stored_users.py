"""Users and roles in the store: changes act on all nodes at once, at one node and in a cluster."""

from typing import Any

import pytest

from flockmq._speedups.codec.packets import Auth, Connack, Connect, Disconnect, Suback
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.scram_client import ScramClient
from tests.harness.socket_client import SocketClient
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, UNAVAILABLE, WRONG, refused
from tests.web.http_client import HttpClient

SETTINGS = {"auth.users": True, "auth.failure_delay": 0, "http.listen": "127.0.0.1:0"}


def users(broker: BrokerProcess, action: str, name: str = "", *rules: str, stdin: str = "", **more: object) -> Any:
    """Change a user over the API, as `flockmq users` does."""
    api = HttpClient(broker)
    if action == "add":
        body = {"name": name, "password": stdin, "rules": list(rules) or None, **more}
        reply = api.ask("POST", "/users", body)
    elif action == "remove":
        reply = api.ask("DELETE", "/user", name=name)
    else:
        body = {
            "set-rules": {"rules": list(rules)},
            "set-password": {"password": stdin, **more},
            "disable": {"disabled": True},
            "enable": {"disabled": False},
            "set-roles": {"roles": list(rules)},
        }[action]
        reply = api.ask("PATCH", "/user", body, name=name)
    assert reply.status in (200, 204), reply
    return reply.json if reply.data else None


def client(node: BrokerProcess, user: str, password: str = "", line: str = "") -> Wire:
    return Wire(node.port, name=user).connect(f"user={user} pass={password or user} {line}")


@pytest.fixture
def nodes(start_broker: StartBroker, store: str, start_cluster: StartCluster) -> tuple[BrokerProcess, BrokerProcess]:
    """Two nodes of a cluster; or one node alone, twice."""
    if store == "cluster":
        cluster = start_cluster(SETTINGS, nodes="ab")
        return cluster["a"], cluster["b"]
    node = start_broker(SETTINGS)
    return node, node


def test_users(nodes: tuple[BrokerProcess, BrokerProcess]) -> None:
    a, b = nodes
    refused(a, "", NOT_AUTHORIZED)
    refused(a, "user=ada pass=ada", WRONG)
    users(a, "add", "ada", stdin="ada")
    users(a, "add", "bob", "topic read a/#", "pattern write %u/#", stdin="bob")
    with client(a, "ada") as ada, client(b, "bob") as bob:
        refused(b, "user=ada pass=bob", WRONG, "other")
        bob.send("subscribe 1 a/#:1 b/#:1")
        bob.expect("suback 1 1 0x80")
        ada.send("publish a/x 1 q1 id=1")
        ada.expect("puback 1")
        bob.expect("publish a/x 1 q1 id=1")
        bob.send("puback 1")

        users(a, "set-rules", "bob", "topic read b/#")  # the subscription stays, and delivers nothing
        until(lambda: subscribes(bob, "b/#"), "the new rules hold")
        ada.send("publish a/x 2 q1 id=2", "publish b/x 3 q1 id=3")
        ada.expect("puback 2", "puback 3")
        assert (bob.packet().topic_name, len(bob.frames)) == ("b/x", 0)

        users(a, "disable", "bob")
        assert bob.receive() is None
        refused(a, "user=bob pass=bob", NOT_AUTHORIZED)
        users(a, "enable", "bob")
        client(a, "bob").close()
        users(a, "set-password", "bob", stdin="new")
        refused(a, "user=bob pass=bob", WRONG)
        client(b, "bob", "new").close()
        users(a, "remove", "ada")
        assert ada.receive() is None
    (bob_now,) = HttpClient(b).get("/users")["items"]
    assert (bob_now["name"], bob_now["rules"], bob_now["disabled"]) == ("bob", ["topic read b/#"], False)
    assert bob_now["credentials"] == "argon2id" and "hash" not in bob_now


def test_a_changed_password_ends_connections_at_all_nodes(nodes: tuple[BrokerProcess, BrokerProcess]) -> None:
    a, b = nodes
    for name in ("ada", "bob"):
        users(a, "add", name, stdin=name)
    with Wire(a.port, 5, "a5").connect("user=ada pass=ada") as newer, client(b, "ada") as ada, client(b, "bob") as bob:
        users(a, "set-rules", "ada", "topic readwrite #")  # no password
        users(a, "disable", "bob")
        assert bob.receive() is None
        for one in (newer, ada):
            one.expect_nothing()
        users(a, "set-password", "ada", stdin="new")
        assert newer.packet() == Disconnect(
            0x87, properties={"reason_string": "the password of its user has been changed"}
        )
        assert ada.receive() is None
        with client(b, "ada", "new") as again:
            again.expect_nothing()


def test_a_password_that_changes_during_an_outage_ends_connections_after_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster(SETTINGS, nodes="ab", proxies=True)
    node, other = cluster["a"], cluster["b"]
    users(node, "add", "ada", stdin="ada")
    with client(node, "ada") as ada:
        node.proxy.refuse()
        node.proxy.cut()
        node.wait_for_log("Redis is away")
        assert HttpClient(node).ask("PATCH", "/user", {"disabled": True}, name="ada").status == 503
        users(other, "set-password", "ada", stdin="new")
        node.proxy.resume()
        assert ada.receive() is None
        client(node, "ada", "new").close()


def subscribes(client: Wire, topic_filter: str) -> bool:
    client.send(f"subscribe 9 {topic_filter}:0")
    return bool(client.packet().reason_codes == [0])


def test_users_in_an_outage(start_cluster: StartCluster) -> None:
    """Known users are admitted as clean clients, no others are; changes of that time act in the end."""
    cluster = start_cluster(SETTINGS, nodes="ab", proxies=True)
    node, other = cluster["a"], cluster["b"]
    for name in ("ada", "bob", "eve"):
        users(node, "add", name, stdin=name)
    with client(node, "ada") as ada, client(node, "eve") as eve:
        node.proxy.refuse()
        node.proxy.cut()
        node.wait_for_log("Redis is away")
        ada.close()
        with client(node, "ada"):
            refused(node, "user=ada pass=wrong", WRONG, "x")
            refused(node, "user=bob pass=bob", UNAVAILABLE, "y")
            users(other, "remove", "eve")
            node.proxy.resume()
            node.wait_for_log("Redis is back")
            assert eve.receive() is None
            client(node, "bob").close()


def test_what_is_not_readable_lets_nobody_in(start_cluster: StartCluster) -> None:
    cluster = start_cluster(SETTINGS, nodes="a")
    redis = cluster.redis.client()
    for name, data in (("no-json", b"{"), ("no-hash", b"{}"), ("text", b'"x"'), ("odd", b'{"hash": "$6$a$b"}')):
        redis.hset("mq:users", name, data)
        refused(cluster["a"], f"user={name} pass=x", UNAVAILABLE)
    redis.close()


def test_scram_with_stored_users(nodes: tuple[BrokerProcess, BrokerProcess]) -> None:
    """At each node, with the same salt for an unknown user at all of them."""
    a, b = nodes
    users(a, "add", "ada", "topic read a/#", scram=True, stdin="engine")
    for node in nodes:
        assert scram_login(node, "ada", "engine")[0] == 0
        assert scram_login(node, "ada", "wrong")[0] == 0x86
    client(a, "ada", "engine").close()
    first = scram_login(a, "nobody", "x")
    assert first[0] == 0x86
    until(lambda: scram_login(b, "nobody", "x") == first, "the secret has reached the other node")
    users(a, "set-password", "ada", scram=True, stdin="new")
    until(lambda: scram_login(b, "ada", "new")[0] == 0, "the change has reached the node")
    assert scram_login(b, "ada", "engine")[0] == 0x86
    users(a, "disable", "ada")
    until(lambda: scram_login(a, "ada", "new")[0] == 0x87, "the change has reached the node")


def scram_login(node: BrokerProcess, user: str, password: str) -> tuple[int, str]:
    """The reason code of CONNACK, and the salt."""
    scram = ScramClient(user, password)
    with SocketClient(node.port, level=5) as one:
        properties = {"authentication_method": "SCRAM-SHA-256"}
        connect = {**properties, "authentication_data": scram.first()}
        one.send(Connect("scram", protocol_level=5, keep_alive=0, properties=connect))
        challenge = one.receive()
        assert isinstance(challenge, Auth), challenge
        final = scram.final(challenge.properties["authentication_data"])
        one.send(Auth(0x18, {**properties, "authentication_data": final}))
        connack = one.receive()
        assert isinstance(connack, Connack), connack
        return connack.reason_code, scram.fields["s"]


def test_messages_that_a_member_may_not_read_any_more_go_to_others(start_cluster: StartCluster) -> None:
    """Redis went on to put them into the queue of a persistent session, and its node dropped them."""
    cluster = start_cluster({**SETTINGS, "auth.allow_anonymous": True}, nodes="ab")
    for name in ("one", "two", "ada"):
        users(cluster["a"], "add", name, stdin=name)

    early: list[bytes] = []  # messages that came before SUBACK

    def member(name: str, node: str) -> Wire:
        line = f"user={name} pass={name} clean=0 session_expiry_interval=1000 receive_maximum=20"
        wire = Wire(cluster[node].port, 5, name).connect(line)
        wire.send("subscribe 1 $share/g/jobs/#:1")
        while not isinstance(packet := wire.packet(), Suback):
            early.append(packet.payload)
        return wire

    with member("one", "a") as one, client(cluster["b"], "ada") as ada:
        one.send("subscribe 2 other:1")
        one.expect("suback 2 1")
        cluster.settle()
        ada.send(
            *(f"publish other {number} q1 id={number}" for number in range(1, 41)),
            *(f"publish jobs/secret {number} q1 id={number}" for number in range(41, 51)),
        )
        ada.expect(*(f"puback {number}" for number in range(1, 51)))
        got = [one.packet().payload for _ in range(20)]
        assert got == [b"%d" % number for number in range(1, 21)]
        users(cluster["b"], "set-rules", "one", "topic read other", "topic read jobs/open")
        cluster.settle()
        with member("two", "b") as two:
            one.send(*(f"puback {number}" for number in range(1, 21)))
            two_got = {*early, *(two.packet().payload for _ in range(10 - len(early)))}
            assert two_got == {b"%d" % number for number in range(41, 51)}
