"""The configuration of rewrite rules and of subscriptions made at CONNECT."""

from pathlib import Path

import pytest

from flockmq.broker.config.keys import KEYS
from flockmq.broker.config.load import load
from flockmq.broker.config.reload import diff
from flockmq.broker.config.schema import Config
from flockmq.broker.config.topic_rules import AutoSubscription, RewriteRule
from flockmq.broker.errors import ConfigError

TOML = """
listen = ["127.0.0.1:1883"]
[[mqtt.rewrite]]
source = "old/+/#"
target = "new/$2/$1"
[[mqtt.rewrite]]
source = "s"
target = "t"
action = "subscribe"
[[mqtt.auto_subscribe]]
topic_filter = "commands/%c"
qos = 1
retain_handling = 2
listener = "default"
user = "sensor-*"
"""


def test_rules_are_read_from_tables(tmp_path: Path) -> None:
    file = tmp_path / "flockmq.toml"
    file.write_text(TOML)
    mqtt = load({}, {}, file).mqtt
    assert mqtt.rewrite == (RewriteRule("old/+/#", "new/$2/$1"), RewriteRule("s", "t", "subscribe"))
    assert mqtt.auto_subscribe == (
        AutoSubscription("commands/%c", 1, retain_handling=2, listener="default", user="sensor-*"),
    )


@pytest.mark.parametrize("name", ["mqtt.rewrite", "mqtt.auto_subscribe"])
def test_rules_are_written_as_they_are_read(name: str, tmp_path: Path) -> None:
    """In a change that a reload logs, and in the file that it came from."""
    file = tmp_path / "flockmq.toml"
    file.write_text(TOML)
    key = KEYS[name]
    value = key.of(load({}, {}, file))
    file.write_text(f"[mqtt]\n{key.field.name} = {key.kind.write(value)}\n")
    found = load({}, {}, file)
    assert key.of(found) == value
    assert [change.key.name for change in diff(Config(), found).reloadable] == [name]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("mqtt.rewrite", "{}", "tables such as"),
        ("mqtt.rewrite", "[1]", "tables such as"),
        ("mqtt.rewrite", '[{"source": "a"}]', "tables such as"),
        ("mqtt.rewrite", '[{"source": "a", "target": "b", "pattern": "c"}]', "keys of a rule .*not 'pattern'"),
        ("mqtt.rewrite", '[{"source": "a/#/b", "target": "b"}]', "a topic filter for source"),
        ("mqtt.rewrite", '[{"source": "$share/g/a", "target": "b"}]', "shared subscriptions too"),
        ("mqtt.rewrite", '[{"source": "a", "target": "$share/g/b"}]', "shared subscriptions too"),
        ("mqtt.rewrite", '[{"source": "a/#", "target": "b/#"}]', "a target without wildcards"),
        ("mqtt.rewrite", '[{"source": "a/#", "target": ""}]', "a target without wildcards"),
        ("mqtt.rewrite", '[{"source": "a/#", "target": "b/$2"}]', "not .2: 'a/#' has 1"),
        ("mqtt.rewrite", '[{"source": "a/#", "target": "b/$0"}]', "not .0"),
        ("mqtt.rewrite", '[{"source": "a", "target": "b", "action": "x"}]', "publish.* for action"),
        ("mqtt.auto_subscribe", '[{"qos": 1}]', "tables such as"),
        ("mqtt.auto_subscribe", '[{"topic_filter": "a/#/b"}]', "a topic filter"),
        ("mqtt.auto_subscribe", '[{"topic_filter": "a", "qos": 3}]', "from 0 to 2 for qos"),
        ("mqtt.auto_subscribe", '[{"topic_filter": "$share/a"}]', "share/NAME/FILTER"),
        ("mqtt.auto_subscribe", '[{"topic_filter": "$share/g/a", "no_local": true}]', "no_local = false"),
        ("mqtt.auto_subscribe", '[{"topic_filter": "a", "listener": "none"}]', "there is no listener none"),
        ("mqtt.maximum_qos", "3", "from 0 to 2"),
        ("quotas.max_packet_size", "127", "or 0"),
    ],
)
def test_a_wrong_rule_is_refused(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load({name: text}, {})


def test_the_packet_size_of_a_listener_is_its_own() -> None:
    assert load({"quotas.max_packet_size": "0"}, {}).quotas.max_packet_size == 0
    assert load({"quotas.max_packet_size": "1 KiB"}, {}).listeners[0].quotas.max_packet_size == 1024
