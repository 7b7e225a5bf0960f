"""Faults of the product that the simulation has found, and one of a benchmark, as short plans.

Each had the finding that its text names, with several of the seeds from 1 to 5; "stood still" from 1 to 20.
"""

from tests.simulation.limits import Limits
from tests.simulation.plan import ClientPlan, Plan, Step

PUBLISHER = ClientPlan("publisher 0", "publisher", 4)
SUBSCRIBERS = (ClientPlan("subscriber 0", "subscriber", 4), ClientPlan("subscriber 1", "subscriber", 5))
KEEPER = ClientPlan("keeper", "keeper", 4)
APART = (  # each at another node
    ClientPlan("publisher 0", "publisher", 4, node="n1"),
    ClientPlan("publisher 1", "publisher", 4, node="n2"),
    ClientPlan("subscriber 0", "subscriber", 4, node="n0"),
)
WITH_GUEST = (  # its will has a delay
    ClientPlan("publisher 0", "publisher", 4, node="n1"),
    ClientPlan("subscriber 0", "subscriber", 5, node="n1"),
    ClientPlan("guest 0", "guest", 5, node="n0", delay=2),
)


def _plan(*steps: Step) -> Plan:
    return Plan(1, (PUBLISHER, *SUBSCRIBERS, KEEPER), steps, frozenset())


