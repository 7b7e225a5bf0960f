"""`flockmq import`: a mosquitto.conf becomes a configuration that can be loaded, and no line is lost."""

import re
from pathlib import Path

import pytest

from broker.config.load import load
from broker.config.mosquitto import ALWAYS, translate
from broker.config.schema import Config
from broker.errors import ConfigError

EXAMPLE = Path("/usr/share/doc/mosquitto/examples/mosquitto.conf")


def imported(tmp_path: Path, text: str) -> tuple[Config, str]:
    """The configuration of a mosquitto.conf, and its text."""
    source, made = tmp_path / "mosquitto.conf", tmp_path / "flockmq.toml"
    source.write_text(text)
    made.write_text(translate(source))
    return load({}, {}, made), made.read_text()


def test_an_empty_file_is_the_default_of_mosquitto(tmp_path: Path) -> None:
    config, _ = imported(tmp_path, "# nothing\n")
    assert config.listen == ("127.0.0.1:1883",) and config.store.url == "memory"


def test_listeners_have_what_they_had(tmp_path: Path) -> None:
    config, text = imported(
        tmp_path,
        """per_listener_settings true
listener 1883 127.0.0.1
allow_anonymous true
listener 8883
cafile /ca.pem
certfile /c.pem
keyfile /k.pem
require_certificate true
use_identity_as_username true
acl_file /acl
listener 9001 ::1
protocol websockets
cafile /unused.pem
max_connections 100
listener 0 /run/m.sock
""",
    )
    found = {listener.listen[0]: listener for listener in config.listeners}
    assert set(found) == {"127.0.0.1:1883", "mqtts://0.0.0.0:8883", "ws://[::1]:9001", "unix:/run/m.sock"}
    secure = found["mqtts://0.0.0.0:8883"]
    assert (secure.tls.certificate, secure.tls.client_certificate, secure.tls.username_from) == (
        "/c.pem",
        "required",
        "cn",
    )
    assert [listener.auth.allow_anonymous for listener in found.values()].count(True) == 1
    assert found["127.0.0.1:1883"].auth.allow_anonymous and secure.auth.acl_file == "/acl"
    assert found["ws://[::1]:9001"].quotas.max_connections == 100
    assert [listener.quotas.max_connections for listener in found.values()].count(0) == 3
    assert "/unused.pem" in text


def test_the_chain_of_a_certificate_that_mosquitto_completes_is_noted(tmp_path: Path) -> None:
    lines = "listener 8883\ncafile /all-ca.pem\ncertfile /c.pem\nkeyfile /k.pem\n"
    _, text = imported(tmp_path, lines)
    assert re.search(r"^# tls.client_ca = .*append the certificates of intermediate .* to tls.certificate$", text, re.M)
    _, text = imported(tmp_path, lines + "require_certificate true\n")
    assert "intermediate" not in text


def test_users_are_those_of_all_listeners(tmp_path: Path) -> None:
    config, _ = imported(tmp_path, "port 1884\nlistener 1885 127.0.0.1\npassword_file /pw\n")
    assert [(each.listen, each.auth.password_file) for each in config.listeners] == [
        (("0.0.0.0:1884",), "/pw"),
        (("127.0.0.1:1885",), "/pw"),
    ]


def test_limits_and_the_store(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "more.conf").write_text("max_queued_messages 7\n")
    config, text = imported(
        tmp_path,
        "persistence true\npersistence_location /var/lib/m/\nmax_inflight_messages 0\nmax_keepalive 60\n"
        "persistent_client_expiration 2w\nmessage_size_limit 1000\nlog_type all\ninclude_dir conf.d\n"
        "queue_qos0_messages true\nautosave_interval 60\n",
    )
    assert config.store.url == "sqlite:/var/lib/m/flockmq.db" and config.mqtt.session_expiry == 14 * 86_400
    assert (config.limits.max_inflight, config.limits.max_keep_alive, config.limits.max_queued_messages) == (
        65_535,
        60,
        7,
    )
    assert config.log.level == "debug" and config.limits.max_packet_size > 1000
    assert "# queue_qos0_messages true: no counterpart" in text
    assert f"# autosave_interval 60: {ALWAYS['autosave_interval']}" in text


