"""`flockmq import`: a mosquitto.conf becomes a configuration that can be loaded, and no line is lost."""

import os
import re
from pathlib import Path

import pytest

from flockmq.broker.cli import main
from flockmq.broker.config.load import load
from flockmq.broker.config.mosquitto import translate
from flockmq.broker.config.mosquitto_directives import ALWAYS, BRIDGE, LISTENER, OPENS, TLS_BRIDGE
from flockmq.broker.config.schema import Config
from flockmq.broker.errors import ConfigError
from tests.harness.certificates import Authority
from tests.security.access_files import quick_hash

FILES = (
    *("acl_file", "password_file", "psk_file", "certfile", "keyfile", "cafile", "capath", "crlfile"),
    *("persistence_location", "pid_file"),
)
CERTIFICATE = "certfile /c.pem\nkeyfile /k.pem\n"
EXAMPLE = Path("/usr/share/doc/mosquitto/examples/mosquitto.conf")


def imported(tmp_path: Path, text: str, *accepted: str) -> tuple[Config, str]:
    """The configuration of a mosquitto.conf, and its text; without a rule every client may connect."""
    if not re.search("allow_anonymous|password_file|per_listener_settings", text):
        text += "allow_anonymous true\n"
    source, made = tmp_path / "mosquitto.conf", tmp_path / "flockmq.toml"
    source.write_text(text)
    made.write_text(translate(source, accepted).toml)
    return load({}, {}, made), made.read_text()


def test_an_empty_file_is_the_default_of_mosquitto(tmp_path: Path) -> None:
    config, text = imported(tmp_path, "# nothing\n")
    assert config.mqtt.long_client_ids and "# limits.max_packet_size is 2 MiB" in text
    assert config.listen == ("localhost:1883",) and config.store.url == "memory"


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
password_file /pw
listener 0 /run/m.sock
password_file /pw
""",
    )
    found = {listener.listen[0]: listener for listener in config.listeners}
    assert set(found) == {"127.0.0.1:1883", "mqtts://:8883", "ws://[::1]:9001", "unix:/run/m.sock"}
    secure = found["mqtts://:8883"]
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
        ((":1884",), "/pw"),
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
password_file /pw
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
    assert "proxy.trusted" in text and "# the maximum QoS, 1 for :1883, 2 for ws://:9001: " in text


def test_one_maximum_qos(tmp_path: Path) -> None:
    assert imported(tmp_path, "listener 1883\nmax_qos 1\n")[0].mqtt.maximum_qos == 1


def test_plugins_for_users_rules_and_the_store(tmp_path: Path) -> None:
    """The plugins that Mosquitto 2.1 has in place of its directives are keys, each at its listeners."""
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
        "plugin_load",
    )
    files = {each.listen[0]: each.auth.password_file for each in config.listeners}
    assert files == {":1883": "/pw", ":1884": ""}
    assert config.store.url == "sqlite:/var/lib/mosquitto/flockmq.db"
    assert ":5: `plugin_load other /usr/lib/other.so`: nothing would check" in text
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
    with pytest.raises(ConfigError, match=r"conf:2: `max_connections 9999999999` .*expected a whole number from 0"):
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
        before = "connection up\naddress up.example\ntopic x\n" if name in (*BRIDGE, *TLS_BRIDGE) else ""
        _, text = imported(tmp_path, f"{before}{line}\n")
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
password_file /pw
protocol mqtt # plain
""",
    )
    assert config.store.url.startswith("sqlite:") and config.limits.max_inflight == 7
    assert config.listen == ("mqtts://:8883",)
    (listener,) = config.listeners
    assert listener.tls.client_certificate == "required"
    assert not listener.auth.allow_anonymous


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "require_certificate yes",
            "can't be taken over: 'yes' is no truth value: Mosquitto takes true, false, 1 and 0",
        ),
        ("persistence TRUE", "can't be taken over: 'TRUE' is no truth value"),
        ("allow_anonymous TRUE", "can't be taken over: 'TRUE' is no truth value"),
        ("allow_anonymous", "can't be taken over: it has no value"),
        ("max_connections", "can't be taken over: it has no value"),
        ("protocol mqttsn", "is not understood"),
        ("socket_domain IPV6", "can't be taken over: Mosquitto takes ipv4 and ipv6 only"),
        ("per_listener_settings true", "can't be taken over: Mosquitto wants it before all settings of security"),
        ("address a.example", "can't be taken over: no `connection` stands before it"),
        ("topic x", "can't be taken over: no `connection` stands before it"),
        ("keepalive_interval 30", "can't be taken over: no `connection` stands before it"),
        ("connection", "can't be taken over: it has no value"),
        ("listener 70000", "can't be taken over: expected a port from 0 to 65535"),
        ("listener 0", "can't be taken over: expected an absolute path"),
        *((name, "can't be taken over: it has no value") for name in FILES),
    ],
)
def test_what_mosquitto_refuses_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"allow_anonymous true\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(f"mosquitto.conf:2: `{line}` {reason}")):
        translate(path)


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        ("bind_address 127.0.0.1\nport 1884\n", "127.0.0.1:1884"),
        ("port 1884\nbind_address 127.0.0.1\n", "127.0.0.1:1884"),
        ("bind_address 127.0.0.1\n", "127.0.0.1:1883"),
        ("bind_address ::1\nport 1884\n", "[::1]:1884"),
        ("bind_address ::1\n", "[::1]:1883"),
        ("port 1884 # x\n", ":1884"),
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


