"""Roles: rules that identities refer to by name."""

from typing import Any, cast

from flockmq.broker.auth.authenticator import Identity
from flockmq.broker.auth.author import pack_author, parse_author
from flockmq.broker.auth.chain import Chain
from flockmq.broker.auth.roles import Roles
from flockmq.broker.auth.rules import parse_rules


class Backend:
    """A method whose identities have roles."""

    name = "backend"
    dummy_hash = None

    def authenticate(self, credentials: object) -> None:
        return None

    def renew(self, identity: Identity) -> Identity:
        return identity


def roles(**rules: list[str]) -> Roles:
    found = Roles()
    found.replace({name: parse_rules(lines) or () for name, lines in rules.items()})
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
    known.replace({"reader": parse_rules(["topic read b"]) or ()})
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
