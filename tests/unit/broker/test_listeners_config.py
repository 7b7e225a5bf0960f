"""Tables of listeners in the configuration: settings of each, changes at a reload, mistakes that are refused."""

from pathlib import Path

import pytest

from flockmq.broker.commands.check_config import render
from flockmq.broker.config.load import load, trace
from flockmq.broker.config.reload import diff, follow
from flockmq.broker.config.schema import Config
from flockmq.broker.errors import ConfigError

FILE = """\
[tls]
certificate = "c.pem"
key = "k.pem"
client_ca = "ca.pem"

[quotas]
max_connections = 100

[listeners.public]
listen = ["mqtts://0.0.0.0:8883", "wss://0.0.0.0:443"]
socket_mode = "600"

[listeners.public.tls]
client_certificate = "required"

[listeners.balanced]
listen = "mqtt://10.0.0.1:1883"
proxied = true
quotas.max_connections = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flockmq.toml"
    path.write_text(FILE)
    return path


def read(file: Path, text: str | None = None, **overrides: object) -> Config:
    if text is not None:
        file.write_text(text)
    return load({name.replace("__", "."): value for name, value in overrides.items()}, {}, file)


def test_a_table_is_over_the_sections(file: Path) -> None:
    config = read(file, proxy__listen="127.0.0.1:1884")
    default, public, balanced = config.listeners
    assert default.places == (("localhost:1883", False), ("127.0.0.1:1884", True))
    assert public.places == (("mqtts://0.0.0.0:8883", False), ("wss://0.0.0.0:443", False))
    assert balanced.places == (("mqtt://10.0.0.1:1883", True),)
    assert [each.tls.client_certificate for each in config.listeners] == ["none", "required", "none"]
    assert [each.tls.client_ca for each in config.listeners] == ["ca.pem"] * 3
    assert [each.quotas.max_connections for each in config.listeners] == [100, 100, 7]
    assert [each.socket_mode for each in config.listeners] == ["660", "600", "660"]


def test_the_command_line_sets_tables_too(file: Path) -> None:
    overrides = {"listeners.public.listen": "mqtts://127.0.0.1:1", "listeners.new.listen": "127.0.0.1:2,127.0.0.1:3"}
    config = load(overrides, {}, file)
    assert [each.listen for each in config.listeners[1:]] == [
        ("mqtts://127.0.0.1:1",),
        ("mqtt://10.0.0.1:1883",),
        ("127.0.0.1:2", "127.0.0.1:3"),
    ]
    assert config.listeners[1].tls.client_certificate == "required"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listeners.x.tls.key": "a"}, r"listeners\.x has no addresses"),
        ({"listeners.X.listen": "a:1"}, "small letters"),
        ({"listeners.default.listen": "a:1"}, "is that of `listen`"),
        ({"listeners.x": "a:1"}, r"unknown key listeners\.x\."),
        ({"listeners.x.limits.max_inflight": "1"}, r"unknown key listeners\.x\.limits\.max_inflight"),
        ({"listeners.x.listen": "mqtts://a:1"}, r"listeners\.x\.tls\.certificate: .*set tls\.certificate and tls\.key"),
        ({"listen": "wss://a:1"}, r"tls\.certificate: mqtts:// and wss:// need one"),
        ({"listen": "a:1", "tls.client_certificate": "optional"}, r"tls\.client_ca"),
        ({"tls.client_certificate": "required", "tls.client_ca": "x"}, "no address of any listener has TLS"),
        ({"listen": "a:1", "tls.client_crl": "x"}, r"tls\.client_crl: clients need no certificate"),
        ({"listen": "a:1", "tls.username_from": "cn"}, r"tls\.username_from: clients need no"),
        ({"socket_mode": "0660"}, "three octal digits"),
        ({"websocket.path": "mqtt"}, 'a path such as "/mqtt"'),
        ({"websocket.origins": "app.example"}, "origins such as"),
    ],
)
def test_what_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(settings, {})


def test_diff_and_follow(file: Path) -> None:
    old = read(file)
    text = FILE.replace('"required"', '"optional"').replace("quotas.max_connections = 7\n", "")
    text = text.replace("10.0.0.1:1883", "10.0.0.2:1883") + '[listeners.new]\nlisten = "127.0.0.1:5"\nproxied = true\n'
    new = read(file, text)
    changes = diff(old, new)
    assert [str(change) for change in changes.reloadable] == [
        'listeners.public.tls.client_certificate: "required" -> "optional"',
        "listeners.balanced.quotas.max_connections: 7 -> not set",
    ]
    assert [str(change) for change in changes.needs_restart] == [
        'listeners.balanced.listen: ["mqtt://10.0.0.1:1883"] -> ["mqtt://10.0.0.2:1883"]',
        'listeners.new.listen: not set -> ["127.0.0.1:5"]',
    ]
    running = follow(old, changes)
    assert [each.listen for each in running.listeners] == [each.listen for each in old.listeners]
    assert running.listeners[1].tls.client_certificate == "optional"
    assert running.listeners[2].quotas.max_connections == 100
    gone = diff(new, read(file, ""))
    assert 'listeners.new.listen: ["127.0.0.1:5"] -> not set' in map(str, gone.needs_restart)


def test_check_config_shows_tables(file: Path) -> None:
    text = render(trace({}, {}, file))
    assert "\n[listeners.public]\nlisten = " in text
    assert f'client_certificate = "required"          # {file}:14\n' in text
    assert f"max_connections = 7                      # {file}:19\n" in text
    again = file.with_name("again.toml")
    again.write_text(text)
    assert load({}, {}, again) == load({}, {}, file)
