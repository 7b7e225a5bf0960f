"""The configuration: derivation from fields, precedence, and one clear line for every mistake."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from flockmq.broker.config.keys import KEYS, SECTIONS, VARIABLES
from flockmq.broker.config.kinds import split_address
from flockmq.broker.config.load import load, trace
from flockmq.broker.config.reload import diff, follow
from flockmq.broker.config.sample import sample
from flockmq.broker.config.schema import Config
from flockmq.broker.errors import ConfigError

MIB = 1 << 20


def write(directory: Path, text: str) -> Path:
    path = directory / "flockmq.toml"
    path.write_text(text, "utf-8")
    return path


def test_defaults_are_the_default_config() -> None:
    assert load(env={}) == Config()
    assert set(trace(env={}).origins.values()) == {"default"}


def test_defaults_pass_their_own_check() -> None:
    for key in KEYS.values():
        assert key.kind.read(key.field.default, is_text=False) == key.field.default, key.name


def test_sample_sets_every_key_to_its_default(tmp_path: Path) -> None:
    path = write(tmp_path, sample())
    loaded = trace(env={}, file=path)
    assert loaded.config == Config()
    tables = {name for name, key in KEYS.items() if key.kind.is_table}  # these are comments: see `Kind.is_table`
    assert {name for name, origin in loaded.origins.items() if not origin.startswith(f"{path}:")} == tables


def test_sample_is_the_committed_file() -> None:
    assert Path("deploy/flockmq.toml").read_text("utf-8") == sample(), "flockmq sample-config > deploy/flockmq.toml"


def test_every_key_has_help_and_a_variable() -> None:
    assert len(VARIABLES) == len(KEYS)
    for key in KEYS.values():
        assert key.help.endswith("."), key.name
    flags = [key.flag for key in KEYS.values() if key.flag]
    assert sorted(flags) == [
        "--acl-file",
        "--analytics",
        "--hooks",
        "--http",
        "--listen",
        "--log-format",
        "--log-level",
        "--node-name",
        "--password-file",
        "--proxy-listen",
        "--redis",
        "--store",
        "--sync",
        "--workers",
    ]


def test_precedence(tmp_path: Path) -> None:
    path = write(tmp_path, "[limits]\nmax_inflight = 1\nmax_topic_levels = 1\nmax_awaiting_release = 1\n")
    env = {"FLOCKMQ_LIMITS_MAX_INFLIGHT": "2", "FLOCKMQ_LIMITS_MAX_TOPIC_LEVELS": "2"}
    loaded = trace({"limits.max_inflight": "3"}, env, path)
    limits = loaded.config.limits
    assert (limits.max_inflight, limits.max_topic_levels, limits.max_awaiting_release) == (3, 2, 1)
    assert loaded.origins["limits.max_inflight"] == "command line"
    assert loaded.origins["limits.max_topic_levels"] == "FLOCKMQ_LIMITS_MAX_TOPIC_LEVELS"
    assert loaded.origins["limits.max_awaiting_release"] == f"{path}:4"
    assert loaded.origins["store.url"] == "default"


def test_environment_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'store.url = "memory"\n')
    assert load(env={"FLOCKMQ_CONFIG": str(path)}).store.url == "memory"
    other = tmp_path / "other.toml"
    other.write_text('store = { url = "sqlite:x" }\n', "utf-8")
    assert load(env={"FLOCKMQ_CONFIG": str(path)}, file=other).store.url == "sqlite:x"


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOCKMQ_MQTT_LONG_CLIENT_IDS", "yes")
    assert load().mqtt.long_client_ids is True


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("limits.max_packet_size", "2 MiB", 2 * MIB),
        ("limits.max_packet_size", "512KiB", 512 * 1024),
        ("limits.max_packet_size", "1.5 kb", 1500),
        ("limits.max_packet_size", "4096", 4096),
        ("limits.max_packet_size", "268435460", 268435460),
        ("limits.connect_timeout", "10s", 10.0),
        ("limits.connect_timeout", "1.5m", 90.0),
        ("limits.connect_timeout", "250 ms", 0.25),
        ("limits.connect_timeout", "3", 3.0),
        ("mqtt.retry_interval", "0", 0.0),
        ("mqtt.long_client_ids", "On", True),
        ("mqtt.long_client_ids", "0", False),
        ("limits.max_inflight", "65535", 65535),
        ("listen", "127.0.0.1:0", ("127.0.0.1:0",)),
        ("listen", "127.0.0.1:1883, [::1]:1883", ("127.0.0.1:1883", "[::1]:1883")),
        ("listen", ["a:1", "b:1"], ("a:1", "b:1")),
        ("store.url", "sqlite:/var/lib/flockmq/a b.db", "sqlite:/var/lib/flockmq/a b.db"),
        ("store.sync", "normal", "normal"),
        ("cluster.redis", "", ""),
        ("cluster.redis", "redis://localhost", "redis://localhost"),
        ("cluster.node_name", "rack-1.node_2", "rack-1.node_2"),
        ("cluster.workers", "1", 1),
        ("cluster.prefix", "fleet/a:", "fleet/a:"),
        ("cluster.lease", "0.5", 0.5),
        ("mqtt.session_expiry", "14d", 14 * 86400.0),
        ("http.listen", "", ()),
        ("proxy.trusted", "10.0.0.0/8, ::1/128,192.0.2.7", ("10.0.0.0/8", "::1/128", "192.0.2.7")),
        ("proxy.trusted", "", ()),
        ("http.listen", "0.0.0.0:8080,[::]:8080", ("0.0.0.0:8080", "[::]:8080")),
        ("listen_shared", "yes", True),
    ],
)
def test_text_values(key: str, text: object, value: object) -> None:
    read = KEYS[key].of(load({key: text}, {}))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("toml", "key", "value"),
    [
        ("[limits]\nmax_packet_size = 4096", "limits.max_packet_size", 4096),
        ("[limits]\nmax_packet_size = '1 MiB'", "limits.max_packet_size", MIB),
        ("[limits]\nconnect_timeout = 2", "limits.connect_timeout", 2.0),
        ("[limits]\nconnect_timeout = 0.5", "limits.connect_timeout", 0.5),
        ("listen = '0.0.0.0:1883'", "listen", ("0.0.0.0:1883",)),
        ("listen = ['a:1', 'b:2']", "listen", ("a:1", "b:2")),
    ],
)
def test_toml_values(tmp_path: Path, toml: str, key: str, value: object) -> None:
    assert KEYS[key].of(load(env={}, file=write(tmp_path, toml))) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("limits.max_packet_size", "2 XiB"),
        ("limits.max_packet_size", "-1"),
        ("limits.max_packet_size", "268435461"),
        ("limits.max_packet_size", "127"),
        ("limits.max_packet_size", "1.0005 kb"),
        ("limits.max_packet_size", ""),
        ("limits.max_packet_size", "9" * 400 + ".0"),
        ("limits.max_packet_size", "9" * 5000),
        ("limits.max_inflight", "0"),
        ("limits.max_inflight", "65536"),
        ("limits.max_inflight", "1.0"),
        ("limits.max_inflight", "ten"),
        ("limits.max_inflight", "9" * 5000),
        ("limits.connect_timeout", "nan"),
        ("limits.connect_timeout", "inf"),
        ("limits.connect_timeout", "10 fortnights"),
        ("limits.connect_timeout", "0"),
        ("limits.max_keep_alive", "65536"),
        ("mqtt.long_client_ids", "perhaps"),
        ("store.url", "redis://x"),
        ("store.url", "sqlite:"),
        ("store.sync", "FULL"),
        ("log.level", "trace"),
        ("listen", "1883"),
        ("listen", "::1883"),
        ("listen", "::1:1883"),
        ("listen", "host:65536"),
        ("listen", "host:"),
        ("listen", "host:²"),
        ("listen", "a b:1"),
        ("listen", ""),
        ("listen", "a:1,a:1"),
        ("cluster.redis", "redis:6379"),
        ("cluster.node_name", "a b"),
        ("cluster.node_name", "naïve"),
        ("cluster.node_name", "n" * 65),
        ("cluster.workers", "0"),
        ("cluster.workers", "Auto"),
        ("cluster.prefix", ""),
        ("cluster.prefix", "{mq}"),
        ("cluster.lease", "0.4"),
        ("http.listen", "8080"),
        ("proxy.trusted", "10.0.0.1/8"),
        ("proxy.trusted", "all"),
        ("otel.endpoint", "collector:4318"),
    ],
)
def test_bad_text_is_one_clear_line(key: str, text: str) -> None:
    for overrides, env, where in (
        ({key: text}, {}, "command line"),
        ({}, {KEYS[key].variable: text}, KEYS[key].variable),
    ):
        with pytest.raises(ConfigError) as caught:
            load(overrides, env)
        line = str(caught.value)
        assert key in line
        assert repr(text)[:60] in line
        assert where in line
        assert "expected" in line
        assert "\n" not in line
        assert len(line) < 300


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[limits]\nmax_inflight = '100'", ["limits.max_inflight", "'100'", ":2", "whole number from 1 to 65535"]),
        ("[limits]\n\nmax_inflight = true", ["True", ":3"]),
        ("[limits]\nmax_inflight = 1.5", ["1.5", ":2"]),
        ("[limits]\nconnect_timeout = nan", ["nan", ":2"]),
        ("[limits]\nconnect_timeout = true", ["True", ":2"]),
        ("[mqtt]\nlong_client_ids = 1", ["true or false", ":2"]),
        ("[mqtt]\nlong_client_ids = 'yes'", ["true or false", ":2"]),
        ("[store]\nsync = 1", ['"full" or "normal"', ":2"]),
        ("[store]\nurl = ['memory']", ["store.url", ":2"]),
        ("listen = []", ["listen", ":1"]),
        ("listen = [1883]", ["HOST:PORT", ":1"]),
        ("\n[limit]\nmax_inflight = 1", ["unknown key limit ", ":2"]),
        ("[limits]\nmax_inflght = 1", ["unknown key limits.max_inflght", ":2", "did you mean limits.max_inflight?"]),
        ("[mqtt]\nmax_inflight = 1", ["unknown key mqtt.max_inflight", ":2", "did you mean limits.max_inflight?"]),
        ("max_inflight = 1", ["unknown key max_inflight", ":1", "did you mean limits.max_inflight?"]),
        ("store = 'memory'", ["store (", ":1", "expected a section, [store]"]),
        ("[limts]\nmax_inflight = 1", ["unknown key limts ", ":1", "did you mean [limits]?"]),
        ("[broker]\nlisten = ['a:1']", ["unknown key broker", "sample-config"]),
        ("[tls]\nca_file = 'a'", ["unknown key tls.ca_file", "sample-config"]),
        ("xyzzy = 1", ["unknown key xyzzy", "sample-config"]),
        ("[limits\nx = 1", ["not valid TOML", "line 1"]),
        ("a = 1\na = 2", ["not valid TOML"]),
    ],
)
def test_bad_file_is_one_clear_line(tmp_path: Path, toml: str, words: list[str]) -> None:
    path = write(tmp_path, toml)
    with pytest.raises(ConfigError) as caught:
        load(env={}, file=path)
    line = str(caught.value)
    assert str(path) in line
    for word in words:
        assert word in line
    assert "\n" not in line


def test_missing_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        load(env={}, file=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"# one\na = '\xff'")
    with pytest.raises(ConfigError, match=r"bad.toml:2 is not UTF-8"):
        load(env={}, file=tmp_path / "bad.toml")


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"did you mean limits\.max_queued_bytes"):
        load({"limits.max_queue_bytes": "1"}, {})
    with pytest.raises(ConfigError, match="did you mean FLOCKMQ_STORE_URL"):
        load(env={"FLOCKMQ_STORE_URI": "memory"})


def test_foreign_variables_are_left_alone() -> None:
    names = (
        "FLOCKMQ_SERVICE_HOST FLOCKMQ_SERVICE_PORT FLOCKMQ_SERVICE_PORT_MQTT FLOCKMQ_PORT FLOCKMQ_PORT_1883_TCP "
        "FLOCKMQ_PORT_1883_TCP_ADDR FLOCKMQ_MQTT_SERVICE_HOST FLOCKMQ_MQTT_PORT_1883_TCP_PROTO FLOCKMQ_SANITIZE"
    )
    assert load(env=dict.fromkeys(names.split(), "tcp://10.0.0.1:1883")) == Config()


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:1883", ("127.0.0.1", 1883)),
        ("[::1]:0", ("::1", 0)),
        ("broker.example:65535", ("broker.example", 65535)),
    ],
)
def test_split_address(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


def test_diff_sorts_what_a_running_node_can_follow() -> None:
    old = Config()
    new = load({"log.level": "debug", "limits.max_inflight": "7", "store.url": "memory", "listen": "a:1"}, {})
    changes = diff(old, new)
    assert [str(change) for change in changes.reloadable] == [
        'log.level: "info" -> "debug"',
        "limits.max_inflight: 100 -> 7",
    ]
    assert [change.key.name for change in changes.needs_restart] == ["listen", "store.url"]
    assert diff(old, old) == ((), ())
    running = follow(old, changes)
    assert (running.log.level, running.limits.max_inflight) == ("debug", 7)
    assert (running.store, running.listen) == (old.store, old.listen)


def test_what_is_opened_at_start_is_not_reloadable() -> None:
    fixed = {key.name for key in KEYS.values() if not key.reloadable}
    parts = (
        "cluster.",
        "proxy.",
        "otel.",
        "hooks.",
        "http.listen",
        "http.tokens",
        "http.trusted",
        "http.public_url",
        "http.first_password",
        "oidc.",
        "audit.syslog",
        "traces.endpoint",
    )
    sections = {name for name in KEYS if name.startswith(parts)}
    top = {"listen", "proxied", "socket_mode", "listen_shared", "store.url", "store.sync", "log.format"}
    top |= {"limits.max_connections"}
    assert fixed == top | sections


def test_one_worker_for_each_core(tmp_path: Path) -> None:
    """`auto` is valid as text and in a file; cores that this process may not use don't count."""
    own = os.sched_getaffinity(0)
    path = write(tmp_path, '[cluster]\nworkers = "auto"\n')
    assert load(env={}, file=path).cluster.workers == len(own)
    try:
        os.sched_setaffinity(0, {min(own)})
        assert load({"cluster.workers": "auto"}, {}).cluster.workers == 1
    finally:
        os.sched_setaffinity(0, own)


