"""`python -m tests.harness.rights_walk`: how long a change of rights takes with many connected clients.

The broker of a node is in this process, with real sessions that have a subscription each, and real identities of its
authentication. The connections have no sockets, as few systems let a process open 100 000: a change of rights does not
touch a socket unless it closes clients. Printed are the seconds until the last client has its new rights, and the
longest time in which the loop did nothing else.
"""

import argparse
import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from flockmq.broker.auth.access_control import AccessControl
from flockmq.broker.auth.authenticator import Identity, shared
from flockmq.broker.auth.connected_users import ConnectedUsers
from flockmq.broker.auth.roles import USERS, Concerned
from flockmq.broker.auth.users import Users
from flockmq.broker.broker import Broker
from flockmq.broker.config.load import load
from flockmq.broker.coordination.standalone import StandaloneFoundation
from flockmq.broker.core.driver import make_driver
from flockmq.broker.process import Heap
from flockmq.broker.storage.memory import MemoryStore

HASH = f"$6$YQ==${'A' * 86}=="
COMMON = ["topic read orders/#", "topic write readings/#"]


class Case(NamedTuple):
    """Clients, and the rules that change."""

    name: str
    users: bool  # whether each client has a user of its own
    by_role: bool  # whether the rules are of a role; else of the user
    rules: list[str]


CASES = (
    Case("one user, rules of the user", False, False, COMMON),
    Case("one user, rules of the user with %c", False, False, [*COMMON, "pattern readwrite devices/%c/#"]),
    Case("a user each, rules of one role", True, True, COMMON),
    Case("a user each, rules of one role with %u", True, True, [*COMMON, "pattern readwrite homes/%u/#"]),
    Case("a user each, rules of one role with %c", True, True, [*COMMON, "pattern readwrite devices/%c/#"]),
)


class Run:
    """A broker with the clients of a case.

    Args:
        case: of the clients.
        count: of the clients.
    """

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        config = load({"auth.users": True, "store.url": "memory"}, {})
        loop = asyncio.get_running_loop()
        foundation = StandaloneFoundation(MemoryStore(), loop.call_soon, loop.call_later, fail=print)
        self._access = AccessControl(config, lambda: self._users)
        self._plane = Broker(config, foundation, self._access, make_driver(loop)).data_plane
        self._users = Users(foundation.access, self._changed, set)
        if case.by_role:
            self._access.roles.change({"role": self._role([])})
        self.clients = [self._connected(number) for number in range(count)]
        stands_in = SimpleNamespace(
            reactor=self.clients, router=self._plane.router, run=self._plane.run, end_turn=self._plane.end_turn
        )
        self._connected_users = ConnectedUsers(cast(Any, stands_in), cast(Any, None))

    def _connected(self, number: int) -> Any:
        name = f"user-{number}" if self._case.users else "user"
        user = self._users.known(name)
        if user is None:
            self._users._learn(name, self._user([]))
            user = self._users.known(name)
        assert user is not None
        identity = user.identity(name).replace(method=USERS)
        found = self._access.renewed(identity, f"client-{number}")
        assert isinstance(found, Identity)
        found = shared(found)  # as at a login
        session = self._plane.sessions.create(f"client-{number}".encode(), persistent=False, level=4)
        session.set_rights(found.rights)
        self._plane.router.filters.subscribe(session, f"orders/{number % 1000}".encode(), 0)
        return SimpleNamespace(identity=found, claimed=session, closed=False)

    def _user(self, more: list[str]) -> bytes:
        rules = None if self._case.by_role else [*self._case.rules, *more]
        return json.dumps({"hash": HASH, "rules": rules, "roles": ["role"] if self._case.by_role else []}).encode()

    def _role(self, more: list[str]) -> bytes:
        return json.dumps({"rules": [*self._case.rules, *more]}).encode()

    def _changed(self, names: set[str]) -> None:
        self._connected_users.renew(self._access.renewing, Concerned(users=frozenset(names)))

    def change(self, number: int) -> None:
        """Change the rules of all clients."""
        more = [f"topic write changed/{number}"]
        if self._case.by_role:
            changed = self._access.roles.change({"role": self._role(more)})
            self._connected_users.renew(self._access.renewing, Concerned.by_roles(changed))
        else:
            self._users.changed({"user": self._user(more)})

    def have(self, number: int) -> bool:
        """Whether all clients have the rights of a change."""
        topic = f"changed/{number}".encode()
        return all(client.identity.rights.may_publish(topic) for client in self.clients)

    @property
    def busy(self) -> bool:
        """Whether a walk over the clients is under way."""
        return self._connected_users._is_renewing


async def measure(case: Case, count: int, rounds: int) -> None:
    """Print the figures of a case."""
    run = Run(case, count)
    Heap().freeze()
    for number in range(rounds):
        longest = busiest = 0.0
        began = last = time.perf_counter()
        began_cpu = last_cpu = time.thread_time()
        run.change(number)
        while True:
            now = time.perf_counter()
            longest = max(longest, now - last)
            now_cpu = time.thread_time()
            busiest = max(busiest, now_cpu - last_cpu)
            if not run.busy:
                break
            last, last_cpu = now, now_cpu
            await asyncio.sleep(0)
        print(
            f"{case.name:<42} {now - began:6.3f} s in all, {1000 * longest:5.1f} ms at a time; "
            f"CPU {now_cpu - began_cpu:6.3f} s, {1000 * busiest:5.1f} ms",
            flush=True,
        )
        assert run.have(number)


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.rights_walk", description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000, metavar="N", help="connected clients [100000]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="changes of each case [3]")
    args = parser.parse_args()
    for case in CASES:
        asyncio.run(measure(case, args.clients, args.rounds))


if __name__ == "__main__":
    main()
