"""Plans for faults that chance seldom meets: each brings together within milliseconds what its fault needs.

The fault suite (`tests/faults`) had found these faults before there was a simulation. They are mended, and are put back
as mutations with the names of their plans.
"""

from tests.simulation.limits import NO_LIMITS, Limits
from tests.simulation.plan import ClientPlan, Plan, Step

KEEPER = ClientPlan("keeper", "keeper", 4, node="n1")


def _publisher(number: int, node: str, level: int = 4) -> ClientPlan:
    return ClientPlan(f"publisher {number}", "publisher", level, node=node)


def _subscriber(number: int, node: str, level: int = 4, qos: int = 2) -> ClientPlan:
    return ClientPlan(f"subscriber {number}", "subscriber", level, qos=qos, node=node)


def _visitor(node: str) -> ClientPlan:
    return ClientPlan("visitor 0", "visitor", 4, clean=True, qos=1, node=node)


def _worker(number: int, node: str) -> ClientPlan:
    return ClientPlan(f"worker {number}", "worker", 4, node=node)


def _limited_worker(number: int, node: str) -> ClientPlan:
    """Its node gives it messages, not Redis, since it has a Maximum Packet Size."""
    return ClientPlan(f"worker {number}", "worker", 5, node=node)


def _helper(number: int, node: str) -> ClientPlan:
    return ClientPlan(f"helper {number}", "helper", 4, clean=True, qos=1, node=node)


def _plan(clients: list[ClientPlan], *steps: Step, log_seconds: int = 0, limits: Limits = NO_LIMITS) -> Plan:
    ordered = sorted(steps, key=lambda step: step.time)
    return Plan(1, tuple(clients), tuple(ordered), frozenset(), log_seconds=log_seconds, limits=limits)


def _stream(
    since: int, every: int, times: int, publisher: str = "publisher 0", qos: int = 1, count: int = 2
) -> list[Step]:
    """Messages at some times, in milliseconds."""
    return [Step(since + every * i, "publish", (publisher, "t/0", qos, count)) for i in range(times)]


