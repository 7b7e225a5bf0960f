"""The users that a node has read: those with a connection are never forgotten, and no change is missed."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from flockmq.broker.auth import users
from flockmq.broker.auth.access_store import Kind
from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Verdict
from flockmq.broker.auth.chain import Chain
from flockmq.broker.auth.passwords import parse_hash, scram_credentials
from flockmq.broker.auth.stored_user import Away
from flockmq.broker.auth.users import StoredUsers, Users
from flockmq.broker.auth.verifier import Verifier
from tests.security.access_files import quick_hash

HASH = quick_hash("x")


class Store:
    """A store with these users, which replies at once."""

    connected = True

    def __init__(self) -> None:
        self.users: dict[str, bytes] = {}

    def read(self, kind: Kind, names: Sequence[str], then: Callable[[list[bytes | None] | None], object]) -> None:
        then([self.users.get(name) for name in names])


def user(**properties: object) -> bytes:
    return json.dumps({"hash": HASH, **properties}).encode()


def log_in(cache: Users, store: Store) -> None:
    """All users log in, in order."""

    async def find() -> None:
        for name in store.users:
            assert await cache.find(name) is not None

    asyncio.run(find())


def test_a_change_of_a_connected_user_is_noticed_after_any_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forgotten in the end, and a client whose user had been disabled kept its rights."""
    monkeypatch.setattr(users, "MAX_CACHED", 20)
    store, changed = Store(), list[set[str]]()
    cache = Users(cast(Any, store), changed.append, lambda: {"pump"})
    store.users = {"pump": user()} | {f"other{number}": user() for number in range(200)}
    log_in(cache, store)
    cache.changed({"pump": user(disabled=True), "stranger": user()})
    known = cache.known("pump")
    assert changed == [{"pump"}] and known is not None and known.disabled
    names = [name for name in store.users if cache.known(name)]
    assert names[:1] == ["pump"] and 20 <= len(names) - 1 <= 23 and names[-1] == "other199"
    assert cache.known("stranger") is None


def test_many_connected_users_do_not_cost_a_search_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MAX_CACHED", 20)
    store, searches = Store(), 0

    def connected() -> set[str]:
        nonlocal searches
        searches += 1
        return set(store.users)

    cache = Users(cast(Any, store), lambda names: None, connected)
    store.users = {f"pump{number}": user() for number in range(200)}
    log_in(cache, store)
    assert all(map(cache.known, store.users))
    assert searches < 100


def test_changes_that_were_missed_are_found_when_the_store_is_back() -> None:
    store, changed = Store(), list[set[str]]()
    cache = Users(cast(Any, store), changed.append, set)
    store.users = {"ada": user(), "bob": user(), "eve": user()}
    log_in(cache, store)
    store.users = {"ada": user(), "bob": user(rules=[])}
    cache.read_again()
    bob = cache.known("bob")
    assert changed == [{"bob", "eve"}] and bob is not None and bob.rules == () and cache.known("eve") is None


def test_a_user_that_becomes_unreadable_lets_nobody_in() -> None:
    store, changed = Store(), list[set[str]]()
    cache = Users(cast(Any, store), changed.append, set)
    store.users = {"ada": user()}
    log_in(cache, store)
    cache.changed({"ada": b"{"})
    assert changed == [{"ada"}] and cache.known("ada") is None
    with pytest.raises(Away):
        asyncio.run(cache.find("ada"))


def test_equal_rules_of_many_users_are_one_object() -> None:
    one, two = (users.User.parse(user(rules=["topic read a/#"])) for _ in range(2))
    assert one.rules is two.rules and one.rules


def test_an_unknown_user_costs_as_much_as_a_wrong_password() -> None:
    """One hash is verified, of the kind that users have: argon2id until the first of them was seen."""
    store, verifier = Store(), Verifier()
    cache = Users(cast(Any, store), lambda names: None, set)
    method = StoredUsers(lambda: cache, verifier)
    chain = Chain([method], verifier, anonymous=False)
    store.users = {"ada": user(hash=scram_credentials(b"x", 5000).text)}

    async def verified(name: str) -> int:
        before = verifier.verifications
        verdict = chain.authenticate(Credentials("c", name, b"wrong", "192.0.2.1", 5))
        assert not isinstance(verdict, Verdict)
        assert (await verdict).code == ReasonCode.BAD_USERNAME_OR_PASSWORD
        return verifier.verifications - before

    assert method.dummy_hash is not None and method.dummy_hash.scheme == "argon2id"
    assert [asyncio.run(verified(name)) for name in ("nobody", "ada", "nobody", "ada")] == [1] * 4
    assert method.dummy_hash.cost == parse_hash(json.loads(store.users["ada"])["hash"]).cost
    verifier.close()
