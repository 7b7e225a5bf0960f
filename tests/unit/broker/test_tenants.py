"""The rules that assign clients to tenants, and names with the prefix of a tenant."""

import json
from typing import Any

import pytest

from flockmq._speedups.codec.topics import matches, split_tenant
from flockmq._speedups.session.rights import PUBLISH, READ, Rights
from flockmq.broker.auth.authenticator import Credentials, Identity
from flockmq.broker.auth.tenants import Tenants
from flockmq.broker.config.load import load
from flockmq.broker.config.tenants import TenantRule, limits_of
from flockmq.broker.core import tenants
from flockmq.broker.core.topic_filters import qualified
from flockmq.broker.errors import ConfigError

CLIENT = b"$tenant/acme/c"


def tenant(*rules: TenantRule, user: str | None = None, claims: Any = (), **shown: Any) -> str | None:
    credentials = Credentials("c", user, None, "127.0.0.1:1", 5, **shown)
    return Tenants(rules).tenant_of(credentials, Identity(user, claims=claims))


@pytest.mark.parametrize(
    ("rule", "user", "name"),
    [
        (TenantRule("acme", user="acme-*"), "acme-1", "acme"),
        (TenantRule("acme", user="acme-*"), "xacme-1", ""),
        (TenantRule("acme", user="acme"), "acme", "acme"),
        (TenantRule("acme", user="acme"), "acme-1", ""),
        (TenantRule("acme", user="acme"), None, ""),
        (TenantRule("*", user="*-device"), "acme-device", "acme"),
        (TenantRule("*", user="*-device"), "-device", ""),
        (TenantRule("*", user="ab*ba"), "aba", ""),
        (TenantRule("*", user="*-device"), "a/b-device", None),
        (TenantRule("*", user="*-device"), "#-device", None),
        (TenantRule("acme"), None, "acme"),
        (TenantRule(""), "acme", ""),
    ],
)
def test_a_rule_by_user(rule: TenantRule, user: str | None, name: str | None) -> None:
    assert tenant(rule, user=user) == name


def test_the_first_rule_whose_conditions_all_hold_counts() -> None:
    rules = (
        TenantRule("", user="operator"),
        TenantRule("one", listener="inner", server_name="one.example"),
        TenantRule("*", server_name="*.example"),
        TenantRule("*", claim="org=*"),
        TenantRule("sensors", certificate="sensor-*"),
        TenantRule("rest"),
    )
    assert tenant(*rules, user="operator", server_name="one.example") == ""
    assert tenant(*rules, listener="inner", server_name="one.example") == "one"
    assert tenant(*rules, server_name="Two.Example") == "two"
    assert tenant(*rules, claims=(("org", "acme"),)) == "acme"
    assert tenant(*rules, certificate="sensor-7") == "sensors"
    assert tenant(*rules) == "rest"


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ([{"name": "a/b"}], "one level of a topic"),
        ([{"name": "+"}], "one level of a topic"),
        ([{"name": "*"}], "exactly one condition"),
        ([{"name": "*", "user": "*", "claim": "org=*"}], "exactly one condition"),
        ([{"name": "a", "user": "*-*"}], "at most one"),
        ([{"name": "a", "claim": "org"}], "CLAIM=PATTERN"),
        ([{"name": "a", "realm": "b"}], "keys of a rule"),
        ([{"name": "a", "listener": "missing"}], "there is no listener missing"),
        ([{"user": "a"}], "tables such as"),
        ([{"name": "a", "max_sessions": -1}], "a whole number from 0"),
        ([{"name": "", "max_sessions": 1}], "no limits"),
    ],
)
def test_a_wrong_rule_is_refused(rules: list[dict[str, str]], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(env={"FLOCKMQ_TENANTS": json.dumps(rules)})


def test_limits_are_those_of_the_first_rule_with_the_name() -> None:
    table = [
        {"name": "", "user": "operator"},
        {"name": "*", "user": "*-device", "max_sessions": 5},
        {"name": "acme", "user": "a", "max_connections": 2, "bytes_per_second": "1 KiB"},
        {"name": "acme", "user": "b", "max_connections": 3},
    ]
    rules = load(env={"FLOCKMQ_TENANTS": json.dumps(table)}).tenants
    assert {name: value for name, value in limits_of(rules, "acme").items() if value} == {
        "max_connections": 2,
        "bytes_per_second": 1024,
    }
    assert {name: value for name, value in limits_of(rules, "globex").items() if value} == {"max_sessions": 5}
    assert limits_of((), "acme") == {}


def test_filters_get_the_prefix_where_the_messages_are_named() -> None:
    assert qualified(CLIENT, "a/#") == "$tenant/acme/a/#"
    assert qualified(CLIENT, "$SYS/#") == "$tenant/acme/$SYS/#"
    assert qualified(CLIENT, "$share/g/a/#") == "$share/g/$tenant/acme/a/#"
    assert qualified(CLIENT, "$stream/1h/a/#") == "$stream/1h/$tenant/acme/a/#"
    for invalid in ("", "$share/g", "$share//a", "$share/g/$stream/1h/a", "$stream/1h"):
        assert qualified(CLIENT, invalid) == invalid  # and refused, as without tenants
    assert qualified(b"c", "a/#") == "a/#"


def test_topic_names_get_the_prefix_behind_a_delay() -> None:
    assert tenants.with_prefix("$tenant/acme/", "a") == "$tenant/acme/a"
    assert tenants.with_prefix("$tenant/acme/", "$delayed/5/a") == "$delayed/5/$tenant/acme/a"
    assert split_tenant(b"$tenant/acme/a/b") == (b"$tenant/acme/", b"a/b")
    for name in (b"$tenant/acme", b"$tenant/", b"a/$tenant/b/c", b""):
        assert split_tenant(name) == (b"", name)


def test_wildcards_match_no_dollar_behind_the_prefix() -> None:
    """[MQTT-4.7.2-1] as clients of a tenant see it."""
    for topic_filter in ("$tenant/acme/#", "$tenant/acme/+/x", "$tenant/+/#", "#", "+/acme/#"):
        assert not matches(topic_filter, "$tenant/acme/$SYS/x")
    for topic_filter in ("$tenant/acme/#", "$tenant/acme/+/x", "$tenant/+/#", "$tenant/#"):
        assert matches(topic_filter, "$tenant/acme/a/x")
    assert matches("$tenant/acme/$SYS/#", "$tenant/acme/$SYS/x")
    assert matches("$tenant/acme/a/#", "$tenant/acme/a/$x")
    assert not matches("$tenant/acme/#", "$tenant/globex/a")


def test_rights_below_a_prefix() -> None:
    rights = Rights([(True, READ | PUBLISH, b"#"), (False, READ, b"secret/#")]).below(b"$tenant/acme/")
    assert rights.may_publish(b"$tenant/acme/a") and not rights.may_publish(b"$tenant/acme/$SYS/a")
    assert not rights.may_publish(b"$tenant/globex/a") and not rights.may_publish(b"a")
    assert rights.may_subscribe(b"$tenant/acme/+/x") and not rights.may_subscribe(b"$tenant/acme/$SYS/#")
    assert not rights.may_subscribe(b"$tenant/acme/secret/#") and not rights.may_read(b"$tenant/acme/secret/x")