MEETINGS = {
    # The node that declares another one dead loses its link before it has the reply, with the wills.
    "missed wills": _plan(
        [
            _publisher(0, "n0"),
            _subscriber(0, "n0"),
            *(ClientPlan(f"mortal {i}", "mortal", 4, clean=True, node="n1") for i in range(4)),
        ],
        Step(2000, "lose_reply", ("publisher 0", "flockmq_bury", 1)),
        Step(2001, "kill", ("n1", 3500)),
        Step(3000, "freeze", ("n2", 1300)),
    ),
    # A node leaves while another one has no link. The link of the latter ends once more while it reads the logs.
    "departed forgotten": _plan(
        [_publisher(0, "n0"), _visitor("n2")],
        Step(2000, "cut", ("n2", "redis", "both", 1500)),
        Step(2001, "reset_link", ("n2",)),
        *_stream(2100, 1, 1, count=3),
        Step(2300, "stop", ("n0", 2500)),
        Step(2400, "lose_reply", ("visitor 0", "flockmq_logs", 1)),
    ),
    # The same while it reads retained messages.
    "retained forgotten": _plan(
        [_publisher(0, "n1"), _subscriber(0, "n1"), KEEPER, _visitor("n0")],
        Step(2000, "cut", ("n0", "redis", "both", 800)),
        Step(2001, "reset_link", ("n0",)),
        *(Step(2100 + 20 * i, "keep", (i, False)) for i in range(4)),
        Step(2200, "lose_reply", ("visitor 0", "flockmq_values", 1)),
    ),
    # The reply to a heartbeat is late by most of the time for which a node waits, and the next heartbeat is lost.
    "assignment from the reply": _plan(
        [_publisher(0, "n0"), _subscriber(0, "n0"), _subscriber(1, "n0", 5)],
        Step(2200, "cut", ("n0", "redis", "back", 900)),
        Step(3090, "cut", ("n0", "redis", "there", 3400)),
        Step(3101, "cut", ("n0", "redis", "back", 3400)),
        *(Step(4100 + 100 * i, "abandon", (f"subscriber {i}",)) for i in (0, 1)),
        *(Step(4100 + 40 * i, "publish", ("publisher 0", "t/0", 0, 1)) for i in range(40)),
    ),
    # A client waits for its earlier connection, at a node that has been killed, and ends before that is declared dead.
    "died while waited for": _plan(
        [_publisher(0, "n1"), _subscriber(0, "n0"), _subscriber(1, "n0", 5)],
        *(Step(2000, "slow", (f"subscriber {i}", 30, 300)) for i in (0, 1)),
        *_stream(2001, 2, 6),
        Step(2030, "kill", ("n0", 3500)),
        *(Step(2900 + 100 * i, "away", (f"subscriber {i}", 2500)) for i in (0, 1)),
    ),
    # A client connects to the node of its publisher, whose link is slow: more messages for it are under way.
    "stands for its record": _plan(
        [_publisher(0, "n0"), *(_subscriber(i, "n1", 4 + i) for i in (0, 1))],
        *(Step(1900, "away", (f"subscriber {i}", 5000)) for i in (0, 1)),
        Step(2000, "slow", ("n0", 300, 3500)),
        *(Step(2200 + 600 * i, "come_back", (f"subscriber {i}", "n0")) for i in (0, 1)),
        *_stream(2050, 15, 120),
    ),
    # A node joins slowly. Redis has made it a subscriber, and it has no reply yet: then a client subscribes elsewhere.
    "joined in silence": _plan(
        [_publisher(0, "n1"), _visitor("n1")],
        Step(1700, "stop", ("n0", 300)),
        Step(1990, "slow", ("n0", 30, 2000)),
        Step(2000, "away", ("visitor 0", 6000)),
        Step(2001, "at_command", ("n0", "flockmq_ready", 1, "come_back", "visitor 0")),
    ),
    # A subscriber has messages from a node without a link. It connects elsewhere, and goes.
    "sent by an earlier node": _plan(
        [_publisher(0, "n2"), _worker(0, "n0"), _worker(1, "n1")],
        Step(2000, "slow", ("worker 0", 30, 3000)),
        *_stream(2001, 3, 12, qos=2),
        Step(2040, "cut", ("n0", "redis", "both", 1500)),
        Step(2080, "move", ("worker 0", "n1")),
        Step(2250, "away", ("worker 0", 5000)),
    ),
    # Redis loses messages of a group that a node has, and gives their places to others before that node is back.
    "places not compared": _plan(
        [_publisher(0, "n1"), _publisher(1, "n2"), _helper(0, "n0"), _worker(0, "n1")],
        Step(2000, "redis_loses", (40, 5)),
        Step(2005, "slow", ("helper 0", 10, 500)),
        Step(2008, "cut", ("n0", "redis", "there", 300)),
        *_stream(2010, 1, 1, count=6),
        *_stream(2043, 1, 1, "publisher 1", count=6),
    ),
    # Redis loses a change that a node has, and gives its number to another before that node is back.
    "marks of changes not compared": _plan(
        [_publisher(0, "n1"), _visitor("n0"), KEEPER, ClientPlan("latecomer", "latecomer", 4, node="n2", late=2035)],
        Step(2000, "redis_loses", (40, 5)),
        Step(2008, "keep", (0, False)),
        Step(2015, "cut", ("n0", "redis", "there", 300)),
        Step(2050, "keep", (1, False)),
        *_stream(2200, 1, 1),
    ),
    # A client connects to another node with Clean Start, and has not answered messages of its former session.
    "sent in an earlier session": _plan(
        [_publisher(0, "n2"), _subscriber(0, "n0", 5), _subscriber(1, "n2", 5)],
        Step(1990, "slow", ("subscriber 0", 10, 200)),
        *_stream(2001, 3, 6, count=4),
        Step(2025, "start_anew", ("subscriber 0", "n1")),
    ),
    # A publisher connects to another node with Clean Start while its messages of QoS 2 are on their way to Redis.
    "handshakes of an earlier session": _plan(
        [_publisher(0, "n0", 5), _subscriber(0, "n2", 5, 1)],
        Step(1995, "slow", ("n0", 10, 300)),
        *_stream(2001, 3, 10, qos=2),
        Step(2022, "start_anew", ("publisher 0", "n1")),
    ),
    # Redis reads what a node has sent over an ended link when the node has looked how far it came.
    **{
        name: _plan(
            [_publisher(0, "n0"), _subscriber(0, "n0", 5, 1), KEEPER],
            Step(2000, "move", ("keeper", "n0")),
            Step(2100, "stall_link", ("n0", 5000)),
            Step(2105, "keep", (1, False)),
            *_stream(2106, 1, 1, count=1),
            Step(2800, "at_command", ("n0", "XRANGE", 2, "end_stalls")),
        )
        for name in ("earlier link", "late change")
    },
    # The link of a node is reset when assigned messages are in blocks that Redis refuses: it has no memory left.
    "ended assignments": _plan(
        [_publisher(0, "n1"), _publisher(1, "n2"), _helper(0, "n0"), _limited_worker(0, "n0"), _helper(1, "n0")],
        Step(1990, "slow", ("helper 0", 20, 300)),
        *(Step(2000 + i, "publish", (f"publisher {i % 2}", "t/0", 2, 2)) for i in range(30)),
        Step(2005, "at_command", ("n1", "flockmq_commit", 8, "refuse", "memory", 800)),
        Step(2200, "reset_link", ("n0",)),
    ),
    # A client waits for its earlier connection, at a node that stands still, when its own node loses its link. The
    # release is not sent again.
    "waiting for a release": _plan(
        [
            _publisher(0, "n0"),
            _subscriber(0, "n0"),
            ClientPlan("subscriber 1", "subscriber", 4, node="n1", is_patient=True),
        ],
        Step(2000, "freeze", ("n1", 400)),
        Step(2020, "move", ("subscriber 1", "n0")),
        Step(2290, "cut", ("n0", "redis", "both", 500)),
        Step(2300, "reset_link", ("n0",)),
    ),
    # The machine of Redis dies while a node waits for a reply within a repair.
    "silent Redis": _plan(
        [_publisher(0, "n1"), _subscriber(0, "n0")],
        Step(1990, "slow", ("n0", 20, 1000)),
        Step(2000, "reset_link", ("n0",)),
        Step(2125, "kill_machine_of_redis", (500,)),
    ),
    # Redis refuses acknowledgements, and executes the commit that follows them.
    "reply of an earlier round": _plan(
        [_publisher(0, "n1"), _subscriber(0, "n0", qos=1), _subscriber(1, "n0", qos=1), KEEPER],
        Step(1990, "move", ("keeper", "n0")),
        *_stream(1997, 1, 4, count=1),
        *(Step(1999 + i, "keep", (i, False)) for i in range(4)),
        Step(2000, "refuse", ("disk", 500)),
        Step(2000, "at_command", ("n0", "flockmq_acks", 1, "accept")),
    ),
    # All links are lost for longer than logs are kept. One node is back later than the others, which go on without it.
    "age of the log": _plan(
        [*(_publisher(i, "n0") for i in range(3)), _visitor("n2")],
        Step(2000, "cut", ("n2", "redis", "both", 3900)),
        Step(2001, "reset_link", ("n2",)),
        *(Step(2100 + i, "publish", (f"publisher {i % 3}", "t/0", 1, 1)) for i in range(200)),
        Step(2320, "kill_redis", (3000,)),
        *(Step(5400 + 8 * i, "publish", (f"publisher {i % 3}", "t/0", 1, 1)) for i in range(60)),
        log_seconds=1,
    ),
    # The queue of a client that is away is full, and has messages that were sent.
    "sent messages dropped": _plan(
        [_publisher(0, "n2"), _subscriber(0, "n0", 5), _subscriber(1, "n1")],
        Step(2000, "slow", ("subscriber 0", 30, 300)),
        *_stream(2000, 5, 20),
        Step(2015, "away", ("subscriber 0", 300)),
        limits=Limits(2, True),
    ),
}
