"""A configuration of Mosquitto as one of FlockMQ: TOML, with a comment for every line that has no counterpart.

Directives are rows: those of a listener, of a bridge (`connection`), and of the whole broker. A path is taken as it is;
FlockMQ reads Mosquitto's files of users and rules unchanged. A directive without a counterpart whose loss would open
something ends the translation, unless its name is accepted.
"""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from ..errors import ConfigError
from .keys import KEYS, read
from .link import LEVELS, link

VERSIONS = {"mqttv31": "3.1", "mqttv311": "3.1.1", "mqttv50": "5"}
SECONDS = {"h": 3600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}  # of persistent_client_expiration
FIRST = "localhost:1883"  # that a configuration without listeners has
STORE_FILE = "flockmq.db"
MARK = "\ufeff"  # that editors of Windows write at the begin

Convert = Callable[[str], object]


class Loss(NamedTuple):
    """A directive that can't be taken over, and whose loss opens something."""

    where: str  # FILE:LINE
    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        value = "..." if self.name == "bridge_psk" else self.value  # a secret
        return f"{self.where}: `{self.name} {value}`: {self.reason}"


class Translated(NamedTuple):
    """A translated configuration."""

    toml: str
    losses: list[Loss]  # accepted ones


class Row(NamedTuple):
    """The counterpart of a directive."""

    key: str  # of FlockMQ
    convert: Convert


def _word(text: str) -> str:
    """The first word. Mosquitto ignores what follows a truth value or a number; a text goes to the end of the line."""
    return text.split(" ")[0]


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[_word(text)]


def _number(text: str) -> int:
    return int(_word(text))


def _seconds(text: str) -> str:
    return f"{_number(text)} s"


def _expiration(text: str) -> str:
    word = _word(text)
    return f"{int(word[:-1]) * SECONDS[word[-1]]} s"


