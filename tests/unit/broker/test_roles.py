"""Roles: rules that identities refer to by name."""

import json
from typing import Any, cast

import pytest

from flockmq.broker.auth.authenticator import Identity
from flockmq.broker.auth.author import pack_author, parse_author
from flockmq.broker.auth.chain import Chain
from flockmq.broker.auth.roles import Concerned, Roles
from flockmq.broker.auth.rules import parse_rules


class Backend:
    """A method whose identities have roles."""

    name = "backend"
    dummy_hash = None

    def authenticate(self, credentials: object) -> None:
        return None

    def renew(self, identity: Identity) -> Identity:
        return identity


def document(rules: list[str]) -> bytes:
    return json.dumps({"rules": rules}).encode()


def roles(**rules: list[str]) -> Roles:
    found = Roles()
    found.read({name: document(lines) for name, lines in rules.items()})
    return found


def chain(known: Roles) -> Chain:
    return Chain([Backend()], cast(Any, None), anonymous=False, roles=known)


def test_rules_of_roles_add_to_the_rules_of_the_user() -> None:
    known = roles(reader=["topic read a/#", "pattern read of/%c"], writer=["topic write b"])
    identity = Identity("ada", rules=parse_rules(["topic write own"]), roles=("reader", "writer"), method="backend")
    rights = chain(known).rights_of_absent(identity, "c1")
    assert rights is not None
    assert rights.may_read(b"a/1")
    assert rights.may_read(b"of/c1")
    assert rights.may_publish(b"b")
    assert rights.may_publish(b"own")
    assert not rights.may_read(b"of/c2")
    assert not rights.may_publish(b"a/1")


def test_a_changed_role_changes_present_rights() -> None:
    known = roles(reader=["topic read a"])
    identity = Identity("ada", roles=("reader",), method="backend")
    found = chain(known)
    assert known.change({"reader": document(["topic read b"])}) == {"reader"}
    rights = found.rights_of_absent(identity, "c")
    assert rights is not None
    assert rights.may_read(b"b")
    assert not rights.may_read(b"a")


def test_a_missing_role_gives_nothing() -> None:
    found = chain(roles())
    identity = Identity("ada", roles=("lost",), method="backend")
    for client_id in ("c1", "c2"):
        rights = found.rights_of_absent(identity, client_id)
        assert rights is not None
        assert not rights.may_read(b"a")
        assert not rights.may_publish(b"a")
    without = found.rights_of_absent(Identity("ada", method="backend"), "c")
    assert without is None  # nothing restricts this one


def test_the_author_of_a_will_has_roles() -> None:
    identity = Identity("ada", roles=("reader", "writer"), method="backend")
    assert parse_author(pack_author(identity), "") == identity
    plain = Identity("ada", method="backend")
    assert b"null" not in pack_author(plain)


def test_general_roles_are_roles_of_clients_that_do_not_name_them() -> None:
    known = roles(everyone=["topic read public/#"], anonymous=["topic write guests"])
    found = Chain([Backend()], cast(Any, None), anonymous=True, roles=known)
    anonymous, ada = (
        found.rights_of_absent(identity, "c") for identity in (Identity(), Identity("ada", method="backend"))
    )
    assert anonymous is not None and anonymous.may_publish(b"guests") and anonymous.may_read(b"public/1")
    assert ada is not None and ada.may_read(b"public/1") and not ada.may_publish(b"guests")
    assert known.read({}) == {"everyone", "anonymous"}
    assert found.rights_of_absent(Identity(), "c") is None


def test_a_role_that_is_unreadable_gives_nothing_and_restricts() -> None:
    known = roles()
    known.change({"odd": b"{"})
    rights = chain(known).rights_of_absent(Identity("ada", roles=("odd",), method="backend"), "c")
    assert rights is not None and not rights.may_read(b"a")


@pytest.mark.parametrize(
    ("changed", "anonymous", "ada", "bob"),
    [({"everyone"}, 1, 1, 1), ({"anonymous"}, 1, 0, 0), ({"reader"}, 0, 1, 0), ({"reader", "anonymous"}, 1, 1, 0)],
)
def test_the_clients_that_a_change_concerns(changed: set[str], anonymous: bool, ada: bool, bob: bool) -> None:
    found = Concerned.by_roles(changed)
    concerned = [one in found for one in (Identity(), Identity("ada", roles=("reader",)), Identity("bob"))]
    assert concerned == [bool(anonymous), bool(ada), bool(bob)]