def test_workers_that_start_a_redis_have_no_replicas() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.replicas = 1 .* no replicas.*--redis"):
        load({"cluster.workers": "2", "cluster.replicas": "1"}, {})
    more = {"cluster.workers": "2", "cluster.replicas": "1", "cluster.redis": "redis://localhost"}
    assert load(more, {}).cluster.replicas == 1


def test_the_log_of_messages_needs_a_place() -> None:
    topics = {"analytics.topics": "#"}
    assert load(topics, {}).analytics.topics == ("#",)
    assert load({**topics, "store.url": "memory", "cluster.redis": "redis://localhost"}, {}).analytics.topics == ("#",)
    with pytest.raises(ConfigError, match="store memory has none"):
        load({**topics, "store.url": "memory"}, {})
    with pytest.raises(ConfigError, match="a Redis of yours"):
        load({**topics, "cluster.workers": "2"}, {})


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:sesame@localhost:0",
        "redis:/user:sesame@localhost",
        "redis//:a/sesame@localhost",
        "redis://:a?sesame=1@localhost",
        "redis://:a:sesame@localhost:x",
        "redis://:a@sesame@local host",
        "redis+sentinel://h/m?sentinel_password=sesame&x=1",
    ],
)
def test_a_refused_url_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        load({"cluster.redis": url}, {})
    assert "sesame" not in str(caught.value)