def _retry(text: str) -> int:
    """Of SECONDS, or BASE CAP."""
    words = text.split()[:2]
    if int(words[-1]) < int(words[0]):
        raise ConfigError("the second number is less than the first one, which Mosquitto refuses")
    return min(3600, max(1, int(words[-1])))


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
# Mosquitto completes the chain of its own certificate from `cafile`.
CHAIN = "append the certificates of intermediate authorities that signed the node's own to tls.certificate"
MAIN_ONLY = "without effect: Mosquitto takes it in its main file only"
SEPARATED = ("listener", "port", "address", "addresses", "topic")  # their values are several words
TAB = "a tab is no separator in a mosquitto.conf: write spaces"


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
        path: of the main file.
    """

    def __init__(self, path: Path) -> None:
        self._main = path
        self.first = Listener(FIRST)  # of `port`, and of the file before the first `listener`
        self._bound = ""  # address of `bind_address`
        self._where = ""  # FILE:LINE
        self._capath = ""  # the line
        self._secure: set[str] = set()  # connections with a directive that means TLS
        self.listeners: list[Listener] = []
        self.bridges: dict[str, dict[str, object]] = {}
        self.values: dict[str, object] = {}
        self.notes: list[str] = []
        self.losses: list[Loss] = []
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

    def read(self, path: Path) -> None:
        """Read the lines of a file. Raises ConfigError."""
        for number, text in enumerate(_contents(path).removeprefix(MARK).split("\n"), 1):
            line = text.rstrip().lstrip(" ")
            if not line or line.lstrip().startswith("#"):
                continue
            self._where = f"{path}:{number}"
            try:
                included = self._take_line(line, is_main=path == self._main)
            except ConfigError as error:
                raise ConfigError(f"{self._where}: `{_shown(line)}` can't be taken over: {error}") from None
            except (ValueError, KeyError, IndexError):
                is_not = f"{self._where}: `{_shown(line)}` is not understood"
                raise ConfigError(is_not, "is it a mosquitto.conf?") from None
            for more in included:
                self.read(more)

    def _take_line(self, line: str, *, is_main: bool) -> list[Path]:
        """Take a line; returns the files that it includes."""
        name, _, value = line.partition(" ")
        value = value.strip()
        if _shown(line) != line:
            raise ConfigError("it is not UTF-8")
        if "\t" in name or ("\t" in value and name in SEPARATED):
            raise ConfigError(TAB)
        if name != "include_dir":
            self._take(name, value, line)
        elif is_main:
            return [*self._included(value)]
        else:
            self.notes.append(f"{line}: {MAIN_ONLY}")
        return []

    def _included(self, name: str) -> Iterator[Path]:
        """The files of a directory, in their order. Raises ConfigError."""
        try:
            found = sorted(path for path in Path(self._main.parent, name).iterdir() if path.name.endswith(".conf"))
        except OSError as error:
            raise ConfigError(f"the directory can't be read: {error.strerror}") from None
        for path in found:
            if not path.is_file():  # to read a FIFO would wait for ever
                raise ConfigError(f"{path} is no regular file")
            if path.samefile(self._main):
                raise ConfigError(f"{path} includes itself")
            yield path

    def _take(self, name: str, value: str, line: str) -> None:
        is_lost = name in OPENS and self._is_lost(name, value)
        if is_lost:
            self._lose(self._where, name, value)
        if is_lost and "plugin" not in name:
            self._secure |= self._present_bridge if name in NO_BRIDGE else set()
        elif name in IF_TRUE:
            self.notes.append(f"{line}: the default")
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
            self.listeners.append(Listener(f"unix:{host}" if port == "0" else _address(_host(host), port)))

    def _is_lost(self, name: str, value: str) -> bool:
        """Whether a directive opens something if it is not taken over."""
        if "plugin" in name:
            return not any(known in value for known in PLUGINS)
        return name not in LISTENER and (name not in IF_TRUE or _flag(value))

    def _lose(self, where: str, name: str, value: str) -> None:
        self.losses.append(Loss(where, name, value, OPENS[name]))

    @property
    def _present_bridge(self) -> set[str]:
        """The name of the connection that a line is about, if it is about one."""
        return {name for name, found in self.bridges.items() if found is self._bridge}

    def _take_bridge(self, bridge: dict[str, object], name: str, value: str) -> bool:
        urls, topics = cast(list[str], bridge["url"]), cast(list[str], bridge["topics"])
        if name in ("address", "addresses"):
            urls += [place if ":" in place else f"{place}:1883" for place in value.split()]
        elif name == "topic":
            topics.append(value)
        elif name in BRIDGE:
            row = BRIDGE[name]
            bridge[row.key] = row.convert(value)
        elif name in TLS_BRIDGE or name == "bridge_tls_use_os_certs":
            if name in TLS_BRIDGE or _flag(value):
                self._secure |= self._present_bridge
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
        elif name not in OPENS:
            self.notes.append(f"{line}: {UNKNOWN}")
        else:
            self._plugin = self.values if name == "global_plugin" else self._shared
            if name == "plugin_load":
                self._plugin = self._loaded.setdefault(value.split()[0], {})

    def _take_other(self, name: str, value: str) -> bool:
        if name == "protocol":
            self._listener.websocket = {"mqtt": False, "websockets": True}[_word(value)]
        elif name == "per_listener_settings":
            self._per_listener = _flag(value)
        elif name == "bind_address":
            self._bound = _host(value)
            self.first.address = _address(value, self.first.address.rpartition(":")[2])
        elif name == "persistence":
            self._persistent = _flag(value)
        elif name == "persistence_location":
            self.values["store.url"] = f"sqlite:{Path(value) / STORE_FILE}"
        elif name == "capath":
            self._capath = self._capath or f"{self._where}: `capath {value}`"
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
            if key == "tls.username_from" and listener.is_for(key) and is_vain and values[key] != "none":
                kind = "identity" if values.pop(key) == "cn" else "subject"  # Mosquitto lets in nobody
                self._lose(listener.url, f"use_{kind}_as_username", "true")
            elif not listener.is_for(key) or is_vain:
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
        if self.losses:
            yield from ("", "# Accepted losses, each of which opens something:")
            yield from (f"# {loss}" for loss in self.losses)
        if self.notes:
            yield from ("", "# Lines without a key of their own:")
            yield from (f"# {note}" for note in self.notes)


def _address(host: str, port: str) -> str:
    """HOST:PORT; without a host, all addresses."""
    return f"{f'[{host}]' if ':' in host else host}:{int(port)}"


def _host(text: str) -> str:
    """An address as Mosquitto takes it. Raises ConfigError."""
    if any(char in text for char in " []"):
        raise ConfigError("Mosquitto takes one address, without brackets, and nothing after it")
    return text


def _contents(path: Path) -> str:
    """The text of a file; bytes that are not UTF-8 are surrogates: comments may be of any code. Raises ConfigError."""
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _shown(line: str) -> str:
    return line.encode(errors="surrogateescape").decode(errors="replace")


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


def translate(path: Path, accepted: Collection[str] = ()) -> Translated:
    """The configuration of a mosquitto.conf.

    Args:
        path: of the file.
        accepted: names of directives that may be lost, though their loss opens something.

    Raises:
        ConfigError: a file can't be read, a line is not understood, or a loss is not accepted.
    """
    translation = Translation(path)
    translation.read(path)
    lines = [f"# Made of {path.name} by `flockmq import`.", *translation.toml()]
    losses = [loss for loss in translation.losses if loss.name not in accepted]
    if losses:
        flags = dict.fromkeys(f"--accept {loss.name}" for loss in losses)
        raise ConfigError(
            f"something would be open without {'; '.join(map(str, losses))}",
            f"change the file, or accept the loss: {' '.join(flags)}",
        )
    return Translated("\n".join(lines) + "\n", translation.losses)


assert set(VERSIONS.values()) == set(LEVELS)
