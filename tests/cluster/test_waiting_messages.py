"""Waiting messages in Redis: no acknowledged message counts, and in a full queue none that has expired."""

import time
from typing import Any

import pytest

from flockmq._speedups.base.msgpack import pack
from flockmq._speedups.cluster.message_codec import encode_message
from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.function_caller import NO_MESSAGE, Caller, counted_size
from tests.harness.redis_process import RedisProcess
from tests.harness.shared_subscriber import Worker
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue, stored_session

JOBS = b"$share/g/jobs"
FOREVER = {"session_expiry_interval": 0xFFFFFFFF}
LATER = 10_000  # milliseconds of the cluster's clock


class Queue:
    """The queue of session `a`, whose client is at node `n1` if it is `connected`.

    A text has a letter for each message. Messages in small letters expire in a second.
    """

    def __init__(self, caller: Caller, *, connected: bool = False) -> None:
        self.caller, self.redis = caller, caller.redis
        if connected:
            caller.claimed(b"n1", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)

    def push(self, text: str, *, most: int = 100, size: int = 1, **parts: Any) -> Any:
        messages = [self._message(letter, size) for letter in text]
        places = [*range(1, len(text) + 1)]
        pushes = [[b"a", self.caller.incarnation(b"a"), *places]]
        return self.caller.commit(messages=messages, pushes=pushes, most=most, **parts)

    def share(self, text: str, *, most: int = 100, drop_old: bool = False, size: int = 1) -> Any:
        messages = [self._message(letter, size) for letter in text]
        limits = (most, 1 << 20, int(drop_old))
        return self.caller.commit(messages=messages, shares=[JOBS, range(1, len(text) + 1)], group_limits=limits)

    def _message(self, letter: str, size: int) -> bytes:
        deadline = self.time + 1000 if letter.islower() else 0
        return encode_message(b"t", letter.encode() * size, 1, False, b"", deadline)

    @property
    def time(self) -> int:
        """The clock of the cluster."""
        return int(self.redis.hget("mq:clock", "t") or 0) or int(time.time() * 1000)

    def pass_time(self) -> None:
        self.redis.hset("mq:clock", mapping={"t": self.time + LATER, "w": int(time.time() * 1000)})

    def acknowledge(self, *numbers: int, received: tuple[int, ...] = ()) -> None:
        entries = stored_queue(self.redis, "a")
        head = stored_session(self.redis, "a").head
        sizes = {number: len(entries[number - head]) for number in (*numbers, *received) if number >= head}
        for number in numbers:
            if self.redis.hget("mq:st:a", number) == b"r":
                sizes[number] = 0
        pairs = [part for number in received for part in (number, sizes[number])]
        done = sum(sizes.get(number, 0) for number in numbers)
        acks = [[b"a", self.caller.incarnation(b"a"), list(numbers), pairs, done]]
        assert self.caller.call("acks", b"n1", [[], acks], b"") != [b"gone"]

    @property
    def texts(self) -> str:
        """The messages that wait, and `.` for an entry that is done."""
        entries = stored_queue(self.redis, "a")
        assert stored_session(self.redis, "a").queued_bytes == counted_size(entries)
        marks = self.redis.hgetall("mq:st:a")
        assert stored_session(self.redis, "a").marks == len(marks)
        assert stored_session(self.redis, "a").done == [*marks.values()].count(b"d")
        return "".join("." if entry == NO_MESSAGE else chr(entry[-1]) for entry in entries)


@pytest.fixture
def queue(caller: Caller) -> Queue:
    caller.call("beat", b"n1", 0, [])
    return Queue(caller)


@pytest.fixture
def connected(caller: Caller) -> Queue:
    caller.call("beat", b"n1", 0, [])
    return Queue(caller, connected=True)


# ---- acknowledged messages ----


def test_messages_behind_one_that_is_not_acknowledged(connected: Queue) -> None:
    connected.push("AB")
    connected.acknowledge(2)
    assert connected.texts == "A."
    assert connected.push("C", most=2)[1] == 0
    assert connected.push("D", most=2)[1] == 1
    connected.acknowledge(3)
    connected.push("E", most=2)
    assert connected.texts == "A..E"
    connected.acknowledge(1)
    assert connected.texts == "E"
    assert stored_session(connected.redis, "a").head == 4


