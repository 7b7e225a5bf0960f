"""docker-compose.yml, for real: images are built, containers run, and clients see of it only the load balancer.

One story, because each start costs: a first run, messages between nodes, a node that is stopped and one that is killed,
five in place of three, a stop, and a start with the kept data.
"""

import re
import resource
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Publish
from tests.deploy.debian_images import (
    WheelServer,
    engine_with_images,
    give_compiled,
    keep_compiled,
    wheels,
)
from tests.deploy.engine import Engine
from tests.deploy.exchange import exchange
from tests.deploy.newcomers import Newcomers
from tests.harness.broker_process import until
from tests.harness.socket_client import SocketClient

USER = "10001:10001"
OWN_LAYERS = 40 << 20  # bytes that a node's image adds to its base
PAUSE = 0.3  # s: to ask an engine more often costs too much
SERVICES = ("credentials", "redis", "node", "haproxy")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine with base images and a source of packages."""
    with engine_with_images() as engine:
        give_compiled(engine, "flockmq-test/build:1", "flockmq-test/compiler:1")
        server = WheelServer(wheels(), engine.gateway)
        try:
            engine.set(**variables(engine, server))
            yield engine
        finally:
            server.close()


def variables(engine: Engine, server: WheelServer) -> dict[str, str]:
    """The differences from a deployment: images and packages are made here, and the machine may allow fewer files."""
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 131_072)
    return {
        "BUILD_IMAGE": "flockmq-test/compiler:1",
        "BASE_IMAGE": "flockmq-test/base:1",
        "REDIS_IMAGE": "flockmq-test/base:1",
        "HAPROXY_IMAGE": "flockmq-test/base:1",
        "PIP_FIND_LINKS": server.url,
        "PIP_NO_INDEX": "1",
        "PIP_TRUSTED_HOST": engine.gateway,
        "MQTT_PUBLISH": f"{engine.address}:1883",
        "NODE_LOG_LEVEL": "debug",
        "NOFILE": str(files),
        "MAXCONN": str(files // 2 - 500),
    }


class Story:
    """Questions that the test asks of the deployment again and again."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.place = (engine.address, 1883)
        self.login: dict[str, Any] = {"username": "flockmq", "password": b""}

    def read_password(self) -> None:
        """As in COMPOSE.md: the password of the first user, which was made at the first run."""
        place = ["--entrypoint", "cat", "credentials", "/volumes/mqtt-password/password"]
        self.login["password"] = self.engine.compose("run", "--rm", *place).strip().encode()

    def connect(self, client_id: str, **connect: object) -> SocketClient:
        """A client, which comes through the load balancer."""
        return SocketClient(1883, client_id, host=self.engine.address, **{**self.login, **connect})

    def node_of(self, client_id: str, client: SocketClient | None = None) -> str:
        """The container of the node that has a client, by the node's log: it sees the client's own address."""
        port = client.socket.getsockname()[1] if client else r"\d+"
        pattern = rf"client connected .*client_id={client_id} address={self.engine.gateway}:{port} "

        def name() -> str:
            names = [str(found["Name"]).removeprefix("/") for found in self.engine.containers("node")]
            return next((name for name in names if re.search(pattern, self.engine.log(name))), "")

        return str(until(name, client_id, pause=PAUSE))

    def up(self, *arguments: str) -> None:
        """Start what is missing, and wait until all is healthy."""
        self.engine.compose("up", "--detach", *arguments)
        until(lambda: set(map(health, self.running())) == {"healthy"}, "all containers are healthy", pause=PAUSE)

    def running(self) -> list[dict[str, Any]]:
        """The containers that should go on."""
        found = self.engine.containers()
        return [one for one in found if one["Config"]["Labels"]["com.docker.compose.service"] in SERVICES[1:]]


def health(container: dict[str, Any]) -> str:
    return str(container["State"].get("Health", {}).get("Status"))