def test_a_changed_url_shows_no_password() -> None:
    new = load({"cluster.redis": "redis://user:sesame@localhost"}, {})
    assert [str(change) for change in diff(Config(), new).needs_restart] == [
        'cluster.redis: "" -> "redis://user:***@localhost"'
    ]


def test_sections_are_frozen() -> None:
    for section in fields(Config):
        value = getattr(Config(), section.name)
        if section.name in SECTIONS:
            with pytest.raises(AttributeError):
                setattr(value, fields(value)[0].name, None)


def test_a_list_as_in_toml_is_told_how_it_is_written_as_text() -> None:
    for values, env in (
        ({"http.trusted_proxies": '["127.0.0.1", "::1"]'}, {}),
        ({}, {"FLOCKMQ_HTTP_TRUSTED_PROXIES": '["127.0.0.1", "::1"]'}),
    ):
        with pytest.raises(ConfigError, match=r"http\.trusted_proxies = .* expected networks") as caught:
            load(values, env)
        assert caught.value.hint.endswith(
            "commas separate the elements of a list, without brackets and quotes: http.trusted_proxies=127.0.0.1,::1"
        )
    with pytest.raises(ConfigError) as caught:
        load({"http.trusted_proxies": "[x"}, {})
    assert not caught.value.hint