def test_bytes_of_messages_behind_one_that_is_not_acknowledged(connected: Queue) -> None:
    """Also of QoS 2: after PUBREC its message counts as one, and has no bytes."""
    most = 3 << 18
    connected.push("AB", size=most // 2)
    connected.acknowledge(2)
    assert connected.push("C", size=most // 2)[1] == 0
    connected.acknowledge(received=(1,))
    assert connected.texts == "..C"
    assert connected.push("D", size=most // 2)[1] == 0
    connected.acknowledge(1)
    assert connected.texts == "CD"


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (3, 1, 2)])
@pytest.mark.parametrize("repeated", [False, True])
def test_acknowledgements_in_any_order(connected: Queue, order: tuple[int, ...], repeated: bool) -> None:
    connected.push("ABC")
    for number in order:
        for _ in range(1 + repeated):
            connected.acknowledge(received=(number,))
    assert connected.texts == "..."
    for number in order:
        for _ in range(1 + repeated):
            connected.acknowledge(number)
    assert connected.texts == ""
    assert not connected.redis.exists("mq:st:a")
    connected.push("DEF")
    connected.acknowledge(*(number + 3 for number in order))
    assert connected.texts == ""


def test_the_queue_of_an_absent_client(queue: Queue, caller: Caller) -> None:
    """Drop-old dropped messages that had never been sent, since others before them were acknowledged."""
    epoch = caller.claimed(b"n1", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)[0]
    queue.push("ABC")
    queue.acknowledge(2, 3)
    caller.commit(releases=[[b"a", epoch, 4]])
    queue.push("DE", most=3, drop_oldest=True)
    assert queue.texts == "A..DE"
    assert queue.push("F", most=3, drop_oldest=True)[1] == 1
    assert queue.texts == "A..EF"


def test_room_of_a_subscriber(redis_server: RedisProcess) -> None:
    """Its window was filled by messages that it had acknowledged behind one message."""
    caller = Caller(redis_server.port)
    epoch = caller.claimed(b"n1", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)[0]
    caller.commit(changes=pack([["subscribed", b"a", caller.incarnation(b"a"), JOBS, 2, 0], ["mark", 1]]))
    caller.call("acks", b"n1", [[], []], [[], [], [], [[JOBS, b"a", epoch, 3, 1, 2, 0, b""]]])
    queue = Queue(caller)
    queue.share("ABCD")
    assert len(stored_queue(caller.redis, "a")) == 3
    for number in (2, 3):
        queue.acknowledge(number)
    assert queue.texts[0] == "A"
    assert queue.texts[3:] == "D"
    queue.share("EFG")
    assert queue.texts[3:] == "DE"
    caller.close()


# ---- expired messages ----


@pytest.mark.parametrize("drop_oldest", [False, True])
@pytest.mark.parametrize(("before", "after"), [("Ko", "KN"), ("oK", "KN"), ("oo", "N"), ("KoLo", "KLN")])
def test_a_full_queue_drops_what_has_expired(queue: Queue, before: str, after: str, drop_oldest: bool) -> None:
    queue.push(before)
    queue.pass_time()
    assert queue.push("N", most=len(before), drop_oldest=drop_oldest)[:3] == [0, 0, before.count("o")]
    assert queue.texts == after
    assert queue.push("N", most=len(after))[1] == 1  # there is nothing more to drop


def test_it_looks_again_when_a_later_one_has_expired(queue: Queue) -> None:
    queue.push("KoL")
    queue.pass_time()
    queue.push("M", most=3)
    queue.push("p", most=3)
    assert queue.texts == "KLM"
    queue.caller.call("limit", b"n1", b"a", "4 100000 0")
    queue.push("p")
    queue.pass_time()
    queue.push("N")
    assert queue.texts == "KLMN"


def test_what_was_sent_stays(queue: Queue, caller: Caller) -> None:
    epoch = caller.claimed(b"n1", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)[0]
    queue.push("oo")
    caller.commit(releases=[[b"a", epoch, 2]])  # the first of them
    queue.pass_time()
    queue.push("N", most=2)
    assert queue.texts == "oN"


def test_a_long_queue_is_looked_at_in_steps(queue: Queue) -> None:
    """A call reads a part. The queue may have more than its limit until all has been read, and then drops again."""
    for _ in range(12):
        queue.push("K" * 1000, most=100_000)
    queue.push("oo", most=100_000)
    queue.pass_time()
    assert [queue.push("N", most=12_002)[1:3] for _ in range(4)] == [[0, 0], [0, 0], [1, 2], [1, 0]]
    assert queue.texts == "K" * 12_000 + "NN"


@pytest.fixture
def group(queue: Queue) -> Queue:
    queue.caller.call("declare_group", b"n1", JOBS, "{}")
    return queue


def waiting(group: Queue) -> str:
    """The messages of the group that wait, in their order."""
    redis = group.redis
    back = sorted((int(place), message) for place, message in redis.hgetall(b"mq:gm:" + JOBS).items())
    assert [b"%d" % place for place, _ in back] == redis.zrange(b"mq:gq:" + JOBS, 0, -1)
    listed = redis.lrange(b"mq:gw:" + JOBS, 0, -1)
    assert int(redis.hget(b"mq:g:" + JOBS, "e") or 0) == listed.count(b"")
    messages = [message for _, message in back] + [message for message in listed if message]
    assert int(redis.hget(b"mq:g:" + JOBS, "b") or 0) == sum(map(len, messages))
    assert group.caller.call("waiting", [JOBS]) == [len(messages), sum(map(len, messages))]
    return "".join(chr(message[-1]) for message in messages)


@pytest.mark.parametrize("drop_old", [False, True])
@pytest.mark.parametrize(("before", "after"), [("Ko", "KN"), ("oK", "KN"), ("oo", "N"), ("KoLo", "KLN")])
def test_a_full_group_drops_what_has_expired(group: Queue, before: str, after: str, drop_old: bool) -> None:
    group.share(before)
    group.pass_time()
    assert group.share("N", most=len(before), drop_old=drop_old)[1:3] == [0, before.count("o")]
    assert waiting(group) == after
    last = int(group.redis.hget(b"mq:g:" + JOBS, "n") or 0)
    assert last == len(before) + 1
    assert group.share("N", most=len(after))[1] == 1
    group.caller.call("acks", b"n1", [[], []], [[], [JOBS, 100, 1, 0, 0], [], []])  # a node has room for all
    assignments = {int(place): chr(message[-1]) for place, message in group.redis.hgetall(b"mq:gl:n1 " + JOBS).items()}
    assert "".join(letter for _, letter in sorted(assignments.items())) == after
    assert max(assignments) == last
    assert waiting(group) == ""


@pytest.mark.parametrize("settings", ['{"last_value": true}', '{"strategy": "topic"}'])
def test_groups_of_other_kinds(group: Queue, settings: str) -> None:
    group.caller.call("declare_group", b"n1", JOBS, settings)
    group.share("o")
    group.pass_time()
    assert group.share("N", most=1)[1] == 0
    assert waiting(group) == "N"


def test_a_group_in_which_a_message_stays_does_not_grow(group: Queue) -> None:
    group.share("K" * 700, most=1000)
    for _ in range(60):
        group.share("o" * 300, most=1000)
        group.pass_time()
        assert group.share("p", most=1000)[1] == 0
    assert group.redis.llen(b"mq:gw:" + JOBS) < 2000
    assert waiting(group).count("K") == 700


# ---- real nodes ----


def take(client: SocketClient) -> Publish:
    packet = client.receive()
    assert isinstance(packet, Publish), packet
    return packet


class Clients:
    """A subscriber at node `a` and a publisher at node `b`."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        self.subscriber = self.connect()
        self.subscriber.send(Subscribe(1, [("t", 2)]))
        self.subscriber.receive()
        self.publisher = SocketClient(cluster["b"].port, "publisher", level=5)

    def connect(self) -> SocketClient:
        return SocketClient(self.cluster["a"].port, "subscriber", level=5, clean_start=False, properties=FOREVER)

    def publish(self, payload: bytes, qos: int = 1, expiry: int = 0, topic: str = "t") -> None:
        properties = {"message_expiry_interval": expiry} if expiry else {}
        self.publisher.send(Publish(topic, payload, qos, packet_id=1, properties=properties))
        answer = self.publisher.receive()
        assert isinstance(answer, Puback | Pubrec)
        assert answer.reason_code == 0
        if qos == 2:
            self.publisher.send(Pubrel(1))
            self.publisher.receive()

    def wait_for_expiry(self) -> None:
        """A retained message with a longer interval is gone: clocks of nodes are late, never early."""
        self.publisher.send(Publish("gone", b"x", 1, True, packet_id=1, properties={"message_expiry_interval": 2}))
        self.publisher.receive()
        until(lambda: not self._is_retained())

    def _is_retained(self) -> bool:
        with SocketClient(self.cluster["b"].port, "watcher") as watcher:
            watcher.subscribe(("gone", 0))
            return bool(watcher.ping())


@pytest.mark.parametrize("withheld", ["puback", "pubrec", "pubcomp"])
@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
def test_a_client_that_withholds_one_acknowledgement(start_cluster: StartCluster, withheld: str, policy: str) -> None:
    clients = Clients(start_cluster({"limits.max_queued_messages": 2, "limits.queue_policy": policy}, nodes="ab"))
    clients.publish(b"held", 1 if withheld == "puback" else 2)
    held = take(clients.subscriber)
    if withheld == "pubcomp":
        clients.subscriber.send(Pubrec(held.packet_id))
        assert isinstance(clients.subscriber.receive(), Pubrel)
    for number in range(30):
        clients.publish(b"%d" % number)
        packet = take(clients.subscriber)
        assert packet.payload == b"%d" % number
        clients.subscriber.send(Puback(packet.packet_id))
        clients.cluster.settle()
    clients.subscriber.close()
    again = clients.connect()
    packet = again.receive()
    if withheld == "pubcomp":
        assert packet == Pubrel(held.packet_id)
        again.send(Pubcomp(held.packet_id))
    else:
        assert isinstance(packet, Publish)
        assert (packet.payload, packet.packet_id, packet.dup) == (b"held", held.packet_id, True)
    assert again.ping() == []


@pytest.mark.one_shard
@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
@pytest.mark.parametrize("all_expire", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
def test_expired_messages_make_room(start_cluster: StartCluster, policy: str, all_expire: bool, is_away: bool) -> None:
    """For a client that is away, and for one that takes no more at the moment."""
    settings = {"limits.max_queued_messages": 2 + (not is_away), "limits.queue_policy": policy}
    clients = Clients(start_cluster({**settings, "limits.max_inflight": 1}, nodes="ab"))
    if is_away:
        clients.subscriber.close()
        clients.cluster.settle()
    else:
        clients.publish(b"held")
        held = take(clients.subscriber)
    clients.publish(b"k", expiry=1 if all_expire else 0)
    clients.publish(b"o", expiry=1)
    clients.wait_for_expiry()
    if not is_away:
        with clients.cluster.redis.client() as redis:
            until(lambda: redis.hlen("mq:st:subscriber") == 1 + all_expire)  # the messages that are done
    clients.publish(b"n")
    clients.cluster.settle()
    if is_away:
        clients.subscriber = clients.connect()
    else:
        clients.subscriber.send(Puback(held.packet_id))
    for wanted in [b"n"] if all_expire else [b"k", b"n"]:
        packet = take(clients.subscriber)
        assert packet.payload == wanted
        clients.subscriber.send(Puback(packet.packet_id))
    assert clients.subscriber.ping() == []


def test_a_group_of_nodes_makes_room(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"shared.max_queued_messages": 2}, nodes="ab")
    worker = Worker(cluster["a"].port, persistent=True)
    worker.client.close()
    cluster.settle()
    clients = Clients(cluster)
    clients.publish(b"k", topic="jobs/x")
    clients.publish(b"o", expiry=1, topic="jobs/x")
    clients.wait_for_expiry()
    clients.publish(b"n", topic="jobs/x")
    again = Worker(cluster["a"].port, persistent=True)
    assert again.wait_for(2) == [b"k", b"n"]
