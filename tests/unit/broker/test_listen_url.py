"""The addresses that `listen` takes."""

import pytest

from flockmq.broker.config.listen_url import ListenUrl, hosts_and_port
from flockmq.broker.config.load import load
from flockmq.broker.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "scheme", "address", "written"),
    [
        ("127.0.0.1:1883", "mqtt", "127.0.0.1:1883", "mqtt://127.0.0.1:1883"),
        ("localhost:1883", "mqtt", "localhost:1883", "mqtt://localhost:1883"),
        ("[::1]:0", "mqtt", "[::1]:0", "mqtt://[::1]:0"),
        (":1883", "mqtt", ":1883", "mqtt://:1883"),
        ("ws://*:80", "ws", "*:80", "ws://*:80"),
        ("mqtt://a:1", "mqtt", "a:1", "mqtt://a:1"),
        ("mqtts://0.0.0.0:8883/", "mqtts", "0.0.0.0:8883", "mqtts://0.0.0.0:8883"),
        ("ws://[::]:80", "ws", "[::]:80", "ws://[::]:80"),
        ("wss://a.example:443", "wss", "a.example:443", "wss://a.example:443"),
        ("unix:/run/flockmq.sock", "unix", "/run/flockmq.sock", "unix:/run/flockmq.sock"),
        ("fd:7", "fd", "7", "fd:7"),
    ],
)
def test_parse(text: str, scheme: str, address: str, written: str) -> None:
    url = ListenUrl.parse(text)
    assert (url.scheme, url.address, str(url)) == (scheme, address, written)
    assert ListenUrl.parse(written) == url
    assert url.secure == (scheme in ("mqtts", "wss"))
    assert url.websocket == (scheme in ("ws", "wss"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1883",
        "a",
        "http://a:1",
        "mqtt:/a:1",
        "mqtt://a",
        "mqtt://a:x",
        "mqtt://a:1/path",
        "mqtt://:x",
        "ws://[]:1",
        ":",
        "ws://a:65536",
        "unix:relative/path",
        "unix:",
        "unix:1883",
        "unix:/" + "x" * 107,
        "unix:/a\0b",
        "fd:",
        "fd:x",
        "fd:-1",
        "mqtts://::1:1",
        "MQTT://a:1",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        load({"listen": [text]}, {})


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "a:1,mqtt://a:1"},
        {"listen": "a:1,ws://a:1"},
        {"listen": ":1,*:1"},
        {"listen": "[::]:1", "proxy.listen": ":1"},
        {"listen": "localhost:1,[::1]:1"},
        {"http.listen": ":1,[::]:1"},
        {"listen": "a:1", "proxy.listen": "a:1"},
        {"listen": "a:1", "listeners.x.listen": "a:1"},
        {"listeners.x.listen": "unix:/s", "listeners.y.listen": "unix:/s"},
    ],
)
def test_an_address_belongs_to_one(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="each address"):
        load(settings, {})
    load({"listen": "a:0,b:0,:0,localhost:2,:3", "proxy.listen": "a:0"}, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": ":2120,127.0.0.1:2120"}, "listen :2120 and listen 127.0.0.1:2120 clash"),
        ({"listen": "127.0.0.1:2120,ws://*:2120"}, r"listen 127.0.0.1:2120 and listen ws://\*:2120 clash"),
        ({"listen": "localhost:2120,LOCALHOST:2120"}, "each address once, LOCALHOST:2120 is there twice"),
        ({"listen": ":2122", "http.listen": ":2122"}, "listen :2122 and http.listen :2122 clash"),
        (
            {"listen": "[::1]:2122", "http.listen": "https://*:2122"},
            r"listen \[::1\]:2122 and http.listen https://\*:2122 clash",
        ),
        (
            {"listen": ":2122", "proxy.listen": "127.0.0.1:2122"},
            "listen :2122 and proxy.listen 127.0.0.1:2122 clash",
        ),
        (
            {"listen": ":2122", "listeners.a.listen": "127.0.0.1:2122"},
            "listen :2122 and listeners.a.listen 127.0.0.1:2122 clash",
        ),
    ],
)
def test_two_addresses_of_the_node_that_clash_are_both_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(settings, {})
    assert "another program" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "127.0.0.1:2120,[::]:2120"},
        {"listen": ":0,127.0.0.1:0", "http.listen": ":0"},
        {"listen": ":2120,127.0.0.1:2120", "listen_shared": True},
        {"listen": "127.0.0.1:2120", "http.listen": "127.0.0.2:2120"},
    ],
)
def test_addresses_that_do_not_clash(settings: dict[str, object]) -> None:
    assert load({name: str(value) for name, value in settings.items()}, {}).listen


def test_names_of_hosts_have_no_case() -> None:
    assert hosts_and_port("LOCALHOST:2111") == hosts_and_port("localhost:2111") == (("127.0.0.1", "::1"), 2111)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("[::ffff:127.0.0.1]:2113", "expected an address of IPv4 as IPv4 writes it, 127.0.0.1:2113, not "),
        ("ws://localhost:2116/mqtt", "expected no path after the port of ws://.*/mqtt; websocket.path is the path"),
        ("mqtt://localhost:2116/mqtt", "expected no path after the port of mqtt://localhost:2116/mqtt"),
    ],
)
def test_the_reason_is_named(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load({"listen": address}, {})
