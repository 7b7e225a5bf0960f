"""A configuration of Mosquitto as one of FlockMQ: TOML, with a comment for every line that has no counterpart.

Directives are rows: those of a listener, of a bridge (`connection`), and of the whole broker. A path is taken as it is;
FlockMQ reads Mosquitto's files of users and rules unchanged.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from broker.config.keys import KEYS, read
from broker.config.link import LEVELS, link
from broker.errors import ConfigError

VERSIONS = {"mqttv31": "3.1", "mqttv311": "3.1.1", "mqttv50": "5"}
SECONDS = {"h": 3600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}  # of persistent_client_expiration
FIRST = "127.0.0.1:1883"  # that a configuration without listeners has
STORE_FILE = "flockmq.db"

Convert = Callable[[str], object]


class Row(NamedTuple):
    """The counterpart of a directive."""

    key: str  # of FlockMQ
    convert: Convert


def _word(text: str) -> str:
    """The first word. Mosquitto ignores what follows a truth value or a number; a text goes to the end of the line."""
    return text.split()[0]


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[_word(text)]


def _number(text: str) -> int:
    return int(_word(text))


def _seconds(text: str) -> str:
    return f"{_number(text)} s"


def _expiration(text: str) -> str:
    word = _word(text)
    return f"{int(word[:-1]) * SECONDS[word[-1]]} s"


def _message_limit(text: str) -> int:
    return _number(text) + 65_600 if _number(text) else 268_435_460


# Of a listener; the value of `tls.*` and so on in its table.
LISTENER: dict[str, Row] = {
    "max_connections": Row("quotas.max_connections", lambda text: max(0, _number(text))),
    "certfile": Row("tls.certificate", str),
    "keyfile": Row("tls.key", str),
    "cafile": Row("tls.client_ca", str),
    "crlfile": Row("tls.client_crl", str),
    "require_certificate": Row("tls.client_certificate", lambda text: "required" if _flag(text) else "none"),
    "use_identity_as_username": Row("tls.username_from", lambda text: "cn" if _flag(text) else "none"),
    "use_subject_as_username": Row("tls.username_from", lambda text: "subject" if _flag(text) else "none"),
    "tls_version": Row("tls.min_version", lambda text: "1.3" if _word(text) == "tlsv1.3" else "1.2"),
    "allow_anonymous": Row("auth.allow_anonymous", _flag),
    "password_file": Row("auth.password_file", str),
    "acl_file": Row("auth.acl_file", str),
    "listener_allow_anonymous": Row("auth.allow_anonymous", _flag),
    "enable_proxy_protocol": Row("proxied", lambda text: _number(text) > 0),
    "websockets_origin": Row("websocket.origins", str.split),
    "maximum_qos": Row("mqtt.maximum_qos", _number),
    "max_qos": Row("mqtt.maximum_qos", _number),
}
PLUGIN_OPTIONS = {  # of the plugins that Mosquitto 2.1 has in place of its own directives
    "plugin_opt_password_file": Row("auth.password_file", str),
    "plugin_opt_acl_file": Row("auth.acl_file", str),
    "plugin_opt_db_file": Row("store.url", lambda text: f"sqlite:{Path(text).parent / STORE_FILE}"),
}
PLUGINS = ("mosquitto_password_file", "mosquitto_acl_file", "mosquitto_persist_sqlite")
BROKER: dict[str, Row] = {
    "max_inflight_messages": Row("limits.max_inflight", lambda text: min(65_535, _number(text) or 65_535)),
    "max_queued_messages": Row("limits.max_queued_messages", lambda text: _number(text) or 2**31 - 1),
    "max_queued_bytes": Row("limits.max_queued_bytes", lambda text: max(1024, _number(text) or 1 << 40)),
    "max_packet_size": Row("limits.max_packet_size", lambda text: _number(text) or 268_435_460),
    "message_size_limit": Row("limits.max_packet_size", _message_limit),
    "global_max_connections": Row("limits.max_connections", lambda text: max(0, _number(text))),
    "global_max_clients": Row("limits.max_sessions", lambda text: 2**31 - 1 if _number(text) < 1 else _number(text)),
    "max_keepalive": Row("limits.max_keep_alive", _seconds),
    "retain_available": Row("mqtt.retain_available", _flag),
    "max_topic_alias": Row("mqtt.topic_alias_maximum", _number),
    "sys_interval": Row("mqtt.sys_interval", _seconds),
    "persistent_client_expiration": Row("mqtt.session_expiry", _expiration),
}
BRIDGE: dict[str, Row] = {
    "bridge_protocol_version": Row("version", lambda text: VERSIONS[_word(text)]),
    "remote_clientid": Row("client_id", str),
    "clientid": Row("client_id", str),
    "remote_username": Row("username", str),
    "username": Row("username", str),
    "remote_password": Row("password", str),
    "password": Row("password", str),
    "bridge_cafile": Row("ca_file", str),
    "bridge_certfile": Row("certificate", str),
    "bridge_keyfile": Row("key", str),
    "bridge_insecure": Row("insecure", _flag),
    "keepalive_interval": Row("keep_alive", lambda text: max(5, _number(text))),
    "restart_timeout": Row("retry", lambda text: min(3600, max(1, int(text.split()[:2][-1])))),  # SECONDS or BASE CAP
}
# These mean TLS, and a link can't do them: without the line the password of the bridge would travel in plain text.
NO_BRIDGE = {
    "bridge_capath": "a link takes one file of certificates: join them, and name the file in bridge_cafile",
    "bridge_psk": "a link verifies certificates, and has no pre-shared keys: use bridge_cafile",
    "bridge_identity": "a link verifies certificates, and has no pre-shared keys: use bridge_cafile",
}
# These mean TLS, too, and a link does the rest in its own way.
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
# Mosquitto completes the chain of its own certificate from `cafile`.
CHAIN = "append the certificates of intermediate authorities that signed the node's own to tls.certificate"
UNKNOWN_PLUGIN = "no counterpart: nothing checks for it who may connect, publish or subscribe; see auth.* and hooks.*"


@dataclass
class Listener:
    """A listener, as far as it has been read."""

    address: str
    values: dict[str, object] = field(default_factory=dict)
    websocket: bool = False

    def is_for(self, key: str) -> bool:
        """Whether a key has an effect on it."""
        return not key.startswith("tls.") or "tls.certificate" in self.values

    @property
    def url(self) -> str:
        """As `listen` has it."""
        if self.address.startswith("unix:"):
            return self.address
        secure = "tls.certificate" in self.values
        scheme = {(False, False): "", (False, True): "mqtts://", (True, False): "ws://", (True, True): "wss://"}
        return scheme[self.websocket, secure] + self.address


class Translation:
    """The result so far.

    Args:
        directory: of the file, for `include_dir`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.first = Listener(FIRST)  # of `port`, and of the file before the first `listener`
        self._bound = ""  # address of `bind_address`
        self._number = 0  # of the line
        self._capath = ""  # the line
        self._secure: set[str] = set()  # connections with a directive that means TLS
        self.listeners: list[Listener] = []
        self.bridges: dict[str, dict[str, object]] = {}
        self.values: dict[str, object] = {}
        self.notes: list[str] = []
        self._bridge: dict[str, object] | None = None
        self._plugin: dict[str, object] = {}  # gets the options that follow
        self._loaded: dict[str, dict[str, object]] = {}  # options of plugins by name
        self._persistent = self._per_listener = False

    @property
    def _listener(self) -> Listener:
        """The one that a line is about."""
        return self.listeners[-1] if self.listeners else self.first

    @property
    def _shared(self) -> dict[str, object]:
        """The settings that are of the line's listener only with `per_listener_settings`."""
        return self._listener.values if self._per_listener else self.values

    def read(self, text: str) -> None:
        """Read the lines of a file. Raises ConfigError."""
        for number, line in enumerate(text.splitlines(), 1):
            line, self._number = line.strip(), number
            if not line or line.startswith("#"):
                continue
            name, _, value = line.partition(" ")
            try:
                self._take(name, value.strip(), line)
            except ConfigError as error:
                raise ConfigError(f"line {number}: `{line}` can't be taken over: {error}") from None
            except (ValueError, KeyError, IndexError):
                raise ConfigError(f"line {number}: `{line}` is not understood", "is it a mosquitto.conf?") from None

    def _take(self, name: str, value: str, line: str) -> None:
        if name == "include_dir":
            for path in sorted(Path(self._directory, value).glob("*.conf")):
                self.read(path.read_text("utf-8"))
        elif name in ("listener", "port"):
            self._begin_listener(name, *value.split())
        elif name == "connection":
            self._bridge = self.bridges.setdefault(value, {"url": [], "topics": [], "version": "3.1.1"})
        elif self._bridge is not None and self._take_bridge(self._bridge, name, value):
            pass
        elif name in LISTENER:
            is_own = name == "listener_allow_anonymous" or not LISTENER[name].key.startswith("auth.")
            _set(self._listener.values if is_own else self._shared, LISTENER[name], value)
        elif name in BROKER:
            _set(self.values, BROKER[name], value)
        elif "plugin" in name:
            self._take_plugin(name, value, line)
        elif not self._take_other(name, value):
            self.notes.append(f"{line}: {ALWAYS.get(name, UNKNOWN)}")

    def _begin_listener(self, name: str, port: str, host: str = "", *_: str) -> None:
        self._bridge = None
        if name == "port":  # other words are a comment
            self.first.address = _address(self._bound, port)
        else:
            host = "" if host.startswith("#") else host
            self.listeners.append(Listener(f"unix:{host}" if port == "0" else _address(host, port)))

    def _take_bridge(self, bridge: dict[str, object], name: str, value: str) -> bool:
        urls, topics = cast(list[str], bridge["url"]), cast(list[str], bridge["topics"])
        if name in ("address", "addresses"):
            urls += [place if ":" in place else f"{place}:1883" for place in value.split()]
        elif name == "topic":
            topics.append(value)
        elif name in BRIDGE:
            row = BRIDGE[name]
            bridge[row.key] = row.convert(value)
        elif name in NO_BRIDGE:
            raise ConfigError(NO_BRIDGE[name])
        elif name in TLS_BRIDGE or name == "bridge_tls_use_os_certs":
            if name in TLS_BRIDGE or _flag(value):
                self._secure |= {known for known, found in self.bridges.items() if found is bridge}
            if name in TLS_BRIDGE:
                self.notes.append(f"{name} {value}: {TLS_BRIDGE[name]}")
        else:
            return False
        return True

    def _take_plugin(self, name: str, value: str, line: str) -> None:
        """Read a line about a plugin: files of users and rules, and a store, have a counterpart."""
        if name == "plugin_use":
            for key, found in self._loaded.get(value, {}).items():
                (self.values if key == "store.url" else self._listener.values)[key] = found
        elif name in PLUGIN_OPTIONS:
            row = PLUGIN_OPTIONS[name]
            _set(self.values if row.key == "store.url" else self._plugin, row, value)
            self._persistent |= row.key == "store.url"
        elif name.startswith(("plugin_opt", "auth_opt")):
            self.notes.append(f"{line}: {UNKNOWN}")
        else:
            self._plugin = self.values if name == "global_plugin" else self._shared
            if name == "plugin_load":
                self._plugin = self._loaded.setdefault(value.split()[0], {})
            if not any(known in value for known in PLUGINS):
                self.notes.append(f"{line}: {UNKNOWN_PLUGIN}")

    def _take_other(self, name: str, value: str) -> bool:
        if name == "protocol":
            self._listener.websocket = {"mqtt": False, "websockets": True}[_word(value)]
        elif name == "per_listener_settings":
            self._per_listener = _flag(value)
        elif name == "bind_address":
            self._bound = value
            self.first.address = _address(value, self.first.address.rpartition(":")[2])
        elif name == "persistence":
            self._persistent = _flag(value)
        elif name == "persistence_location":
            self.values["store.url"] = f"sqlite:{Path(value) / STORE_FILE}"
        elif name == "capath":
            self._capath = self._capath or f"line {self._number}: `capath {value}`"
            self.notes.append(f"capath {value}: {CHAIN}")
        elif name == "log_type":
            if _word(value) in ("debug", "all"):
                self.values["log.level"] = "debug"
        else:
            return False
        return True

    def _drop_unused(self, listener: Listener) -> None:
        """Note the settings that have no effect on this listener: FlockMQ refuses them."""
        values = listener.values
        needs_certificate = values.get("tls.client_certificate") == "required"
        if needs_certificate and "tls.client_ca" not in values and self._capath:
            raise ConfigError(
                f"{self._capath} can't be taken over, and require_certificate needs it",
                "join its certificates into one file, and name that in cafile",
            )
        for key in list(values):
            is_vain = key in ("tls.client_ca", "tls.client_crl", "tls.username_from") and not needs_certificate
            if not listener.is_for(key) or is_vain:
                more = f"; {CHAIN}" if key == "tls.client_ca" and listener.is_for(key) else ""
                self.notes.append(f"{key} = {json.dumps(values.pop(key))}: without effect on {listener.url}{more}")
        if not listener.websocket and values.pop("websocket.origins", None):
            self.notes.append(f"websocket.origins: without effect on {listener.url}")
        if listener.websocket and "websocket.origins" not in values:
            self.notes.append(f"{listener.url}: name the sites whose pages may connect in websocket.origins")
        if values.get("proxied"):
            self.notes.append(f"{listener.url}: name the networks of its proxies in proxy.trusted")

    def _take_maximum_qos(self, listeners: list[Listener]) -> None:
        """FlockMQ has one maximum QoS: take that of the listeners if they agree, else note it."""
        found = [listener.values.pop("mqtt.maximum_qos", 2) for listener in listeners]
        if len(set(found)) == 1 and found[0] != 2:
            self.values["mqtt.maximum_qos"] = found[0]
        elif len(set(found)) > 1:
            limits = (f"{qos} for {listener.url}" for qos, listener in zip(found, listeners, strict=True))
            self.notes.append(f"the maximum QoS, {', '.join(limits)}: mqtt.maximum_qos is the same for all listeners")

    def toml(self) -> Iterator[str]:
        """The lines of the configuration. Raises ConfigError."""
        is_used = not self.listeners or self.first.address != FIRST
        listeners = [self.first, *self.listeners] if is_used else self.listeners
        shared = {} if is_used else self.first.values
        for listener in listeners:
            self._drop_unused(listener)
        self._take_maximum_qos(listeners)
        default = min(listeners, key=lambda listener: len(listener.values))  # the others inherit what it has
        yield f"listen = {json.dumps([default.url])}"
        values = {**self.values, **shared, **default.values}
        if not self._persistent:
            values["store.url"] = "memory"  # as Mosquitto without persistence
        yield from _sections(values)
        for number, listener in enumerate((each for each in listeners if each is not default), 2):
            name = f"listeners.listener-{number}"
            inherited = {key: KEYS[key].field.default for key in default.values if listener.is_for(key)}
            yield from ("", f"[{name}]", f"listen = {json.dumps([listener.url])}")
            yield from _sections({**inherited, **listener.values}, f"{name}.")
        for name, bridge in self.bridges.items():
            secure = name in self._secure or "ca_file" in bridge or "certificate" in bridge or bridge.get("insecure")
            if not secure:
                bridge.pop("insecure", None)  # of TLS, which the bridge has not
            bridge["url"] = [f"{'mqtts' if secure else 'mqtt'}://{place}" for place in cast(list[str], bridge["url"])]
            try:
                link(name, bridge)
            except ValueError as fault:
                raise ConfigError(f"connection {name}: expected {fault}") from None
            yield from ("", f"[links.{name}]")
            yield from (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in bridge.items())
        if self.notes:
            yield from ("", "# Lines without a key of their own:")
            yield from (f"# {note}" for note in self.notes)