@pytest.mark.timeout(1800)  # machines differ in how fast they unpack Debian and compile
def test_the_compose_file(engine: Engine) -> None:
    story = Story(engine)
    engine.compose("build")
    keep_compiled(engine)
    check_image(engine)
    story.up()
    assert len(engine.containers("node")) == 3
    story.read_password()
    check_containers(story)
    check_secrets(engine)
    check_users(story)
    exchange(*story.place, "first", "second", **story.login)
    assert story.node_of("first") != story.node_of("second")
    keep_something(story)
    stop_a_node(story)
    kill_a_node(story)
    story.up("--scale", "node=5")
    check_five_nodes(story)
    engine.compose("stop")
    ended = {found["Name"]: found["State"]["ExitCode"] for found in engine.containers()}
    assert len(ended) == 8 and set(ended.values()) == {0}, ended
    story.up()
    find_it_again(story)
    engine.compose("down", "--volumes")


def check_image(engine: Engine) -> None:
    """The image can't compile or install, and is not root. Alone it is a broker."""
    run = ["run", "--rm", "--entrypoint", "sh", "flockmq", "-c"]
    assert engine.docker(*run, "command -v gcc pip; id -u").split() == ["10001"]
    check_first_start(engine)
    publish = ["--publish", f"{engine.address}:1884:1883", "--env", "FLOCKMQ_AUTH_ALLOW_ANONYMOUS=true"]
    alone = engine.docker("run", "--detach", *publish, "flockmq").strip()
    until(lambda: health(engine.inspect(alone)[0]) == "healthy", "a node alone is healthy")
    with SocketClient(1884, "alone", host=engine.address, clean_start=False) as client:
        assert client.subscribe(("#", 2)) == [2]
    engine.docker("stop", alone)
    assert engine.inspect(alone)[0]["State"]["ExitCode"] == 0
    layers = engine.docker("history", "--human=false", "--format", "{{.CreatedBy}}|{{.Size}}", "flockmq")
    sizes = [int(size) for size in re.findall(r"COPY.*\|(.*)", layers)]
    assert 0 < sum(sizes) < OWN_LAYERS, sizes


def check_first_start(engine: Engine) -> None:
    """`docker run -p 1883:1883 flockmq` makes a user and a token, which no log has, and keeps them."""
    publish = ["--publish", f"{engine.address}:1884:1883", "--publish", f"{engine.address}:8081:8080"]
    first = engine.docker("run", "--detach", "--read-only", *publish, "flockmq").strip()
    until(lambda: health(engine.inspect(first)[0]) == "healthy", "the first start is healthy")
    password, token = engine.docker("exec", first, "cat", "first-password", "first-token").split()
    assert engine.docker("exec", first, "stat", "--format", "%a", "first-password", "passwords").split() == ["600"] * 2
    log = engine.log(first)
    assert "cat first-password first-token" in log and password not in log and token not in log
    with SocketClient(1884, "stranger", host=engine.address) as stranger:
        assert stranger.connack is not None and stranger.connack.reason_code in (4, 5)
    login = {"username": "flockmq", "password": password.encode(), "host": engine.address, "clean_start": False}
    with SocketClient(1884, "kept", **login) as client:
        assert client.subscribe(("#", 2)) == [2]
    url = f"http://{engine.address}:8081/api/v1/nodes"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})) as reply:
        assert reply.status == 200
    engine.docker("restart", first)
    until(lambda: health(engine.inspect(first)[0]) == "healthy", "the second start is healthy")
    with SocketClient(1884, "kept", **login) as client:
        assert client.connack is not None and client.connack.session_present
    engine.docker("stop", first)
    assert engine.inspect(first)[0]["State"]["ExitCode"] == 0


def check_containers(story: Story) -> None:
    """Hardened by the file, and as the engine has understood it."""
    for container in [*story.running(), *story.engine.containers("credentials")]:
        host, name = container["HostConfig"], container["Name"]
        assert container["Config"]["User"] == USER, name
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"], name
        assert "no-new-privileges:true" in host["SecurityOpt"], name
        assert host["Memory"] and host["PidsLimit"], name
        assert host["LogConfig"]["Config"]["max-size"], name
        assert set(host["PortBindings"] or ()) <= {"1883/tcp"}, name
    for service in SERVICES[1:]:
        container = story.engine.containers(service)[0]["Id"]
        assert story.engine.docker("exec", container, "id", "-u").strip() == "10001"
        status = story.engine.docker("exec", container, "cat", "/proc/1/status")
        assert re.search(r"CapEff:\s+0+$", status, re.M) and re.search(r"NoNewPrivs:\s+1$", status, re.M)


