"""Hidden messages: how many are kept, for how long, and by which topic names."""

from flockmq.broker.core.hidden_messages import HiddenMessages
from tests.harness.inprocess import KeepingStore, Node

SECOND = 4  # ticks


def test_they_outlive_a_restart_and_expire() -> None:
    node = Node()
    messages = HiddenMessages(node.broker.data_plane, "kind")
    stored: list[str] = []
    messages.put("a", b"first", on_stored=lambda: stored.append("a"))
    messages.put("a", b"second")
    messages.put("b/c", b"short", seconds=10)
    messages.put("d", b"x")
    messages.remove("d", on_stored=lambda: stored.append("d"))
    node.run()
    assert stored == ["a", "d"]
    node = Node(KeepingStore(node.store.after(len(node.store.told))))
    messages = HiddenMessages(node.broker.data_plane, "kind")
    assert messages.all() == {"a": b"second", "b/c": b"short"}
    node.advance(11 * SECOND)
    node.router.expire_retained()
    assert messages.all() == {"a": b"second"}
    assert (messages.find("a"), messages.find("b/c"), messages.find("d")) == (b"second", None, None)


def test_a_kind_has_its_own_names() -> None:
    plane = Node().broker.data_plane
    HiddenMessages(plane, "one").put("a", b"1")
    HiddenMessages(plane, "two").put("a", b"2")
    assert HiddenMessages(plane, "one").all() == {"a": b"1"}
    assert HiddenMessages(plane).all() == {"one/a": b"1", "two/a": b"2"}


def test_the_topic_names_are_those_of_earlier_versions() -> None:
    node = Node()
    plane = node.broker.data_plane
    HiddenMessages(plane).put("secret", b"s")
    HiddenMessages(plane, "login").put("name", b"p")
    found = sorted(topic for topic, _, _ in node.router.retained.matching(b"$\x00flockmq/#"))
    assert found == [b"$\x00flockmq/login/name", b"$\x00flockmq/secret"]
