"""Rules of access and the ACL file: the lines that are read, the lines that are refused, and the rights of a client."""

from pathlib import Path

import pytest

from flockmq._speedups.session.rights import PUBLISH, READ, Rights
from flockmq.broker.auth.acl_file import AclFile
from flockmq.broker.auth.rules import Rule, parse_rule, parse_rules, rights_of
from flockmq.broker.errors import ConfigError

BOTH = READ | PUBLISH


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("topic a/b", Rule(True, BOTH, "a/b")),
        ("topic read a/#", Rule(True, READ, "a/#")),
        ("topic  write   +/x ", Rule(True, PUBLISH, "+/x")),
        ("topic readwrite with spaces/in it", Rule(True, BOTH, "with spaces/in it")),
        ("topic deny secret/#", Rule(False, BOTH, "secret/#")),
        ("topic read", Rule(True, BOTH, "read")),
        ("pattern write devices/%c/up", Rule(True, PUBLISH, "devices/%c/up", True)),
    ],
)
def test_a_rule_is_read(line: str, rule: Rule) -> None:
    assert parse_rule(line) == rule


@pytest.mark.parametrize(
    "line",
    ["", "topic", "pattern ", "allow a", "topic reads a/b", "topic a b", "topic read a/#/b", "topic read a+"],
)
def test_what_is_no_rule_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"read, write|topic"):
        parse_rule(line)


def test_rules_in_json() -> None:
    assert parse_rules(None) is None
    assert parse_rules([]) == ()
    assert parse_rules(["topic deny a", "pattern read %u/#"]) == (
        Rule(False, BOTH, "a"),
        Rule(True, READ, "%u/#", True),
    )
    assert parse_rules({"publish": ["up/%c"], "subscribe": ["down/#"]}) == (
        Rule(True, PUBLISH, "up/%c", True),
        Rule(True, READ, "down/#", True),
    )
    for wrong in ("topic a", [1], {"publish": "a"}, {"pub": ["a"]}, 5, ["topic a b"]):
        with pytest.raises(ValueError, match=r"\S"):
            parse_rules(wrong)


def made(username: str | None, client_id: str, *lines: str) -> Rights:
    return rights_of(map(parse_rule, lines), username, client_id)


def test_a_pattern_is_filled_in_one_pass() -> None:
    rights = made("%c", "%u", "pattern write d/%c/%u/x", "pattern read 100%/%%c")
    assert rights.key == ((True, READ, b"100%/%%u"), (True, PUBLISH, b"d/%u/%c/x"))


def test_without_a_user_name_patterns_with_it_are_nobodys() -> None:
    lines = ("pattern readwrite home/%u/#", "pattern deny private/%u/#", "topic read public")
    assert made(None, "c", *lines).key == ((True, READ, b"public"),)
    assert made("", "c", *lines).key == ((True, READ, b"public"),)
    assert made("ada", "c", *lines).may_publish(b"home/ada/x")


@pytest.mark.parametrize("name", ["#", "+", "a/#", "a/b", "/", "a\0b"])
def test_a_name_cannot_widen_a_pattern(name: str) -> None:
    assert made(name, "c", "pattern readwrite home/%u/#").key == ()
    assert made("u", name, "pattern readwrite dev/%c").key == ()
    assert made("u", name, "topic read all/#", "pattern readwrite dev/%c").key == ((True, READ, b"all/#"),)
    # Nor can it slip past one that denies: then nothing is allowed.
    assert made("u", name, "topic read all/#", "pattern deny all/%c/private").key == ()


def test_equal_rights_are_one_object() -> None:
    lines = ("topic read a", "topic write b")
    assert made("u", "1", *lines) is made("v", "2", *reversed(lines))


def test_a_filter_that_no_topic_can_match_is_left_out() -> None:
    assert made("u", "x" * 65_535, "pattern write d/%c", "topic read a").key == ((True, READ, b"a"),)


FILE = """\
# public things
topic read public/#

user Ada Lovelace
topic readwrite engine/#
topic deny engine/secret
pattern write devices/%c/#
user bob\r
  topic  read news \t
"""


def acl(directory: Path, text: str) -> AclFile:
    (directory / "acl").write_text(text)
    return AclFile(str(directory / "acl"))


def test_the_file(tmp_path: Path) -> None:
    file = acl(tmp_path, FILE)
    anonymous, ada, bob = file.rights(None, "c1"), file.rights("Ada Lovelace", "c2"), file.rights("bob", "c3")
    assert anonymous.may_read(b"public/x") and not anonymous.may_publish(b"public/x")
    assert anonymous.may_publish(b"devices/c1/up") and not anonymous.may_publish(b"devices/c2/up")
    assert not ada.may_read(b"public/x"), "the first rules are for anonymous clients only"
    assert ada.may_publish(b"engine/on") and not ada.may_publish(b"engine/secret")
    assert not ada.may_read(b"engine/secret") and ada.may_publish(b"devices/c2/up")
    assert bob.may_read(b"news") and not bob.may_read(b"engine/on")
    assert file.rights("mallory", "c4").key == ((True, PUBLISH, b"devices/c4/#"),)


def test_topics_that_begin_with_a_dollar_are_closed_unless_named(tmp_path: Path) -> None:
    file = acl(tmp_path, "user a\ntopic readwrite #\nuser b\ntopic read $SYS/#\n")
    assert not file.rights("a", "c").may_read(b"$SYS/broker/uptime")
    assert not file.rights("a", "c").may_subscribe(b"$SYS/#")
    assert file.rights("b", "c").may_read(b"$SYS/broker/uptime")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_cve_2018_12550_a_file_without_rules_denies_everything(text: str, tmp_path: Path) -> None:
    for username in (None, "ada"):
        assert acl(tmp_path, text).rights(username, "c").key == ()


@pytest.mark.parametrize("line", ["user", "user  ", "topic reed a", "topic read a/#/b", "allow a", "pattern"])
def test_a_bad_line_is_told_with_its_number(line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"acl:2: expected ") as caught:
        acl(tmp_path, f"topic read a\n{line}\ntopic read b\n")
    assert caught.value.hint


@pytest.mark.parametrize("line", ["\ttopic read a", " \ttopic read a", "topic\tread a", "topic read\ta", "user\tada"])
def test_a_tab_is_no_separator(line: str, tmp_path: Path) -> None:
    """Mosquitto refuses the file, or takes the tab as a part of the topic filter."""
    with pytest.raises(ConfigError, match=r"acl:2: expected spaces between words, and no tab"):
        acl(tmp_path, f"\t# comment\n{line}\n")


def test_a_line_of_no_kind_is_told_with_all_kinds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'acl:1: expected "user" and a name, or "topic" or "pattern" and a rule'):
        acl(tmp_path, "usr ada\n")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auth\.acl_file = .* can't be read: No such file"):
        AclFile(str(tmp_path / "none"))


def test_comments_of_any_code_and_the_mark_of_an_editor(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_bytes(b"\xef\xbb\xbftopic read a\r\n  # M\xfcller\r\n")
    assert AclFile(str(path)).rights(None, "c").key == ((True, READ, b"a"),)
    path.write_bytes(b"topic read a\ntopic deny M\xfcller\n")
    with pytest.raises(ConfigError, match="acl:2: expected UTF-8"):
        AclFile(str(path))
