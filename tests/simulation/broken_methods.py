"""Methods that do the wrong thing: each function makes one from the method that it replaces (mutations.py)."""

import time
from typing import Any

from flockmq._speedups.session.session import Session
from flockmq.broker.core.sessions import Sessions
from flockmq.cluster.membership.dead_nodes import DeadNodes
from flockmq.cluster.membership.lease import Lease
from flockmq.cluster.peers import wire
from flockmq.cluster.peers.members import Members
from flockmq.cluster.redis.store import RedisStore
from flockmq.cluster.replication.barrier import Barrier
from flockmq.cluster.replication.foreign_records import ForeignRecords
from flockmq.cluster.replication.routes import Routes
from flockmq.cluster.sessions.delayed_messages import RedisDelayed
from flockmq.cluster.sessions.takeover import TakeOver
from flockmq.cluster.sessions.wills import Wills
from flockmq.cluster.state import State


def nothing(method: Any) -> Any:
    return lambda *arguments, **named: None


def answers(value: Any) -> Any:
    """Of any class: an asynchronous method that does nothing, and returns a value."""

    def make(method: Any) -> Any:
        async def answered(*arguments: Any, **named: Any) -> Any:
            return value

        return answered

    return make


def confirm_at_once(commit: Any) -> Any:
    """Of RedisStore: PUBACK leaves when the block is sent."""

    def early(self: RedisStore, block: Any) -> None:
        commit(self, block)
        self._loop_of_mutation.call_soon(self._confirm_of_mutation, 1)  # type: ignore[attr-defined]

    return early


def start_unconfirmed(start: Any) -> Any:
    def started(self: Any, confirm: Any, call: Any) -> None:
        self._confirm_of_mutation = confirm
        self._loop_of_mutation = call.__self__
        start(self, lambda count: None, call)

    return started


def retire_at_once(retire: Any) -> Any:
    def early(self: ForeignRecords) -> None:
        gone = self._foreign.retire()
        if gone is not None:
            gone()

    return early


def share_another(share: Any) -> Any:
    """Of Sessions: a client that connects does not get the Session that stands for its record."""

    def shared(self: Sessions, client_id: bytes, number: int) -> Any:
        session = share(self, client_id, number)
        other = Session(self._turn, number, client_id, persistent=True, shared=True)
        for name, options in self._filters.subscriptions_of(session):
            self._filters.subscribe(other, name, options)
        self._filters.unsubscribe_all(session)
        self._by_client_id[client_id] = other
        return other

    return shared


def ignore_waits(proceed: Any) -> Any:
    def early(self: TakeOver, claim: Any) -> None:
        claim.waits.clear()
        proceed(self, claim)

    return early


def longer(renew: Any) -> Any:
    def renewed(self: Lease, sent_at: float) -> None:
        renew(self, sent_at + 10 * self.seconds)

    return renewed


def all_applied(advance: Any) -> Any:
    def early(self: Barrier) -> None:
        while self._waiting:
            self._waiting.popleft()[1]()

    return early


def confirm_early(handle: Any) -> Any:
    """Of Inbox: a change is confirmed to its origin, and applied when the next one comes."""

    def handled(self: Any, number: int, origin: bytes, block: bytes) -> None:
        late = getattr(self, "_late_of_mutation", None)
        self._late_of_mutation = (number, origin, block)
        if origin and origin != self._link.node_id:
            self._applied.note(origin, number)
        if late is not None:
            handle(self, *late)

    return handled


def lingers_on(add: Any) -> Any:
    """Of Routes: a route goes on to linger although a session has its filter again."""

    def added(self: Routes, name: bytes, options: int, *, clean: bool) -> None:
        since = self._lingering.get(name)
        add(self, name, options, clean=clean)
        if since is not None:
            self._lingering[name] = since

    return added


def no_wills(buried: Any) -> Any:
    def forgotten(self: DeadNodes, node: bytes, reply: Any, *, is_new: bool) -> None:
        buried(self, node, [b"ok", []], is_new=is_new)

    return forgotten