def test_bridges_are_links(tmp_path: Path) -> None:
    config, text = imported(
        tmp_path,
        """connection cloud
address a.example:8883 b.example
topic sensors/# out 1
topic # both 2 "" plant/
remote_username u
remote_password secret
bridge_cafile /ca.pem
bridge_protocol_version mqttv50
keepalive_interval 30
restart_timeout 2 20
notifications true
connection other
address c.example:1884
topic x
""",
    )
    cloud, other = config.links
    assert cloud.url == ("mqtts://a.example:8883", "mqtts://b.example:1883") and cloud.version == "5"
    assert [str(rule) for rule in cloud.topics] == ["sensors/# out 1", '# both 2 "" plant/']
    assert (cloud.username, cloud.password, cloud.ca_file, cloud.keep_alive) == ("u", "secret", "/ca.pem", 30)
    assert (cloud.retry, other.retry) == (20, 30)
    assert (other.url, other.version) == (("mqtt://c.example:1884",), "3.1.1")
    assert "# notifications true: " in text


def test_settings_of_listeners_since_mosquitto_2(tmp_path: Path) -> None:
    config, text = imported(
        tmp_path,
        """listener 1883
enable_proxy_protocol 2
max_qos 1
listener 9001
protocol websockets
websockets_origin https://a.example
websockets_origin https://b.example
listener_allow_anonymous true
global_max_connections 500
max_queued_bytes 40
""",
    )
    first, second = config.listeners
    assert [proxied for _, proxied in (*first.places, *second.places)] == [True, False]
    assert second.websocket.origins == ("https://a.example", "https://b.example")
    assert [each.auth.allow_anonymous for each in config.listeners] == [False, True]
    assert (config.limits.max_connections, config.limits.max_queued_bytes) == (500, 1024)
    assert "proxy.trusted" in text and "# the maximum QoS, 1 for 0.0.0.0:1883, 2 for ws://0.0.0.0:9001: " in text


def test_one_maximum_qos(tmp_path: Path) -> None:
    assert imported(tmp_path, "listener 1883\nmax_qos 1\n")[0].mqtt.maximum_qos == 1


def test_plugins_for_users_rules_and_the_store(tmp_path: Path) -> None:
    """Those that Mosquitto 2.1 has in place of its directives are keys, each at its listeners."""
    config, text = imported(
        tmp_path,
        """global_plugin /usr/lib/mosquitto_persist_sqlite.so
plugin_opt_db_file /var/lib/mosquitto/state.db
plugin_load users /usr/lib/mosquitto_password_file.so
plugin_opt_password_file /pw
plugin_load other /usr/lib/other.so
plugin_opt_colour red
listener 1883
plugin_use users
listener 1884
plugin_use other
""",
    )
    files = {each.listen[0]: each.auth.password_file for each in config.listeners}
    assert files == {"0.0.0.0:1883": "/pw", "0.0.0.0:1884": ""}
    assert config.store.url == "sqlite:/var/lib/mosquitto/flockmq.db"
    assert "# plugin_load other /usr/lib/other.so: no counterpart: nothing checks" in text
    config, text = imported(
        tmp_path, "plugin mosquitto_acl_file.so\nplugin_opt_acl_file /acl\nlistener 1\nlistener 2\n"
    )
    assert [each.auth.acl_file for each in config.listeners] == ["/acl", "/acl"] and "counterpart" not in text


