"""The identity of clients: its fields, its copies, and the garbage collector, which does not look at it."""

import gc

import pytest

from flockmq._speedups.session.identity import Identity
from flockmq._speedups.session.rights import READ, Rights

RIGHTS = Rights([(True, READ, b"a")])
FULL = Identity("ada", RIGHTS, 5.0, (), ("reader",), RIGHTS, "users", "tls", "acme", (("team", "x"),), b"digest")


def test_fields_have_defaults() -> None:
    nobody = Identity()
    assert (nobody.username, nobody.rights, nobody.expires, nobody.rules, nobody.granted) == (None,) * 5
    assert (nobody.roles, nobody.method, nobody.listener, nobody.tenant) == ((), "", "default", "")
    assert (nobody.claims, nobody.credential) == ((), b"")


def test_a_copy_differs_in_the_fields_that_are_changed() -> None:
    assert FULL.replace() == FULL and hash(FULL.replace()) == hash(FULL)
    other = FULL.replace(tenant="other", expires=None)
    assert other != FULL and (other.tenant, other.expires) == ("other", None)
    assert other.replace(tenant="acme", expires=5.0) == FULL
    assert FULL.having(None) == FULL.replace(rights=None) and FULL.having(None) != FULL
    assert FULL != "ada" and "username='ada'" in repr(FULL) and "credential=b'digest'" in repr(FULL)


def test_an_identity_whose_user_has_not_changed_is_itself() -> None:
    assert FULL.renewed((), ("reader",), b"digest") is FULL
    for rules, roles, credential in (
        (None, ("reader",), b"digest"),
        ((), ("writer",), b"digest"),
        ((), ("reader",), b"new"),
    ):
        expected = FULL.replace(rules=rules, roles=roles, credential=credential)
        assert FULL.renewed(rules, roles, credential) == expected


@pytest.mark.parametrize(
    "wrong",
    [{"username": b"ada"}, {"roles": ["reader"]}, {"roles": None}, {"method": None}, {"rights": "all"}, {"x": 1}],
)
def test_a_field_of_another_type_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        FULL.replace(**wrong)


def test_a_field_can_not_be_set() -> None:
    with pytest.raises(AttributeError):
        FULL.username = "bob"  # type: ignore[misc]


def test_the_garbage_collector_has_no_identities() -> None:
    """A change of rights makes 100 000 of them: a collection then stopped the loop for 30 ms."""
    assert not gc.is_tracked(FULL) and not gc.is_tracked(FULL.having(None)) and not gc.is_tracked(RIGHTS)