def without_marks(restore: Any) -> Any:
    """Of Loading: the QoS 2 states of a session are not read."""

    def restored(self: Any, claim: Any, session: Any, begins: bool, reply: Any) -> None:
        if isinstance(reply, list):
            reply = [*reply[:5], [], *reply[6:]]
        restore(self, claim, session, begins, reply)

    return restored


def without_awaited(restore: Any) -> Any:
    def restored(self: Any, claim: Any, session: Any, begins: bool, reply: Any) -> None:
        if isinstance(reply, list):
            reply = [*reply[:6], [], *reply[7:]]
        restore(self, claim, session, begins, reply)

    return restored


def twice(publish: Any) -> Any:
    def published(self: Wills, epoch: int, stored: bytes) -> None:
        publish(self, epoch, stored)
        publish(self, epoch, stored)

    return published


def unsettled(settle: Any) -> Any:
    return lambda self, epoch: None


def soon_dead(check: Any) -> Any:
    """Of Members: nodes are declared dead after a tenth of a lease, while they still serve."""

    def checked(self: Members, counts: dict[bytes, bytes], lease: float) -> Any:
        return check(self, counts, lease / 10)

    return checked


def not_fenced(fits: Any) -> Any:
    def accepted(self: Any, current: int, reply: Any) -> bool:
        if isinstance(reply, list) and reply and reply[0] == b"gone":
            return False
        return bool(fits(self, current, reply))

    return accepted