def check_secrets(engine: Engine) -> None:
    """Redis asks for a password, which was made here and stands nowhere where others look."""
    redis = engine.containers("redis")[0]["Id"]
    assert "NOAUTH" in engine.docker("exec", redis, "redis-cli", "ping")
    password = engine.docker("exec", redis, "cat", "/run/redis-password/password").strip()
    assert len(password) == 32
    mode = engine.docker("exec", redis, "stat", "--format", "%a %u", "/run/redis-password/password")
    assert mode.split() == ["400", "10001"]
    seen = str(engine.containers()) + engine.compose("logs", "--no-color")
    seen += "".join(engine.docker("top", container["Id"]) for container in engine.containers("node"))
    assert password not in seen


def check_users(story: Story) -> None:
    """No client is admitted without a password; a user that is made while the nodes run is, at each of them."""
    assert len(story.login["password"]) == 32
    for wrong in ({"username": None, "password": None}, {"password": b"guess"}):
        with story.connect("stranger", **wrong) as stranger:
            assert stranger.connack is not None and stranger.connack.reason_code in (4, 5)
    node = story.engine.containers("node")[0]["Id"]
    add = ["sh", "-c", "echo of-ada | flockmq users add ada 'topic read news/#'"]
    story.engine.docker("exec", node, *add)
    with story.connect("ada", username="ada", password=b"of-ada") as ada:
        assert ada.subscribe(("news/#", 1), ("other/#", 1)) == [1, 128]


def keep_something(story: Story) -> None:
    """A retained message, and a session with a message in its queue."""
    with story.connect("absent", clean_start=False) as absent:
        absent.subscribe(("kept/#", 1))
    with story.connect("keeper") as keeper:
        keeper.send(Publish("kept/value", b"21.5", 1, retain=True, packet_id=1))
        keeper.receive()


def find_it_again(story: Story) -> None:
    """The data of `keep_something`: the volume of Redis has outlived its container's stop."""
    with story.connect("absent", clean_start=False) as absent:
        assert absent.connack is not None and absent.connack.session_present
        queued = absent.receive()
        assert isinstance(queued, Publish) and queued.payload == b"21.5"
    with story.connect("reader") as reader:
        reader.subscribe(("kept/value", 0))
        retained = reader.receive()
        assert isinstance(retained, Publish) and retained.retain and retained.payload == b"21.5"


def stop_a_node(story: Story) -> None:
    """SIGTERM: while the node drains, new clients get in at another one."""
    with story.connect("early"), Newcomers(*story.place, **story.login) as newcomers:
        newcomers.wait_for_more()
        node = story.node_of("early")
        story.engine.docker("stop", "-t", "60", node)
        newcomers.wait_for_more()
    state = {container["Name"]: container["State"] for container in story.engine.containers("node")}[f"/{node}"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
    story.up()


def kill_a_node(story: Story) -> None:
    """kill -9: its clients are cut off, come back through another node, and have lost nothing."""
    durable = story.connect("durable", clean_start=False)
    durable.subscribe(("kept/durable", 1))
    node = story.node_of("durable", durable)
    story.engine.docker("kill", node)
    assert durable.receive() is None
    with story.connect("witness") as witness:
        witness.send(Publish("kept/durable", b"while away", 1, packet_id=1))
        witness.receive()
    with story.connect("durable", clean_start=False) as durable:
        assert durable.connack is not None and durable.connack.session_present
        message = durable.receive()
        assert isinstance(message, Publish) and message.payload == b"while away"
        assert story.node_of("durable", durable) != node
    exchange(*story.place, "third", "fourth", **story.login)


def check_five_nodes(story: Story) -> None:
    """All five get clients, and see each other."""
    clients: list[SocketClient] = []
    nodes: set[str] = set()
    while len(nodes) < 5:
        assert len(clients) < 60, nodes
        clients.append(story.connect(f"one-of-many-{len(clients)}"))
        clients[-1].subscribe(("news", 1))
        nodes.add(story.node_of(f"one-of-many-{len(clients) - 1}"))
    clients[0].send(Publish("news", b"hello", 1, packet_id=9))
    for client in clients:
        message = (
            client.receive()
            if client is not clients[0]
            else until(lambda: next((p for p in [clients[0].receive()] if isinstance(p, Publish)), None))
        )
        assert isinstance(message, Publish) and message.payload == b"hello"
        client.close()
