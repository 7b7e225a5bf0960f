"""What `listen` takes."""

import pytest

from flockmq.broker.config.listen_url import ListenUrl
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