def not_gone(replied: Any) -> Any:
    """Of Heartbeat: a node that is dead takes the reply for one that confirms it."""

    def accepted(self: Any, sent_at: float, until: float, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"gone":
            self._lease.renew(sent_at)
        else:
            replied(self, sent_at, until, reply)

    return accepted


def stays(decide: Any) -> Any:
    """Of Lease: a node that stood still goes on although it was declared dead."""

    def decided(self: Lease, sent_at: float, reply: Any) -> bool:
        return bool(decide(self, sent_at, [0] if isinstance(reply, list) else reply))

    return decided


def none_sent(left: Any) -> Any:
    """Of TakeOver: the session of a dead node's client has no message that may have been sent."""

    def released(self: Any, node: bytes) -> None:
        waiting = list(self._waiting)
        left(self, node)
        for claim in waiting:
            claim.all_sent = False

    return released


def resumes(link_lost: Any) -> Any:
    """Of Lease: a node that stood still goes on when its link is lost."""

    def lost(self: Lease) -> None:
        link_lost(self)
        if self._membership.state is State.STRANDED:
            self._membership.give_up_waiting()
            self.resume()

    return lost


def unbounded(go_on: Any) -> Any:
    """Of Lease: while Redis is away the node serves for as long as it likes."""
    return lambda self, now: self._reactor.set_lease(1e6)


def goes_on(suspend: Any) -> Any:
    """Of Lease: a node that stood still serves its clients, and beats."""

    def suspended(self: Lease) -> None:
        self.renew(time.monotonic())

    return suspended


def just_now(_time: Any) -> Any:
    """Of any class: a property that is the present time."""
    return property(lambda self: time.monotonic())


def forget_unreplied(compare: Any) -> Any:
    """Of Losses: calls whose replies were lost count as replied."""

    async def judges(self: Any, *arguments: int) -> str:
        self._unreplied = 0
        return str(await compare(self, *arguments))

    return judges


def agrees(_method: Any) -> Any:
    """Of any class: a method that does nothing, and returns True."""
    return lambda *_arguments: True


def not_noted(flow: Any) -> Any:
    """Of RedisStore: commits that the next link has shown to be in Redis do not count as confirmed."""

    def flows(self: RedisStore, *arguments: Any) -> None:
        before = self.confirmed_seq
        flow(self, *arguments)
        self.confirmed_seq = before

    return flows


def only_first(take: Any) -> Any:
    """Of RedisDelayed: a node that is not the first one takes none, also when the first one has died."""

    def taken(self: RedisDelayed, late: int) -> None:
        if getattr(self, "_started_first_of_mutation", None) is None:
            self._started_first_of_mutation = self._is_first()  # type: ignore[attr-defined]
        if self._started_first_of_mutation:  # type: ignore[attr-defined]
            take(self, late)

    return taken


def skip_changes(catch_up: Any) -> Any:
    """Of SnapshotReader: the changes count as applied."""

    async def skipped(self: Any) -> None:
        number = await self._link.ask("GET", self._link.keys.change)
        self._changes.last = int(number or 0)

    return skipped


def from_the_first(flow: Any) -> Any:
    """Of RedisStore: a new link is sent all blocks without a reply, whether or not Redis has them."""
    return lambda self, link, applied: flow(self, link, 0)


# ---- faults that the fault suite has found ----


def only_known(taken: Any) -> Any:
    """Of TakeOver: an epoch without a connection is not released."""

    def ended(self: TakeOver, client_id: bytes, epoch: int) -> None:
        if self._claims.with_epoch(epoch) is not None:
            taken(self, client_id, epoch)

    return ended


def none_departed(_property: Any) -> Any:
    return property(lambda _self: [])


def released_twice(taken: Any) -> Any:
    """Of TakeOver: an epoch whose release is not confirmed counts as one without a connection."""

    def ended(self: TakeOver, client_id: bytes, epoch: int) -> None:
        self._claims.releasing.discard(epoch)
        taken(self, client_id, epoch)

    return ended


def without_timer(suspend: Any) -> Any:
    """Of Lease: nothing ends the wait for the confirmation."""

    def suspended(self: Lease) -> None:
        suspend(self)
        if self._timer is not None:
            self._timer.cancel()

    return suspended


def none_missed(recovered: Any) -> Any:
    """Of Assignments: the reply has no leases, as if all had arrived."""

    def resumed(self: Any, reply: Any) -> None:
        recovered(self, [[], []] if isinstance(reply, list) else reply)

    return resumed


def forget_departed(resume: Any) -> Any:
    """Of Recovery: each attempt begins with the nodes that are members then."""

    async def resumed(self: Any, lost_at: float) -> None:
        self._replica.members.forget_departed()
        await resume(self, lost_at)

    return resumed


def taken_out(missing: Any) -> Any:
    """Of Changes: topic names are forgotten when their messages are asked for."""

    def taken(self: Any, most: int) -> list[bytes]:
        topics: list[bytes] = missing(self, most)
        for topic in topics:
            del self._missing[topic]
        return topics

    return taken


def unfenced(number: Any) -> Any:
    """Of RedisStore: a commit that Redis had executed before is taken for one without changes."""

    def numbered(self: Any, block: Any, reply: Any) -> None:
        if reply[0] == b"again":
            self.listener.unnumbered(block.unnumbered())
        else:
            number(self, block, reply)

    return numbered


def patient(ask: Any) -> Any:
    async def asked(self: Any, *command: Any, **named: Any) -> Any:
        self._patience = 1e6
        return await ask(self, *command, **named)

    return asked


def from_now(renew: Any) -> Any:
    return lambda self, sent_at: renew(self, time.monotonic())


def not_back_at_join(publish: Any) -> Any:
    """Of NodeLink: a node that joins does not publish `back`."""

    def published(self: Any, channel: bytes, message: bytes) -> None:
        if (
            self._membership.is_member
            or wire.back(self.node_id, 0)[:-1] != message[: len(wire.back(self.node_id, 0)) - 1]
        ):
            publish(self, channel, message)

    return published


def each_loss(lost: Any) -> Any:
    """Of NodeLink: the loss of a link that is being repaired is reported, too."""

    def reported(self: Any, link: Any) -> None:
        if link is self.connection and self._membership.has_lost_link:
            self._on_lost()
        else:
            lost(self, link)

    return reported


def none_ended(ended: Any) -> Any:
    return lambda self: iter(())


def this_round(committed: Any) -> Any:
    """Of RedisStore: only replies to the last round of sending count."""

    def counted(self: Any, waiting: Any, current: int, reply: Any) -> None:
        if current == self._round:
            committed(self, waiting, current, reply)

    return counted


def of_connected(numbers: Any) -> Any:
    """Of Unfinished: the sessions whose clients have a connection."""
    return lambda self: [(one.client_id, one.session_id, one.next_number) for one in self._claims.shared_sessions()]