REGRESSIONS = {
    # G5: a node that stood still, and was declared dead, sent its clients messages that had arrived from Redis in that
    # time.
    "stood still": _plan(
        Step(2000, "freeze_node_of", ("subscriber 1", 3000)),
        Step(2500, "publish", ("publisher 0", "t/0", 2, 3)),
        Step(4700, "abandon", ("subscriber 1",)),
    ),
    # I7: the link of a node ended with the last reply of its repair. The node took it for a good one, and never asked
    # Redis again.
    "repaired for nothing": Plan(
        1,
        (KEEPER, *SUBSCRIBERS),
        (
            Step(1999, "end_link_with", ("n0", "mq:analytics:results", 1)),
            Step(2000, "reset_link", ("n0",)),
            Step(4000, "keep", (0, False)),
        ),
        frozenset(),
    ),
    # I7, G7: the same with the last reply of a join: the node served nobody, for ever, from the end of its lease on.
    "joined for nothing": _plan(
        Step(2000, "kill", ("n0", 300)),
        Step(2100, "end_link_with", ("n0", "flockmq_beat", 2)),
        Step(4000, "keep", (0, False)),
    ),
    # S1: Redis had lost the acknowledgements of a client, and nothing else. Its node took them for kept, so the queue
    # in Redis never became shorter, until the limits dropped messages.
    "lost acknowledgements": _plan(
        Step(2000, "publish", ("publisher 0", "t/0", 1, 1)),
        Step(2010, "redis_loses", (500, 20)),
    ),
    # S1: the same, and the reply to an earlier call had been lost with a link. Redis had executed that twice, so it had
    # not counted fewer calls than the node, which did not notice the loss.
    "lost acknowledgements, not missed": Plan(
        1,
        APART,
        (
            Step(1900, "lose_reply", ("subscriber 0", "flockmq_acks", 1)),
            Step(1901, "publish", ("publisher 0", "t/0", 1, 1)),
            Step(3000, "publish", ("publisher 0", "t/0", 1, 1)),
            Step(3010, "redis_loses", (500, 20)),
        ),
        frozenset(),
    ),
    # I1: Redis had lost messages that a node had received, and gave their queue numbers to others before that node was
    # back. Its client's acknowledgements of the former ended the latter, which the client had never got.
    "used numbers": Plan(
        1,
        APART,
        (
            Step(2000, "redis_loses", (40, 5)),
            Step(2010, "publish", ("publisher 0", "t/0", 1, 3)),
            Step(2010, "slow", ("subscriber 0", 30, 3000)),
            Step(2013, "cut", ("n0", "redis", "there", 300)),
            Step(2041, "publish", ("publisher 1", "t/1", 1, 3)),
        ),
        frozenset(),
    ),
    # I9: the same with places of a shared subscription: the node's step for a lost message ended the lease of another.
    "used places": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n1"),
            ClientPlan("publisher 1", "publisher", 4, node="n2"),
            ClientPlan("worker 0", "worker", 4, node="n0"),
        ),
        (
            Step(2000, "redis_loses", (40, 5)),
            Step(2005, "cut", ("n0", "redis", "there", 300)),
            Step(2010, "publish", ("publisher 0", "t/0", 1, 3)),
            Step(2041, "publish", ("publisher 1", "t/1", 1, 3)),
        ),
        frozenset(),
    ),
    # I1, I9: Redis had lost messages of QoS 2 for which a subscriber awaited PUBREL. Their packet identifiers were used
    # again, so the subscriber took other messages for repetitions, and dropped them. In the second plan the connections
    # of the subscribers have ended, and Redis has not confirmed that.
    **{
        name: Plan(
            1,
            (
                ClientPlan("publisher 0", "publisher", 4, node="n1"),
                ClientPlan("publisher 1", "publisher", 4, node="n2"),
                ClientPlan("subscriber 0", "subscriber", 4, node="n0"),
                ClientPlan("worker 0", "worker", 4, node="n0"),
            ),
            (
                *(Step(2000 + 2 * i, "publish", ("publisher 0", "t/0", 2, 1)) for i in range(25)),
                Step(2010, "redis_loses", (40, 5)),
                Step(2050, "away", ("publisher 0", 3000)),
                *ends,
                *(Step(2060 + 200 * i, "publish", ("publisher 1", "t/1", 2, 3)) for i in range(8)),
            ),
            frozenset(),
        )
        for name, ends in (
            ("lost handshakes", ()),
            ("lost handshakes, ended", [Step(2056, "lose", (client,)) for client in ("subscriber 0", "worker 0")]),
        )
    },
    # G5: a connection waited for the release of an earlier one, at a node that stood still, and ended before that. With
    # it its clean session ended in Redis, and the epoch that it had waited for. So the next connection was admitted
    # while the first could still be written to.
    "forgotten epoch": Plan(
        1,
        (
            PUBLISHER,
            ClientPlan("visitor 0", "visitor", 4, clean=True, node="n0"),
            ClientPlan("visitor 1", "visitor", 5, clean=True, node="n0"),
        ),
        (
            Step(2000, "freeze", ("n0", 1200)),
            Step(2010, "publish", ("publisher 0", "t/0", 0, 8)),
            *(Step(time, "abandon", (f"visitor {i}",)) for time in (2100, 2500) for i in (0, 1)),
            *(Step(time, "lose", (f"visitor {i}",)) for time in (2200, 2600) for i in (0, 1)),
        ),
        frozenset(),
    ),
    # G5: Redis was killed, and was back at once, while a node stood still, or just before. That node served its clients
    # again when it found its link lost, although it had been declared dead: Redis could not reply that to it.
    **{
        name: Plan(
            1,
            (
                ClientPlan("publisher 0", "publisher", 4, node="n0"),
                *(ClientPlan(f"subscriber {i}", "subscriber", 4 + i, node="n0") for i in (0, 1)),
            ),
            (
                Step(killed, "kill_redis", (100,)),
                Step(2000, "freeze", ("n0", 3000)),
                Step(2100, "publish", ("publisher 0", "t/0", 0, 8)),
                *(Step(4500, "abandon", (f"subscriber {i}",)) for i in (0, 1)),
            ),
            frozenset(),
        )
        for name, killed in (("stood still without a link", 2200), ("stood still without Redis", 1995))
    },
    # G5: a node had admitted a clean session without Redis, and claimed it later than another node to which the client
    # had moved. So the earlier connection took the session from the later one, and was still written to. In the second
    # plan the node had missed a retained message, and sent an ordinary heartbeat while it read that.
    **{
        name: Plan(
            1,
            (
                ClientPlan("publisher 0", "publisher", 4, node="n1"),
                ClientPlan("keeper", "keeper", 4, node="n0"),
                ClientPlan("visitor 0", "visitor", 4, clean=True, node="n0"),
            ),
            (
                Step(2000, "kill_redis", (400,)),
                Step(2100, "move", ("visitor 0", "n1")),
                Step(2110, "cut", ("n1", "redis", "there", 1500)),
                *missed,
                Step(3000, "move", ("visitor 0", "n2")),
                *(Step(3700 + 100 * i, "publish", ("publisher 0", "t/0", 0, 1)) for i in range(20)),
            ),
            frozenset(),
        )
        for name, missed in (
            ("older connection", ()),
            ("older connection, confirmed", [Step(2900, "keep", (0, False))]),
        )
    },
    # I9, S1: a subscriber of a group was first in the rotation, and its node had filled its queue with messages that
    # were assigned for another one. So a message found no room, and waited for ever, although others had room.
    "filled subscriber": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            ClientPlan("worker 0", "worker", 4, node="n1"),
            ClientPlan("worker 1", "worker", 4, node="n2"),
            ClientPlan("helper 0", "helper", 4, clean=True, qos=1, node="n1"),
        ),
        (
            Step(1990, "slow", ("worker 0", 30, 3000)),
            *(Step(2000 + 5 * i, "publish", ("publisher 0", "t/0", 1, 1)) for i in range(60)),
        ),
        frozenset(),
        window=2,
    ),
    # I9, S1: the connection of a member ended, and messages that it had not been sent were leased to its node, for
    # another one. The commit had nothing else of groups, so its reply had no lease, and the node never got the message.
    "lease in no reply": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            ClientPlan("worker 0", "worker", 4, node="n1"),
            ClientPlan("helper 0", "helper", 4, clean=True, qos=1, node="n1"),
        ),
        tuple(
            step
            for i in range(12)
            for step in (
                Step(1999 + 300 * i, "lose_at_packet", ("worker 0", 1 + i % 3)),
                Step(2000 + 300 * i, "publish", ("publisher 0", "t/0", 1, 8)),
            )
        ),
        frozenset(),
        window=2,
    ),
    # I3: a publisher had moved to another node while the link of a third one was lost. That node then read the logs of
    # the two one after the other, so its clients got messages of the publisher after later ones.
    "moved publisher": Plan(
        1,
        (
            *(ClientPlan(f"publisher {i}", "publisher", 5, node=f"n{i}") for i in (0, 2)),
            ClientPlan("visitor 0", "visitor", 4, clean=True, node="n1"),
        ),
        (
            Step(2000, "cut", ("n1", "redis", "both", 1800)),
            Step(2001, "reset_link", ("n1",)),
            *(
                step
                for i in (0, 2)
                for step in (
                    Step(2100, "publish", (f"publisher {i}", "t/2", 1, 3)),
                    Step(2200, "lose", (f"publisher {i}",)),
                    Step(2800, "publish", (f"publisher {i}", "t/2", 1, 3)),
                )
            ),
        ),
        frozenset(),
    ),
    # I8, of the checker: Redis lost all twice. The first session's end was excused, the second's was not.
    "lost twice": _plan(
        Step(1800, "redis_loses_all", (53,)),
        Step(3900, "redis_loses_all", (2500,)),
    ),
    # G4: a node had left while the link of another one was lost, and the clock of Redis stepped forward: the log of the
    # first one expired before the other had read it.
    "log gone with a step of the clock": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            ClientPlan("visitor 0", "visitor", 4, clean=True, qos=1, node="n2"),
        ),
        (
            Step(3708, "cut", ("n2", "redis", "back", 3745)),
            Step(3796, "publish", ("publisher 0", "t/1", 1, 3)),
            Step(3988, "stop", ("n0", 212)),
            Step(5958, "step_clock", ("redis", 3600000)),
        ),
        frozenset(),
    ),
    # G5: nothing came back from Redis. The node took connections that opened for a sign that Redis was away from all
    # nodes, and served its persistent clients for three leases, although another one had declared it dead.
    "cut in one direction": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            ClientPlan("subscriber 0", "subscriber", 4, node="n0"),
        ),
        (
            Step(2000, "cut", ("n0", "redis", "back", 4500)),
            Step(3500, "abandon", ("subscriber 0",)),
            *(Step(3600 + 100 * i, "publish", ("publisher 0", "t/0", 0, 1)) for i in range(29)),
        ),
        frozenset(),
    ),
    # I1: the reply to a commit was lost. The node's next link showed that Redis had the commit. While the node waited
    # for the replica Redis lost it. The node did not notice that, and acknowledged the messages.
    "kept, and lost": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 5, node="n0"),
            ClientPlan("publisher 1", "publisher", 5, node="n1"),
            ClientPlan("subscriber 0", "subscriber", 5, node="n1"),
        ),
        (
            Step(2000, "redis_loses", (800, 200)),
            Step(2001, "lose_reply", ("publisher 0", "flockmq_commit", 1)),
            Step(2010, "publish", ("publisher 0", "t/2", 2, 1)),
        ),
        frozenset(),
        replicas=1,
    ),
    # T1: Redis had been away for longer than the clock of the cluster goes on by itself. Delays that clients asked for
    # at once were due by the clock of before, which the next heartbeat set forward.
    "due by an old clock": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 5, node="n2"),
            ClientPlan("subscriber 0", "subscriber", 4, node="n0"),
        ),
        (
            Step(2000, "kill_redis", (4400,)),
            *(Step(6100 + 20 * i, "delay", ("publisher 0", 1, 1, 1)) for i in range(15)),
        ),
        frozenset(),
    ),
    # I3: QoS 0 of a node that had been declared dead was under way to Redis, and came later than its publisher's
    # messages over another node.
    "late from the dead": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            ClientPlan("subscriber 0", "subscriber", 4, node="n1"),
            ClientPlan("visitor 0", "visitor", 4, clean=True, node="n1"),
        ),
        (
            Step(2000, "cut", ("n0", "redis", "there", 4500)),
            Step(2010, "publish", ("publisher 0", "t/0", 0, 3)),
            Step(2900, "move", ("publisher 0", "n1")),
            *(Step(4000 + 200 * i, "publish", ("publisher 0", "t/0", 0, 1)) for i in range(10)),
        ),
        frozenset(),
    ),
    # I1: a node was cut off while Redis lost data twice. Only the process between the losses had noted where the queues
    # ended, so the node did not notice that others had its numbers: its acknowledgements ended their messages.
    "missed process": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            ClientPlan("subscriber 0", "subscriber", 5, node="n1"),
        ),
        (
            Step(2580, "cut", ("n1", "redis", "there", 2587)),
            Step(2663, "redis_loses", (50, 156)),
            Step(2691, "publish", ("publisher 0", "t/2", 2, 3)),
            Step(2906, "publish", ("publisher 0", "t/0", 2, 8)),
            Step(3890, "redis_loses", (285, 5)),
        ),
        frozenset(),
    ),
    # I1, I8: a client had come back to its session shortly before the session's end. Redis lost its claim, and was away
    # until after that end. The session ended although its client was connected. It has no delayed will: CONNACK would
    # wait until the replica has the end of the will, and so has the claim.
    "lost claim": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n1"),
            *(ClientPlan(f"visitor {i}", "visitor", 4, clean=True, qos=1, node=f"n{i}") for i in range(3)),
            ClientPlan("latecomer", "latecomer", 5, node="n0", expiry=2),
        ),
        (
            Step(2000, "away", ("latecomer", 1700)),
            Step(2200, "publish", ("publisher 0", "t/0", 1, 3)),
            Step(3690, "redis_loses", (40, 1000)),
            Step(4600, "away", ("latecomer", 800)),
        ),
        frozenset(),
        replicas=1,
    ),
    # I1: Redis had lost messages that a client had acknowledged, and its connection had ended since. Its node compared
    # the queues of its clients only, so these acknowledgements ended other messages, which had got the lost numbers.
    "acknowledged by one that has gone": Plan(
        1,
        APART,
        (
            Step(2000, "redis_loses", (100, 5)),
            Step(2049, "cut", ("n0", "redis", "there", 1000)),
            Step(2050, "publish", ("publisher 0", "t/0", 1, 3)),
            Step(2300, "lose", ("subscriber 0",)),
            Step(2600, "publish", ("publisher 1", "t/1", 1, 3)),
        ),
        frozenset(),
    ),
    # I1: Redis was restarted, and lost then what it had executed since: also the heartbeats of a node that was back. So
    # the node seemed to have missed a process of Redis, and gave no handshakes of QoS 2 back. The client connects after
    # the restart: two deaths of Redis while it is connected may be an excuse.
    "lost heartbeats": Plan(
        1,
        (*APART, ClientPlan("subscriber 1", "subscriber", 4, node="n0")),  # the node has the routes of the other one
        (
            Step(1500, "away", ("subscriber 0", 6000)),
            Step(1690, "at_command", ("n0", "flockmq_owned", 1, "come_back", "subscriber 0", "n0")),
            Step(1700, "kill_redis", (5,)),
            Step(1840, "redis_loses", (60, 5)),
            Step(1841, "slow", ("subscriber 0", 10, 400)),
            *(Step(1845 + 2 * i, "publish", ("publisher 0", "t/0", 2, 1)) for i in range(25)),
            Step(1900, "away", ("publisher 0", 3000)),
            *(Step(1960 + 200 * i, "publish", ("publisher 1", "t/1", 2, 3)) for i in range(10)),
        ),
        frozenset(),
    ),
    # I6, the checker's: a client left its connection open for ever, so that only its keep alive ended it.
    "left open for ever": Plan(
        1, WITH_GUEST, (Step(2000, "abandon", ("guest 0",)), Step(2000, "vanish", ("guest 0",))), frozenset()
    ),
    # I6, the checker's: a node that had been declared dead stopped, and sent DISCONNECT. The delay of a will does not
    # begin with that.
    "stopped after its death": Plan(
        1,
        WITH_GUEST,
        (
            Step(2000, "freeze", ("n0", 3400)),
            Step(2100, "drain", ("n0", 800)),
            Step(5200, "abandon", ("guest 0",)),
            Step(5200, "vanish", ("guest 0",)),
        ),
        frozenset(),
    ),
    # I6: a CONNECT reached its node, which had stood still, after the client had been at another one, and had gone: the
    # connection was never admitted. But its claim discarded the delayed will, which then never came.
    "never admitted": Plan(
        1,
        WITH_GUEST,
        (
            Step(2000, "freeze", ("n2", 1300)),
            Step(2010, "move", ("guest 0", "n2")),
            Step(2100, "away", ("guest 0", 4000)),
            Step(2200, "come_back", ("guest 0", "n1")),
            Step(2600, "vanish", ("guest 0",)),
        ),
        frozenset(),
    ),
    # I6: the same with the will of a connection whose node stood still, or was dead: another connection of the client
    # waited for that node, and ended.
    "waited for one that stood still": Plan(
        1,
        WITH_GUEST,
        (
            Step(2000, "freeze", ("n0", 900)),
            Step(2100, "move", ("guest 0", "n1")),
            Step(2300, "vanish", ("guest 0",)),
        ),
        frozenset(),
    ),
    # I6: the same with two connections that waited, one after the other. For the second the node took the epoch, whose
    # release was in its block, for one without a connection, and discarded the delayed will.
    "waited for twice": Plan(
        1,
        WITH_GUEST,
        (
            Step(2000, "freeze", ("n0", 900)),
            Step(2100, "move", ("guest 0", "n1")),
            Step(2300, "away", ("guest 0", 4000)),
            Step(2350, "come_back", ("guest 0", "n1")),
            Step(2600, "vanish", ("guest 0",)),
        ),
        frozenset(),
    ),
    "waited for one that had died": Plan(
        1,
        WITH_GUEST,
        (
            Step(2000, "kill", ("n0", 3500)),
            Step(2100, "move", ("guest 0", "n1")),
            Step(2400, "vanish", ("guest 0",)),
        ),
        frozenset(),
    ),
    # I6: the delay of a will was over, and the node that had to publish it was killed. The will waited once more, and
    # was held for the next connection of its client, so it never came.
    "died with a due will": Plan(
        1,
        WITH_GUEST,
        (
            *(Step(1990, "at_command", (node, "flockmq_due", 1, "kill", node, 3500)) for node in ("n0", "n1", "n2")),
            Step(2000, "away", ("guest 0", 3000)),
        ),
        frozenset(),
    ),
    # R1: a client took its session over with Clean Start while its node had no link, and did not subscribe again. The
    # node kept the subscriptions of the session that had ended.
    "ended without a link": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n1"),
            ClientPlan("subscriber 0", "subscriber", 5, node="n0"),
        ),
        (
            Step(1999, "cut", ("n0", "redis", "both", 1000)),
            Step(2000, "reset_link", ("n0",)),
            Step(2300, "start_empty", ("subscriber 0", "n1")),
        ),
        frozenset(),
    ),
    # I1, I8: the wall clock of Redis stepped forward while a client was away, whose session expires as the nodes are
    # configured: it ended.
    "expiry by the wall clock": _plan(
        Step(2000, "away", ("subscriber 0", 6000)),
        Step(2200, "publish", ("publisher 0", "t/0", 1, 3)),
        Step(2500, "step_clock", ("redis", 3_600_000)),
    ),
    # G5: a node had stood still, and asked whether it is a member. It stood still once more before it read the reply,
    # was declared dead, and then took the reply for a confirmation: it sent its clients what had come from Redis.
    "confirmed too late": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n1"),
            ClientPlan("subscriber 0", "subscriber", 4, node="n0"),
        ),
        (
            Step(2000, "freeze", ("n0", 1850)),
            *(Step(2100 + 200 * i, "publish", ("publisher 0", "t/0", 0, 2)) for i in range(8)),
            Step(3700, "cut", ("n0", "redis", "back", 300)),
            Step(3900, "freeze", ("n0", 2300)),
            Step(4400, "move", ("subscriber 0", "n2")),
        ),
        frozenset(),
    ),
    # S3: a client moved from a node without a link to another one, and went. Then its queue was full, and dropped its
    # oldest messages, which the first node had sent, and had not released.
    "sent and not released": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n2"),
            ClientPlan("subscriber 0", "subscriber", 4, node="n0"),
        ),
        (
            Step(1990, "slow", ("subscriber 0", 30, 3000)),
            *(Step(2001 + 3 * i, "publish", ("publisher 0", "t/0", 2, 1)) for i in range(4)),
            Step(2040, "cut", ("n0", "redis", "both", 1500)),
            Step(2080, "move", ("subscriber 0", "n1")),
            Step(2250, "away", ("subscriber 0", 5000)),
            *(Step(2400 + 50 * i, "publish", ("publisher 0", "t/0", 2, 1)) for i in range(8)),
        ),
        frozenset(),
        limits=Limits(messages=4, drop_old=True),
    ),
    # I9: acknowledgements waited for the next tick although Redis found the room of their client in them. (A benchmark
    # has found it.)
    "room a tick later": Plan(
        1,
        (ClientPlan("publisher 0", "publisher", 4, node="n1"), ClientPlan("worker 0", "worker", 4, node="n0")),
        tuple(Step(2000 + 20 * number, "publish", ("publisher 0", "t/0", 1, 3)) for number in range(20)),
        frozenset(),
        window=1,
    ),
    # G5, of the checker: Redis lost that a node had been declared dead, and the claim of a connection that had waited
    # for that. The node had stood still, and went on serving the earlier connection: Redis had no other.
    "lost burial": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n1"),
            ClientPlan("visitor 0", "visitor", 4, clean=True, node="n2"),
        ),
        (
            Step(2000, "freeze", ("n2", 2810)),
            Step(3300, "redis_loses", (1500, 5)),
            Step(3400, "move", ("visitor 0", "n0")),
            Step(4790, "cut", ("n0", "redis", "both", 1000)),
        ),
        frozenset(),
    ),
    # G5, of the checker: the link of a node that rejoined ended with the last reply of the rejoin. So it had none when
    # it admitted a client whose CONNECT had waited there, and which another node had admitted by that time.
    "rejoined without a link": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n1"),
            ClientPlan("visitor 0", "visitor", 4, clean=True, node="n0"),
        ),
        (
            Step(2000, "freeze", ("n2", 2900)),
            Step(2900, "move", ("visitor 0", "n2")),
            Step(4500, "move", ("visitor 0", "n1")),
            Step(4800, "end_link_with", ("n2", "mq:starts", 1)),
            *(Step(4900 + 5 * i, "publish", ("publisher 0", "t/0", 0, 1)) for i in range(40)),
        ),
        frozenset(),
    ),
    # I9, S1, of the checker: a node held the key of messages, and the member for which it did so came back just after a
    # question about that. It asks again after 4 s, and the run had ended before that.
    "asked before the answer": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n1"),
            ClientPlan("worker 0", "worker", 4, node="n1"),
            ClientPlan("helper 0", "helper", 4, clean=True, qos=1, node="n0", late=650),
        ),
        (
            Step(600, "away_at_packet", ("worker 0", 1, 6000)),
            Step(601, "publish", ("publisher 0", "t/1", 2, 1)),
            Step(1090, "publish", ("publisher 0", "t/1", 1, 3)),
            Step(6300, "kill", ("n2", 3000)),
            Step(6400, "come_back", ("worker 0", "n1")),
            *(Step(6480, "reset_link", (node,)) for node in ("n0", "n1")),
        ),
        frozenset(),
        is_ordered=True,
    ),
    # I9: a message came back to a group with an order, and waited behind others that no node had room for. The node of
    # its key was sent that the key is free, and gave later messages of it.
    "back behind others": Plan(
        1,
        (
            *(ClientPlan(f"publisher {i}", "publisher", 4, node="n1") for i in range(3)),
            ClientPlan("helper 0", "helper", 4, clean=True, qos=1, node="n2"),
            ClientPlan("worker 0", "worker", 4, node="n1", late=700),
            ClientPlan("helper 1", "helper", 4, clean=True, qos=1, node="n1", late=1150),
        ),
        (
            Step(590, "cut", ("helper 0", "n2", "there", 3000)),
            Step(600, "publish", ("publisher 1", "t/1", 1, 2)),
            Step(1090, "cut", ("worker 0", "n1", "back", 1000)),
            Step(1100, "publish", ("publisher 0", "t/0", 1, 2)),
            Step(1500, "away", ("worker 0", 6000)),
            Step(1800, "kill", ("n2", 6000)),
            Step(1800, "away", ("helper 0", 6000)),
            Step(2980, "publish", ("publisher 2", "t/2", 1, 1)),
            Step(3000, "cut", ("helper 1", "n1", "there", 2980)),
            Step(3010, "publish", ("publisher 2", "t/2", 1, 2)),
            Step(3050, "publish", ("publisher 0", "t/0", 1, 3)),
        ),
        frozenset(),
        window=2,
        is_ordered=True,
    ),
    # G5: a node stood still while it read the queues of its clients, and was declared dead. Then it sent a client the
    # messages that it had read before.
    "stood still while it caught up": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            *(ClientPlan(f"subscriber {i}", "subscriber", 4, node="n1") for i in (0, 1)),
        ),
        (
            Step(2000, "reset_link", ("n1",)),
            *(Step(2000 + 2 * i, "publish", ("publisher 0", "t/0", 1, 1)) for i in range(20)),
            Step(2000, "at_command", ("n1", "flockmq_load", 2, "freeze", "n1", 3500)),
            *(Step(5000, "move", (f"subscriber {i}", "n2")) for i in (0, 1)),
        ),
        frozenset(),
    ),
    # G5: the queues were large, or the replies slow. The node was declared dead before it had the last of them.
    "declared dead while it caught up": Plan(
        1,
        (
            ClientPlan("publisher 0", "publisher", 4, node="n0"),
            *(ClientPlan(f"subscriber {i}", "subscriber", 4, node="n1") for i in (0, 1)),
        ),
        (
            Step(2000, "reset_link", ("n1",)),
            *(Step(2000 + 2 * i, "publish", ("publisher 0", "t/0", 1, 1)) for i in range(20)),
            Step(2000, "at_command", ("n1", "flockmq_load", 1, "cut", "n1", "redis", "back", 2800)),
            *(Step(4600, "move", (f"subscriber {i}", "n2")) for i in (0, 1)),
        ),
        frozenset(),
    ),
}
