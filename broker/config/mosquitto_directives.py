"""The directives of a mosquitto.conf, as rows: of a listener, of the whole broker, and of a bridge (`connection`).

A row has the key of FlockMQ, and makes its value of the text. Other tables name the directives without a counterpart,
by the effect of their loss, and directives that have their own effect in Mosquitto.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError
from .link import LEVELS
from .listen_url import LOOPBACK

VERSIONS = {"mqttv31": "3.1", "mqttv311": "3.1.1", "mqttv50": "5"}
SECONDS = {"h": 3600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}  # of persistent_client_expiration
LOCAL = "localhost"  # where a configuration without listeners listens
PORT = "1883"
FAMILIES = {"ipv4": ("0.0.0.0", LOOPBACK[0]), "ipv6": ("::", LOOPBACK[1])}  # of socket_domain: everywhere, and here
STORE_FILE = "flockmq.db"

FLAGS = {"true": True, "1": True, "false": False, "0": False}

Convert = Callable[[str], object]


class Row(NamedTuple):
    """The counterpart of a directive."""

    key: str  # of FlockMQ
    convert: Convert


def word(text: str) -> str:
    """The first word. Mosquitto ignores what follows a truth value or a number; a text goes to the end of the line."""
    return text.split(" ")[0]


def flag(text: str) -> bool:
    """A truth value. Raises ConfigError."""
    found = word(text)
    if found not in FLAGS:
        raise ConfigError(f"{found!r} is no truth value: Mosquitto takes true, false, 1 and 0, in small letters")
    return FLAGS[found]


def number(text: str) -> int:
    """A number. Raises ValueError."""
    return int(word(text))


def _seconds(text: str) -> str:
    return f"{number(text)} s"


def _expiration(text: str) -> str:
    found = word(text)
    return f"{int(found[:-1]) * SECONDS[found[-1]]} s"


def _retry(text: str) -> int:
    """Of SECONDS, or BASE CAP."""
    words = text.split()[:2]
    if int(words[-1]) < int(words[0]):
        raise ConfigError("the second number is less than the first one, which Mosquitto refuses")
    return min(3600, max(1, int(words[-1])))


def _message_limit(text: str) -> int:
    return number(text) + 65_600 if number(text) else 268_435_460


# Of a listener; the value of `tls.*` and so on in its table.
LISTENER: dict[str, Row] = {
    "max_connections": Row("quotas.max_connections", lambda text: max(0, number(text))),
    "certfile": Row("tls.certificate", str),
    "keyfile": Row("tls.key", str),
    "cafile": Row("tls.client_ca", str),
    "crlfile": Row("tls.client_crl", str),
    "require_certificate": Row("tls.client_certificate", lambda text: "required" if flag(text) else "none"),
    "use_identity_as_username": Row("tls.username_from", lambda text: "cn" if flag(text) else "none"),
    "use_subject_as_username": Row("tls.username_from", lambda text: "subject" if flag(text) else "none"),
    "tls_version": Row("tls.min_version", lambda text: "1.3" if word(text) == "tlsv1.3" else "1.2"),
    "allow_anonymous": Row("auth.allow_anonymous", flag),
    "password_file": Row("auth.password_file", str),
    "acl_file": Row("auth.acl_file", str),
    "listener_allow_anonymous": Row("auth.allow_anonymous", flag),
    "enable_proxy_protocol": Row("proxied", lambda text: number(text) > 0),
    "websockets_origin": Row("websocket.origins", str.split),
    "maximum_qos": Row("mqtt.maximum_qos", number),
    "max_qos": Row("mqtt.maximum_qos", number),
}
PLUGIN_OPTIONS = {  # of the plugins that Mosquitto 2.1 has in place of built-in directives
    "plugin_opt_password_file": Row("auth.password_file", str),
    "plugin_opt_acl_file": Row("auth.acl_file", str),
    "plugin_opt_db_file": Row("store.url", lambda text: f"sqlite:{Path(text).parent / STORE_FILE}"),
}
PLUGINS = ("mosquitto_password_file", "mosquitto_acl_file", "mosquitto_persist_sqlite")
BROKER: dict[str, Row] = {
    "max_inflight_messages": Row("limits.max_inflight", lambda text: min(65_535, number(text) or 65_535)),
    "max_queued_messages": Row("limits.max_queued_messages", lambda text: number(text) or 2**31 - 1),
    "max_queued_bytes": Row("limits.max_queued_bytes", lambda text: max(1024, number(text) or 1 << 40)),
    "max_packet_size": Row("limits.max_packet_size", lambda text: number(text) or 268_435_460),
    "message_size_limit": Row("limits.max_packet_size", _message_limit),
    "global_max_connections": Row("limits.max_connections", lambda text: max(0, number(text))),
    "global_max_clients": Row("limits.max_sessions", lambda text: 2**31 - 1 if number(text) < 1 else number(text)),
    "max_keepalive": Row("limits.max_keep_alive", _seconds),
    "retain_available": Row("mqtt.retain_available", flag),
    "max_topic_alias": Row("mqtt.topic_alias_maximum", number),
    "sys_interval": Row("mqtt.sys_interval", _seconds),
    "persistent_client_expiration": Row("mqtt.session_expiry", _expiration),
}
BRIDGE: dict[str, Row] = {
    "bridge_protocol_version": Row("version", lambda text: VERSIONS[text]),  # no word may follow
    "remote_clientid": Row("client_id", str),
    "clientid": Row("client_id", str),
    "remote_username": Row("username", str),
    "username": Row("username", str),
    "remote_password": Row("password", str),
    "password": Row("password", str),
    "bridge_cafile": Row("ca_file", str),
    "bridge_certfile": Row("certificate", str),
    "bridge_keyfile": Row("key", str),
    "bridge_insecure": Row("insecure", flag),
    "keepalive_interval": Row("keep_alive", lambda text: max(5, number(text))),
    "restart_timeout": Row("retry", _retry),
}
NO_KEYS = "FlockMQ has no pre-shared keys: the listener would have no TLS, and let in clients without a key"
UNKNOWN_PLUGIN = "nothing would check for it which clients may connect, publish or subscribe; see auth.* and hooks.*"
NO_BRIDGE_KEYS = "a link verifies certificates, and has no pre-shared keys: use bridge_cafile"
# Without the line, clients could do what they can't do now, or messages could be read on their way.
OPENS = {
    "psk_file": NO_KEYS,
    "psk_hint": NO_KEYS,
    "mount_point": "the listener's clients would share the topics of all others; see [[tenants]]",
    "bind_interface": "the listener would be reached over all interfaces: name an address in `listener`",
    "clientid_prefixes": "clients with any client identifier would be let in",
    "use_username_as_clientid": "clients would choose their client identifiers, those of other users too",
    "proxy_protocol_v2_require_tls": "clients that have reached the proxy without TLS would be let in",
    "plugin": UNKNOWN_PLUGIN,
    "global_plugin": UNKNOWN_PLUGIN,
    "plugin_load": UNKNOWN_PLUGIN,
    "auth_plugin": UNKNOWN_PLUGIN,
    "bridge_capath": "a link takes one file of certificates: join them, and name the file in bridge_cafile",
    "bridge_psk": NO_BRIDGE_KEYS,
    "bridge_identity": NO_BRIDGE_KEYS,
    "bridge_require_ocsp": "a link would take a revoked certificate of the other broker",
    "use_identity_as_username": "clients without a certificate would be let in: see require_certificate",
    "use_subject_as_username": "clients without a certificate would be let in: see require_certificate",
}
IF_TRUE = ("use_username_as_clientid", "proxy_protocol_v2_require_tls", "bridge_require_ocsp")
# These mean TLS, and a link does the rest in its own way, or not at all.
NO_BRIDGE = ("bridge_capath", "bridge_psk", "bridge_identity")
TLS_BRIDGE = {
    "bridge_tls_version": "a link takes TLS 1.2 and 1.3",
    "bridge_alpn": "a link sends no ALPN",
}
# True of FlockMQ in any case, so that nothing is lost with the line.
ALWAYS = {
    "autosave_interval": "each message is stored before it is acknowledged",
    "autosave_on_changes": "each message is stored before it is acknowledged",
    "persistence_file": "the store has its own file, see store.url",
    "set_tcp_nodelay": "always so",
    "allow_zero_length_clientid": "always so, as the standard says",
    "log_timestamp": "always so",
    "connection_messages": "level debug logs each connection",
    "try_private": "always so",
    "notifications": "$SYS/broker/links/NAME/state is 1 or 0",
    "start_type": "links are always up",
    "cleansession": "links keep their sessions",
    "bridge_attempt_unsubscribe": "filters that are no longer configured are not carried",
    "round_robin": "links try their addresses in turn",
    "local_cleansession": "links keep their sessions",
    "local_clientid": "a link is part of the broker, not a client of it",
    "local_username": "a link is part of the broker, not a client of it",
    "local_password": "a link is part of the broker, not a client of it",
    "allow_duplicate_messages": "a client gets a message once, with the highest QoS of its subscriptions",
    "check_retain_source": "rules are checked as retained messages are delivered, for the receiver",
    "memory_limit": "limits.* bound each use of memory; systemd and containers bound the process",
    "user": "the service's unit or container has the user",
    "pid_file": "systemd and containers know the process",
    "log_dest": "the log is written to standard error, for the journal or the container",
}
UNKNOWN = "no counterpart"
# Mosquitto completes the chain of the server's certificate from `cafile`.
CHAIN = "append the certificates of intermediate authorities that signed the node's own to tls.certificate"
MAIN_ONLY = "without effect: Mosquitto takes it in its main file only"
EMPTY = ("protocol", "log_type")  # without a value Mosquitto ignores them
ADDRESSES = ("address", "addresses")
# Mosquitto has them, and FlockMQ has nothing that they could be.
WITHOUT = (
    "accept_protocol_versions",
    "auth_plugin_deny_special_chars",
    "auto_id_prefix",
    "bridge_bind_address",
    "bridge_ciphers",
    "bridge_max_packet_size",
    "bridge_max_topic_alias",
    "bridge_outgoing_retain",
    "bridge_receive_maximum",
    "bridge_reload_type",
    "bridge_session_expiry_interval",
    "bridge_tcp_keepalive",
    "bridge_tcp_user_timeout",
    "ciphers",
    "ciphers_tls1.3",
    "connection_check_acl",
    "dhparamfile",
    "disable_client_cert_date_checks",
    "enable_control_api",
    "http_dir",
    "idle_timeout",
    "log_facility",
    "log_timestamp_format",
    "max_inflight_bytes",
    "notification_topic",
    "notifications_local_only",
    "packet_buffer_size",
    "queue_qos0_messages",
    "retained_persistence",
    "retry_interval",
    "store_clean_interval",
    "threshold",
    "tls_engine",
    "tls_engine_kpass_sha1",
    "tls_keyform",
    "upgrade_outgoing_qos",
    "websockets_headers_size",
    "websockets_log_level",
)
OPTION = re.compile("(auth|plugin)_opt_(?=.)")  # names of options of plugins begin so
# Mosquitto refuses `per_listener_settings true` after one of these.
SECURITY = (
    *("acl_file", "allow_anonymous", "allow_zero_length_clientid", "auth_plugin", "auto_id_prefix", "password_file"),
    *("plugin", "psk_file"),
)
# With one of these before the first `listener`, Mosquitto opens its default listener, too.
OPENERS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("cafile", "capath", "certfile", "keyfile", "crlfile", "ciphers", "ciphers_tls1.3"), bool),
    **dict.fromkeys(("dhparamfile", "tls_engine", "psk_hint", "bind_interface", "socket_domain"), bool),
    **dict.fromkeys(("require_certificate", "use_identity_as_username", "use_subject_as_username"), flag),
    "use_username_as_clientid": flag,
    "max_connections": lambda text: number(text) >= 0,
    "max_qos": lambda text: number(text) != 2,
    "maximum_qos": lambda text: number(text) != 2,
    "protocol": lambda text: word(text) == "websockets",
}
OPENERS_PER_LISTENER = ("password_file", "psk_file", "auth_plugin", "plugin")  # with per_listener_settings
CLOSED = "Mosquitto refuses every client there, since it has neither `allow_anonymous true` nor a password_file"
BY_MISTAKE = (
    "it has no allow_anonymous line: Mosquitto 2.0 accepts anonymous clients there, and FlockMQ refuses them; write "
    "`allow_anonymous true` to keep them"
)
SEPARATED = ("listener", "port", "address", "addresses", "topic")  # their values are several words
TAB = "a tab is no separator in a mosquitto.conf: write spaces"

assert set(VERSIONS.values()) == set(LEVELS)