@pytest.mark.parametrize(
    "line", ["listener here", "max_inflight_messages many", "connection a\nbridge_protocol_version 9"]
)
def test_lines_that_are_not_understood(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(ConfigError, match="is not understood"):
        translate(path)


def test_a_value_out_of_range_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text("\nmax_connections 9999999999\n")
    with pytest.raises(ConfigError, match=r"line 2: `max_connections 9999999999` .*expected a whole number from 0"):
        translate(path)


@pytest.mark.skipif(not EXAMPLE.exists(), reason="not installed: mosquitto")
def test_every_directive_of_mosquittos_own_example(tmp_path: Path) -> None:
    """Each line that it has as an example, one at a time: a key, or a comment that names it."""
    lines = re.findall(r"^#([a-z_]+(?: \S.*)?)$", EXAMPLE.read_text(), re.MULTILINE)
    assert len(lines) > 60
    for line in lines:
        name, _, value = line.partition(" ")
        if not value or name in ("listener", "connection", "address", "topic", "include_dir"):
            continue
        _, text = imported(tmp_path, f"{line}\n")
        assert text.count("\n") > 3 or name in ("protocol", "persistence", "log_type", "port"), line


# ---- nothing is weaker than it was ----


def test_a_word_after_a_value_changes_nothing(tmp_path: Path) -> None:
    """Mosquitto takes the first word of a truth value and of a number."""
    config, _ = imported(
        tmp_path,
        """\
persistence true # keep
per_listener_settings true # x
max_inflight_messages 7 # packets
listener 8883 # all
certfile /c.pem
keyfile /k.pem
cafile /ca.pem
require_certificate true # devices
allow_anonymous false # nobody
protocol mqtt # plain
""",
    )
    assert config.store.url.startswith("sqlite:") and config.limits.max_inflight == 7
    assert config.listen == ("mqtts://0.0.0.0:8883",)
    (listener,) = config.listeners
    assert listener.tls.client_certificate == "required"
    assert not listener.auth.allow_anonymous


@pytest.mark.parametrize(
    "line", ["require_certificate yes", "persistence TRUE", "allow_anonymous", "max_connections", "protocol mqttsn"]
)
def test_what_mosquitto_refuses_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"listener 1883\n{line}\n")
    with pytest.raises(ConfigError, match=f"line 2: `{line}` is not understood"):
        translate(path)


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        ("bind_address 127.0.0.1\nport 1884\n", "127.0.0.1:1884"),
        ("port 1884\nbind_address 127.0.0.1\n", "127.0.0.1:1884"),
        ("bind_address 127.0.0.1\n", "127.0.0.1:1883"),
        ("bind_address ::1\nport 1884\n", "[::1]:1884"),
        ("bind_address ::1\n", "[::1]:1883"),
        ("port 1884 # x\n", "0.0.0.0:1884"),
    ],
)
def test_the_default_listener_keeps_its_address(tmp_path: Path, lines: str, address: str) -> None:
    config, _ = imported(tmp_path, lines + "allow_anonymous true\n")
    assert config.listen == (address,)


BRIDGE_LINES = "connection up\naddress up.example\ntopic a/# out\nremote_username u\nremote_password p\n"


@pytest.mark.parametrize("line", ["bridge_tls_use_os_certs true", "bridge_tls_version tlsv1.3", "bridge_alpn mqtt"])
def test_a_bridge_with_tls_is_a_link_with_tls(tmp_path: Path, line: str) -> None:
    config, _ = imported(tmp_path, f"{BRIDGE_LINES}{line}\n")
    assert config.links[0].url == ("mqtts://up.example:1883",)


@pytest.mark.parametrize("line", ["bridge_insecure false", "bridge_tls_use_os_certs false"])
def test_a_bridge_without_tls(tmp_path: Path, line: str) -> None:
    config, _ = imported(tmp_path, f"{BRIDGE_LINES}{line}\n")
    assert config.links[0].url == ("mqtt://up.example:1883",)


@pytest.mark.parametrize("line", ["bridge_capath /certs", "bridge_psk 00ff", "bridge_identity me"])
def test_tls_of_a_bridge_that_no_link_can_do_stops_the_import(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"{BRIDGE_LINES}{line}\n")
    with pytest.raises(ConfigError, match=f"line 6: `{line}` can't be taken over: .* bridge_cafile"):
        translate(path)


def test_a_directory_of_certificates_for_clients_stops_the_import(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    lines = "listener 8883\ncertfile /c.pem\nkeyfile /k.pem\ncapath /cas\n"
    path.write_text(lines)
    assert "capath /cas: append the certificates" in translate(path)
    path.write_text(lines + "require_certificate true\n")
    with pytest.raises(ConfigError, match=r"line 4: `capath /cas` can't be taken over"):
        translate(path)