def test_a_directory_of_certificates_for_clients_stops_the_import(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    lines = "listener 8883\ncertfile /c.pem\nkeyfile /k.pem\ncapath /cas\nallow_anonymous true\n"
    path.write_text(lines)
    assert "capath /cas: append the certificates" in translate(path).toml
    path.write_text(lines + "require_certificate true\n")
    with pytest.raises(ConfigError, match=r"mosquitto.conf:4: `capath /cas` can't be taken over"):
        translate(path)


OPENING = [
    "psk_file /keys",
    "psk_hint x",
    "mount_point a/",
    "bind_interface eth0",
    "clientid_prefixes a-",
    "use_username_as_clientid true",
    "proxy_protocol_v2_require_tls true",
    "plugin /x.so",
    "global_plugin /mosquitto_dynamic_security.so",
    "plugin_load x /x.so",
    "auth_plugin /x.so",
    f"{CERTIFICATE}use_identity_as_username true",
    f"{CERTIFICATE}use_subject_as_username true",
    *(f"{BRIDGE_LINES}{line}" for line in ("bridge_capath /certs", "bridge_psk 00ff", "bridge_identity me")),
    f"{BRIDGE_LINES}bridge_cafile /ca\nbridge_require_ocsp true",
]


def test_each_loss_that_opens_something_is_tested() -> None:
    assert {lines.splitlines()[-1].split()[0] for lines in OPENING} == set(OPENS)


@pytest.mark.parametrize("lines", OPENING, ids=lambda lines: lines.splitlines()[-1])
def test_a_loss_that_opens_something_is_accepted_by_its_name_only(tmp_path: Path, lines: str) -> None:
    line = lines.splitlines()[-1]
    name, shown = line.split()[0], line.replace("00ff", "...")  # a secret
    text = f"listener 8883\nautosave_interval 1\n{lines}\nsys_interval 5\nallow_anonymous true\n"
    path = tmp_path / "mosquitto.conf"
    path.write_text(text)
    for accepted in ((), tuple(OPENS.keys() - {name})):
        with pytest.raises(ConfigError, match=re.escape(f"`{shown}`: {OPENS[name]}")) as caught:
            translate(path, accepted)
        assert caught.value.hint == f"change the file, or accept the loss: --accept {name}"
        if name not in LISTENER:
            assert f"{path}:{text.splitlines().index(line) + 1}: `" in caught.value.message
    config, made = imported(tmp_path, text, name)
    notes = [note for note in made.splitlines() if note.startswith("# ")]
    assert notes[1].startswith("# Accepted losses") and f"`{shown}`: " in notes[2] and "00ff" not in made
    assert all(each.startswith("mqtts://") for link in config.links for each in link.url)


def test_all_losses_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text("listener 1883\nmount_point a/\nmount_point b/\nbind_interface lo\n")
    with pytest.raises(ConfigError, match=r":2: .*:3: .*:4: ") as caught:
        translate(path)
    assert caught.value.hint.endswith(": --accept mount_point --accept bind_interface")


@pytest.mark.parametrize(
    "lines",
    [
        "use_username_as_clientid false",
        "proxy_protocol_v2_require_tls false",
        f"{BRIDGE_LINES}bridge_require_ocsp false",
        "use_identity_as_username true",
        f"{CERTIFICATE}use_identity_as_username false",
        f"{CERTIFICATE}cafile /ca\nrequire_certificate true\nuse_identity_as_username true",
        "auth_plugin_deny_special_chars true",
        "plugin_opt_x y",
        f"{BRIDGE_LINES}bridge_ciphers x",
    ],
)
def test_the_rest_opens_nothing(tmp_path: Path, lines: str) -> None:
    config, _ = imported(tmp_path, f"listener 8883\n{lines}\n")
    assert all(each.startswith("mqtt://") for link in config.links for each in link.url)


def test_ocsp_alone_is_no_tls_of_a_bridge(tmp_path: Path) -> None:
    config, _ = imported(tmp_path, f"{BRIDGE_LINES}bridge_require_ocsp true\n", "bridge_require_ocsp")
    assert config.links[0].url == ("mqtt://up.example:1883",)


# ---- as Mosquitto 2.0.11 reads it ----


@pytest.mark.parametrize(
    "line",
    [
        "bind_address 127.0.0.1 # lo",
        "bind_address [::1]",
        "listener 1884 [::1]",
        "listener\t1884",
        "\tlistener 1884",
        "listener 1884\t127.0.0.1",
        "allow_anonymous\ttrue",
        "allow_anonymous true\t# x",
        "max_connections\t5",
        f"{BRIDGE_LINES}topic b/#\tin",
        f"{BRIDGE_LINES}restart_timeout 10 5",
        f"{BRIDGE_LINES}restart_timeout 5 # x",
        "include_dir none",
    ],
    ids=lambda line: line.splitlines()[-1],
)
def test_lines_that_mosquitto_refuses(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path}:{line.count(chr(10)) + 1}: `")) as caught:
        translate(path)
    has_tab = "\t" in line and "true\t" not in line
    assert ("a tab is no separator" in str(caught.value)) == has_tab


def test_retry_is_the_second_number(tmp_path: Path) -> None:
    assert imported(tmp_path, f"{BRIDGE_LINES}restart_timeout 5 10 # x\n")[0].links[0].retry == 10
    assert imported(tmp_path, f"{BRIDGE_LINES}restart_timeout 7\n")[0].links[0].retry == 7


def test_marks_codes_and_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_bytes(
        b"\xef\xbb\xbf# M\xfcller\r\nlistener 1884\r\nallow_anonymous true\r\n  # \xe9\r\n\r\nmax_keepalive 7\r\n"
    )
    assert 'listen = [":1884"]' in translate(path).toml and "max_keep_alive" in translate(path).toml
    path.write_bytes(b"listener 1884\nacl_file /M\xfcller\n")
    with pytest.raises(ConfigError, match=r":2: `acl_file /M.ller` can't be taken over: it is not UTF-8"):
        translate(path)


def test_a_fault_in_an_included_file_has_its_place(tmp_path: Path) -> None:
    more = tmp_path / "conf.d"
    more.mkdir()
    path = tmp_path / "mosquitto.conf"
    path.write_text("allow_anonymous true\nlistener 1883\ninclude_dir conf.d\n")
    (more / "a.conf").write_text("# x\nmax_connections many\n")
    with pytest.raises(ConfigError, match=f"^{more}/a.conf:2: `max_connections many` is not understood"):
        translate(path)
    (more / "a.conf").write_text("psk_file /k\n")
    with pytest.raises(ConfigError, match=f"{more}/a.conf:1: `psk_file /k`"):
        translate(path)
    (more / "a.conf").write_text("include_dir /none\nmax_keepalive 7\n")
    text = translate(path).toml
    assert "max_keep_alive" in text and "# include_dir /none: without effect" in text


def test_include_dir_takes_other_regular_files_only(tmp_path: Path) -> None:
    path, more = tmp_path / "mosquitto.conf", tmp_path / "conf.d"
    path.write_text("include_dir .\n")
    with pytest.raises(ConfigError, match=r":1: `include_dir \.` .*mosquitto.conf includes itself"):
        translate(path)
    path.write_text("include_dir conf.d\n")
    more.mkdir()
    os.mkfifo(more / "a.conf")
    with pytest.raises(ConfigError, match=r":1: .*a.conf is no regular file"):
        translate(path)


# ---- the listeners, and the clients that may connect, as with Mosquitto 2.0.11 ----

PER = "per_listener_settings true\n"
OPEN = "allow_anonymous true\n"


def found(tmp_path: Path, text: str) -> dict[str, tuple[bool, str]]:
    """Of each address, whether anonymous clients are accepted, and the password file."""
    path = tmp_path / "mosquitto.conf"
    path.write_text(text)
    made = tmp_path / "flockmq.toml"
    made.write_text(translate(path).toml)
    listeners = load({}, {}, made).listeners
    return {each.listen[0]: (each.auth.allow_anonymous, each.auth.password_file) for each in listeners}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"{PER}{OPEN}listener 2201\npassword_file /a\nlistener 2202\npassword_file /b\n",
            {":2201": (False, "/a"), ":2202": (False, "/b")},
        ),
        (f"{PER}password_file /a\nlistener 2201\n{OPEN}listener 2202\n", {":1883": (False, "/a"), ":2201": (True, "")}),
        (f"{PER}{OPEN}port 1884\nlistener 2201\npassword_file /a\n", {":1884": (True, ""), ":2201": (False, "/a")}),
        (f"{PER}listener 2201\npassword_file /a\nport 1884\n{OPEN}", {":2201": (True, "/a")}),
        (
            f"{PER}{OPEN}acl_file /acl\nlistener 2201 127.0.0.1\nlistener 2202 127.0.0.1\n{OPEN}",
            {"127.0.0.1:2202": (True, "")},
        ),
        (f"{OPEN}listener 2201\nlistener 2202\npassword_file /a\n", {":2201": (True, "/a"), ":2202": (True, "/a")}),
        (f"max_connections 5\n{OPEN}listener 2201\n", {":1883": (True, ""), ":2201": (True, "")}),
        (f"max_connections -1\nrequire_certificate false\n{OPEN}listener 2201\n", {":2201": (True, "")}),
        (f"bind_address 127.0.0.1\n{OPEN}listener 2201\n", {"127.0.0.1:1883": (True, ""), ":2201": (True, "")}),
        (f"socket_domain ipv6\n{OPEN}listener 2201\n", {"[::]:1883": (True, ""), ":2201": (True, "")}),
        ("max_connections 5\n", {"localhost:1883": (False, "")}),
    ],
)
def test_the_default_listener_is_a_listener_of_its_own(
    tmp_path: Path, text: str, expected: dict[str, tuple[bool, str]]
) -> None:
    assert found(tmp_path, text) == expected


def test_what_precedes_the_first_listener_is_of_the_default_listener(tmp_path: Path) -> None:
    config, _ = imported(tmp_path, "max_connections 5\nlistener 2201\n")
    limits = {each.listen[0]: each.quotas.max_connections for each in config.listeners}
    assert limits == {":1883": 5, ":2201": 0}


def test_settings_of_a_default_listener_that_is_not_opened_are_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"{PER}{OPEN}listener 2201\npassword_file /a\n")
    assert translate(path).warnings == [
        f"{path}:2: `allow_anonymous true` has no effect: it stands before the first `listener`, so it is about the "
        "default listener, which Mosquitto does not open"
    ]


@pytest.mark.parametrize(
    ("lines", "listener", "address"),
    [
        ("socket_domain ipv6 # six\n", "listener 2201", "[::]:2201"),
        ("socket_domain ipv4\n", "listener 2201", "0.0.0.0:2201"),
        ("socket_domain ipv6\nsocket_domain ipv4\n", "listener 2201", "0.0.0.0:2201"),
        ("socket_domain ipv6\n", "listener 2201 localhost", "[::1]:2201"),
        ("socket_domain ipv4\n", "listener 2201 127.0.0.2", "127.0.0.2:2201"),
        ("socket_domain ipv6\n", "port 2201", "[::]:2201"),
    ],
)
def test_a_listener_keeps_its_family(tmp_path: Path, lines: str, listener: str, address: str) -> None:
    config, _ = imported(tmp_path, f"{listener}\n{lines}")
    assert config.listen == (address,)


def test_a_host_of_another_family_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    for host in ("127.0.0.1", "a.example"):
        path.write_text(f"allow_anonymous true\nlistener 2201 {host}\nsocket_domain ipv6\n")
        with pytest.raises(ConfigError, match=f"conf:2: `socket_domain ipv6` can't be taken over with the host {host}"):
            translate(path)


@pytest.mark.parametrize(("first", "second"), [("2201", "2201 127.0.0.1"), ("2201 ::1", "2201"), ("2201", "2201")])
def test_two_listeners_at_one_address(tmp_path: Path, first: str, second: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"allow_anonymous true\nlistener {first}\nlistener {second}\n")
    with pytest.raises(ConfigError, match=rf"conf:3: \S*:2201 is taken by \S*:2201 of {path}:2"):
        translate(path)


@pytest.mark.parametrize("text", ["listener 2201\nallow_anonymous false\n", "listener 2201 127.0.0.1\n", "port 2201\n"])
def test_a_file_with_which_nobody_could_connect(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=f"^nobody could connect: {path}:1: .*:2201: Mosquitto refuses every"
    ) as caught:
        translate(path)
    assert "`allow_anonymous true`" in caught.value.hint


def test_a_closed_listener_does_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"{PER}listener 2201\nlistener 2202 127.0.0.1\nallow_anonymous false\nlistener 2203\n{OPEN}")
    said = translate(path).warnings
    closed = "Mosquitto refuses every client there, since it has neither `allow_anonymous true` nor a password_file"
    assert said == [
        f"{path}:2: :2201 is left out: {closed}",
        f"{path}:3: 127.0.0.1:2202 is left out: {closed}",
    ]
    assert found(tmp_path, path.read_text()) == {":2203": (True, "")}


def test_a_default_listener_without_a_word_about_anonymous_clients(tmp_path: Path) -> None:
    """Mosquitto accepts them with `per_listener_settings`, against its manual."""
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"{PER}port 1884\npassword_file /a\n")
    (said,) = translate(path).warnings
    assert said.startswith(f"{path}:2: :1884: it has no allow_anonymous line: Mosquitto 2.0 accepts anonymous clients")
    path.write_text(f"{PER}port 1884\n")
    with pytest.raises(ConfigError, match=r"nobody could connect: .*:2: :1884: it has no allow_anonymous line"):
        translate(path)


def test_unknown_directives_are_warnings(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"listener 2201\n{OPEN}pasword_file /a\nlog_facility 5\nauth_opt_x y\nciphers x\nplugin_x 1\n")
    assert translate(path).warnings == [
        f"{path}:3: `pasword_file /a` is left out: Mosquitto has no directive 'pasword_file'",
        f"{path}:7: `plugin_x 1` is left out: Mosquitto has no directive 'plugin_x'",
    ]


def test_an_order_that_mosquitto_takes(tmp_path: Path) -> None:
    assert found(tmp_path, f"port 2201\n{PER}{OPEN}") == {":2201": (True, "")}
    assert found(tmp_path, "password_file /a\nper_listener_settings false\nport 2201\n") == {":2201": (False, "/a")}


# ---- bridges, as Mosquitto 2.0.11 reads them ----

UP = "connection up # the cloud\naddress up.example # there\n"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("# out 1 # x", "# out 1"),
        ("a out # x", "a out 0"),
        ("a in 1 l/ # x", "a in 1 l/"),
        ("a in 1 l/ r/ more", "a in 1 l/ r/"),
        ("a in 1 #l r", "a in 1"),
        ("a BOTH", "a both 0"),
        ("a in x", "a in 0"),
        ("a in 1x", "a in 1"),
        ("  a   in   02", "a in 2"),
        ('"" in 0 l r', '"" in 0 l r'),
        ('a in 0 "" r/', 'a in 0 "" r/'),
        ("#", "# out 0"),
    ],
)
def test_topics_of_bridges(tmp_path: Path, line: str, rule: str) -> None:
    config, _ = imported(tmp_path, f"{UP}topic {line}\n")
    assert (config.links[0].name, config.links[0].url) == ("up", ("mqtt://up.example:1883",))
    assert [str(each) for each in config.links[0].topics] == [rule]


def test_addresses_of_bridges(tmp_path: Path) -> None:
    config, _ = imported(tmp_path, "connection a\naddress [::1]:1884 b.example fe80::1:1885 # c.example\ntopic x\n")
    assert config.links[0].url == ("mqtt://[::1]:1884", "mqtt://b.example:1883", "mqtt://[fe80::1]:1885")


def test_a_listener_does_not_end_a_bridge(tmp_path: Path) -> None:
    config, _ = imported(tmp_path, f"{UP}topic x\nlistener 2201\ntopic y\n")
    assert [str(each) for each in config.links[0].topics] == ["x out 0", "y out 0"]


@pytest.mark.parametrize(
    ("line", "place", "reason"),
    [
        ("topic a # x", 3, "expected rules of the form"),
        ("topic a in 3", 3, "expected rules of the form"),
        ("topic a sideways", 3, "expected rules of the form"),
        ("topic a in 0 l/# r", 3, "expected topic filters"),
        ("topic a\naddress b.example", 4, "the connection has addresses already"),
        ("topic a\nconnection up # x", 4, "there is a connection up already"),
        ("topic a\nconnection my.cloud", 4, "a link has a name of at most 32 letters"),
        ("topic a\nkeepalive_interval 99999", 4, "expected a whole number from 5 to 65535"),
        ("topic a\nbridge_protocol_version mqttv50 # x", 4, ""),
        ("topic a\nconnection b\ntopic x", 4, "connection b has no address"),
        ("", 1, "connection up has no topic"),
        ("topic a\nconnection b\naddress ::1", 5, "expected an IPv6 address in brackets"),
        ("topic a\nconnection b\naddress h:0", 5, "expected a port from 1 to 65535"),
        ("topic a\nbridge_certfile /c", 1, "connection up: expected certificate and key"),
    ],
)
def test_faults_of_bridges_have_their_place(tmp_path: Path, line: str, place: int, reason: str) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"{UP}{line}\n")
    with pytest.raises(ConfigError, match=f"^{path}:{place}: .*{reason}"):
        translate(path)


def test_a_lost_name_of_a_certificate_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text(f"listener 8883\n{CERTIFICATE}use_identity_as_username true\n")
    with pytest.raises(ConfigError, match=f"{path}:4: `use_identity_as_username true`: "):
        translate(path)


# ---- the command ----


def test_the_command_looks_at_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = Authority(tmp_path / "ca").server(days=30)
    for name, text in (
        ("passwords", f"ada:{quick_hash('x')}\nbob:cut\n"),
        ("acl", "topic read a\nuser ada\ntopic b\n"),
        ("keys", "one:00ff\n"),
        ("other.key", "nonsense"),
    ):
        (tmp_path / name).write_text(text)
    path = tmp_path / "mosquitto.conf"
    lines = f"password_file {tmp_path}/passwords\nacl_file {tmp_path}/acl\npsk_file {tmp_path}/keys\nlistener 8883\n"
    lines += f"cafile {pair.cert}\nrequire_certificate true\ncertfile {pair.cert}\nkeyfile {pair.key}\n"
    lines += f"listener 8884\ncertfile {pair.cert}\nkeyfile {tmp_path}/other.key\n"
    path.write_text(f"{lines}listener 8885\ncertfile /none\nkeyfile {pair.key}\n")
    assert main(["import", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == "" and f"{path}:3: `psk_file " in output.err
    assert main(["import", str(path), "--accept", "psk_file"]) == 0
    output = capsys.readouterr()
    said = output.err.splitlines()
    assert said[0].startswith(f"flockmq: warning: lost: {path}:3: `psk_file ")
    for line in (
        f"flockmq: {tmp_path}/keys: 1 pre-shared key",
        f"flockmq: {tmp_path}/passwords: 1 user",
        f"flockmq: {tmp_path}/acl: 2 rules",
        f"flockmq: {pair.cert}: 1 certificate",
        f"flockmq: {pair.cert}: a certificate; {pair.key} has its key",
        f"flockmq: warning: /none can't be used as the certificate of {pair.key}: No such file or directory",
    ):
        assert line in said
    assert any(line.startswith(f"flockmq: warning: {tmp_path}/passwords:2: user 'bob' is not served") for line in said)
    wrong = f"flockmq: warning: {pair.cert} can't be used as the certificate of {tmp_path}/other.key: "
    assert any(line.startswith(wrong) for line in said)
    path.write_text("listener 1883\nallow_anonymous true\nallow_anonimous false\n")
    assert main(["import", str(path)]) == 0
    assert f"flockmq: warning: {path}:3: `allow_anonimous false` is left out: " in capsys.readouterr().err
    assert main(["import", str(path), "--accept", "user"]) == 2
    assert "--accept user: its loss opens nothing" in capsys.readouterr().err
