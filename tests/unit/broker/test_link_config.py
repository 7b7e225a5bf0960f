"""Tables [links.NAME]: rules as Mosquitto writes them, addresses, and mistakes that are refused."""

import pytest

from flockmq.broker.config.link import Links, Rule, address_of, link


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sensors/#", Rule("sensors/#", "out", 0, "", "")),
        ("sensors/# in 1", Rule("sensors/#", "in", 1, "", "")),
        ('# both 2 "" plant/', Rule("#", "both", 2, "", "plant/")),
        ('"" in 0 local/topic remote/topic', Rule("", "in", 0, "local/topic", "remote/topic")),
        ('"with space/+" out 1', Rule("with space/+", "out", 1, "", "")),
    ],
)
def test_rules(text: str, rule: Rule) -> None:
    assert Rule.parse(text) == rule
    assert Rule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a sideways",
        "a out 3",
        "a out 0 x y z",
        "a# out",
        "a out 0 +/",
        '"" out 0',
        "$share/g/a out 1",
        "a out 0 $share/g/",
    ],
)
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        Rule.parse(text)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://h:1883", ("mqtt", "h", 1883)),
        ("h:1883", ("mqtt", "h", 1883)),
        ("mqtts://[::1]:8883/", ("mqtts", "::1", 8883)),
        ("unix:/run/m.sock", ("unix", "/run/m.sock", 0)),
    ],
)
def test_addresses(url: str, address: tuple[str, str, int]) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize(
    "options",
    [
        {"url": "h:1"},
        {"topics": ["a"]},
        {"url": "http://h:1", "topics": ["a"]},
        {"url": "h:1", "topics": ["a"], "colour": "red"},
        {"url": "h:1", "topics": ["a"], "ca_file": "x"},
        {"url": "mqtts://h:1", "topics": ["a"], "key": "x"},
        {"url": "h:1", "topics": ["a"], "password": "x", "password_file": "y"},
        {"url": "h:1", "topics": ["a"], "version": "4"},
    ],
)
def test_settings_that_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        link("a", options)


def test_a_password_is_not_shown() -> None:
    found = link("a", {"url": "h:1", "topics": ["a"], "password": "secret", "version": "3.1.1"})
    shown = Links().write((found,))
    assert "secret" not in shown and '"(hidden)"' in shown and found.level == 4