def _address(host: str, port: str) -> str:
    """HOST:PORT; without a host, all addresses."""
    host = host or "0.0.0.0"
    return f"{f'[{host}]' if ':' in host else host}:{int(port)}"


def _set(values: dict[str, object], row: Row, text: str) -> None:
    """Set the key of a row. Raises ConfigError: the key can't have the value."""
    value = row.convert(text)
    if isinstance(value, list):  # the directive may stand several times
        value = [*cast(list[str], values.get(row.key, [])), *value]
    values[row.key] = value
    read(KEYS[row.key], value, "as FlockMQ has it", is_text=False)


def _sections(values: dict[str, object], prefix: str = "") -> Iterator[str]:
    sections: dict[str, list[str]] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    yield from sections.pop("", [])
    for section, lines in sections.items():
        yield from ("", f"[{prefix}{section}]", *lines)


def translate(path: Path) -> str:
    """The configuration of a mosquitto.conf, as TOML.

    Raises:
        ConfigError: the file can't be read, or a line is not understood.
    """
    try:
        text = path.read_text("utf-8")
        translation = Translation(path.parent)
        translation.read(text)
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    return f"# Made of {path.name} by `flockmq import`.\n" + "\n".join(translation.toml()) + "\n"


assert set(VERSIONS.values()) == set(LEVELS)
