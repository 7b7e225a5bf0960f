"""A configuration of Mosquitto as one of FlockMQ: TOML, with a comment for every line that has no counterpart.

Directives are rows: of a listener, of a bridge (`connection`), and of the whole broker. A path is taken as it is;
FlockMQ reads Mosquitto's files of users and rules unchanged. A directive without a counterpart whose loss would open
something ends the translation, unless its name is accepted.

The lines before the first `listener` that are about one listener are about the default listener. Mosquitto opens it if
one of some directives is among them (`OPENERS`), and the other listeners never have what it has.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from ..errors import ConfigError
from .go_auth import counterpart, is_go_auth
from .keys import KEYS, read
from .link import NAME
from .listen_url import ListenUrl, clash
from .mosquitto_bridge import BRIDGE_LINES, Bridge, is_of
from .mosquitto_directives import (
    ALWAYS,
    BROKER,
    BY_MISTAKE,
    CHAIN,
    CLOSED,
    EMPTY,
    FAMILIES,
    IF_TRUE,
    LISTENER,
    LOCAL,
    MAIN_ONLY,
    NO_BRIDGE,
    OPENERS,
    OPENERS_PER_LISTENER,
    OPENS,
    OPTION,
    PLUGIN_OPTIONS,
    PLUGINS,
    PORT,
    SECURITY,
    SEPARATED,
    STORE_FILE,
    TAB,
    UNKNOWN,
    WITHOUT,
    Row,
    flag,
    word,
)

NO_SIZE = (
    "limits.max_packet_size is 2 MiB by default; Mosquitto before 2.1 accepts packets of any size if max_packet_size "
    "does not limit them"
)
MARK = "\ufeff"  # that editors of Windows write at the begin


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
    warnings: list[str]


@dataclass
class Listener:
    """A listener, as far as it has been read."""

    host: str = ""  # or the path of a Unix socket
    port: str = PORT  # "0": a Unix socket
    where: str = ""  # FILE:LINE
    family: str = ""  # "ipv4" or "ipv6"
    values: dict[str, object] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # FILE:LINE: `LINE` of values
    websocket: bool = False
    is_checked: bool = False  # whether a plugin, or a file of keys, decides in Mosquitto who connects

    def is_for(self, key: str) -> bool:
        """Whether a key has an effect on it."""
        return not key.startswith("tls.") or "tls.certificate" in self.values

    @property
    def address(self) -> str:
        """HOST:PORT of its family, or the path after unix:. Raises ConfigError."""
        if self.port == "0":
            return f"unix:{self.host}"
        host = self.host
        if self.family and host.lower() in ("", LOCAL):
            host = FAMILIES[self.family][bool(host)]
        elif self.family and not is_of(host, self.family):
            raise ConfigError(
                f"{self.where}: `socket_domain {self.family}` can't be taken over with the host {host}",
                f"name an address of {self.family} in its place",
            )
        return _address(host, self.port)

    @property
    def url(self) -> str:
        """As `listen` has it. Raises ConfigError."""
        if self.port == "0":
            return self.address
        secure = "tls.certificate" in self.values
        scheme = {(False, False): "", (False, True): "mqtts://", (True, False): "ws://", (True, True): "wss://"}
        return scheme[self.websocket, secure] + self.address


class GoAuth(NamedTuple):
    """A line that loads mosquitto-go-auth."""

    where: str  # FILE:LINE
    line: str
    listener: Listener
    values: dict[str, object]  # that get the keys for its options
    options: dict[str, str]  # by name without auth_opt_
    places: dict[str, str]  # FILE:LINE of each


class Translation:
    """The result so far.

    Args:
        path: of the main file.
    """

    def __init__(self, path: Path) -> None:
        self._main = path
        self.first = Listener()  # of `port`, and of the file before the first `listener`
        self._is_named = False  # by `port` or `bind_address`
        self._opener = ""  # the line that opens it, though it is not named
        self._where = ""  # FILE:LINE
        self._capath = ""  # the line
        self.listeners: list[Listener] = []
        self.bridges: dict[str, Bridge] = {}
        self.values: dict[str, object] = {}
        self.notes: list[str] = []
        self.losses: list[Loss] = []
        self.warnings: list[str] = []
        self.nobody = ""  # clients that could connect: why
        self._bridge: Bridge | None = None
        self._plugin: dict[str, object] = {}  # gets the options that follow
        self._loaded: dict[str, dict[str, object]] = {}  # options of plugins by name
        self._go_auth: list[GoAuth] = []
        self._is_go_auth = False  # whether options are of the last of these
        self._persistent = self._per_listener = False
        self._is_checked = False  # as of a listener, for all
        self._security = ""  # the line of the first setting of security

    @property
    def _listener(self) -> Listener:
        """The section that a line is about."""
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
        if not value and name not in EMPTY:
            raise ConfigError("it has no value, which Mosquitto refuses")
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
        if name in SECURITY:
            self._security = self._security or self._where
        if self._listener is self.first and not self._opener:
            opens = self._per_listener and name in OPENERS_PER_LISTENER
            if opens or (name in OPENERS and OPENERS[name](value)):
                self._opener = f"{self._where}: `{line}`"
        if self._is_go_auth and OPTION.match(name):
            self._take_go_auth_option(name, value)
            return
        is_lost = name in OPENS and self._is_lost(name, value)
        if is_lost:
            self._lose(self._where, name, value)
            self._note_check(name)
        if is_lost and "plugin" not in name:
            if self._bridge is not None and name in NO_BRIDGE:
                self._bridge.secure = True
        elif name in IF_TRUE:
            self.notes.append(f"{line}: the default")
        elif name in ("listener", "port"):
            self._begin_listener(name, *value.split())
        elif name == "connection":
            self._begin_bridge(word(value))
        elif name in BRIDGE_LINES:
            if self._bridge is None:
                raise ConfigError("no `connection` stands before it, which Mosquitto refuses")
            self.notes += self._bridge.take(name, value)
        elif name in LISTENER:
            is_own = name == "listener_allow_anonymous" or not LISTENER[name].key.startswith("auth.")
            _set(self._listener.values if is_own else self._shared, LISTENER[name], value)
            self._listener.places[LISTENER[name].key] = f"{self._where}: `{line}`"
        elif name in BROKER:
            _set(self.values, BROKER[name], value)
        elif "plugin" in name:
            self._take_plugin(name, value, line)
        elif not self._take_other(name, value):
            self._leave_out(name, line)

    def _leave_out(self, name: str, line: str) -> None:
        """A line has no counterpart; Mosquitto refuses a directive that it does not know."""
        self.notes.append(f"{line}: {ALWAYS.get(name, UNKNOWN)}")
        if name not in ALWAYS and name not in WITHOUT and not OPTION.match(name):
            self.warnings.append(f"{self._where}: `{line}` is left out: Mosquitto has no directive {name!r}")

    def _note_check(self, name: str) -> None:
        """A directive is lost by which Mosquitto decides which clients connect: its listeners are not open to all."""
        if name == "psk_file" or "plugin" in name:
            if self._per_listener:
                self._listener.is_checked = True
            else:
                self._is_checked = True

    def _begin_listener(self, name: str, port: str, host: str = "", *_: str) -> None:
        if name == "port":  # other words are a comment
            self.first.port, self.first.where = str(int(port)), self._where
            self._is_named = True
        else:
            host = "" if host.startswith("#") else host
            self.listeners.append(Listener(host if port == "0" else _host(host), str(int(port)), self._where))
        try:
            ListenUrl.parse((self.first if name == "port" else self.listeners[-1]).address)
        except ValueError as fault:
            raise ConfigError(f"expected {fault}") from None

    def _begin_bridge(self, name: str) -> None:
        if name in self.bridges:
            raise ConfigError(f"there is a connection {name} already, which Mosquitto refuses")
        if not NAME.fullmatch(name):
            raise ConfigError("a link has a name of at most 32 letters, digits, - and _")
        self._bridge = self.bridges[name] = Bridge(self._where)

    def _is_lost(self, name: str, value: str) -> bool:
        """Whether a directive opens something if it is not taken over."""
        if "plugin" in name:
            self._is_go_auth = is_go_auth(value)
            return not (self._is_go_auth or any(known in value for known in PLUGINS))
        return name not in LISTENER and (name not in IF_TRUE or flag(value))

    def _lose(self, where: str, name: str, value: str) -> None:
        self.losses.append(Loss(where, name, value, OPENS[name]))

    def _take_plugin(self, name: str, value: str, line: str) -> None:
        """Read a line about a plugin: files of users and rules, and a store, have a counterpart."""
        if name == "plugin_use":
            self._listener.is_checked = True
            for key, found in self._loaded.get(value, {}).items():
                (self.values if key == "store.url" else self._listener.values)[key] = found
        elif name in PLUGIN_OPTIONS:
            row = PLUGIN_OPTIONS[name]
            _set(self.values if row.key == "store.url" else self._plugin, row, value)
            self._persistent |= row.key == "store.url"
        elif name not in OPENS:
            self._leave_out(name, line)
        elif self._is_go_auth:
            values = self.values if name == "global_plugin" else self._shared
            self._go_auth.append(GoAuth(self._where, line, self._listener, values, {}, {}))
            self._note_check(name)
        else:
            self._plugin = self.values if name == "global_plugin" else self._shared
            if name == "plugin_load":
                self._plugin = self._loaded.setdefault(value.split()[0], {})

    def _take_go_auth_option(self, name: str, value: str) -> None:
        found = self._go_auth[-1]
        option = OPTION.sub("", name, count=1)
        found.options[option] = value
        found.places[option] = self._where

    def _translate_go_auth(self) -> None:
        """Take over the options of mosquitto-go-auth, once all are known. Raises ConfigError."""
        for plugin in self._go_auth:
            try:
                made = counterpart(plugin.options)
                for key, value in made.values.items():
                    read(KEYS[key], value, "as FlockMQ has it", is_text=False)
            except ConfigError as error:
                raise ConfigError(f"{plugin.where}: `{plugin.line}`: {error.message}", error.hint) from None
            plugin.values.update(made.values)
            plugin.listener.places.update(dict.fromkeys(made.values, f"{plugin.where}: `{plugin.line}`"))
            self.notes += made.notes
            self.warnings += [f"{plugin.where}: {warning}" for warning in made.warnings]
            for option, value, reason in made.losses:
                where = plugin.places.get(option.removeprefix("auth_opt_"), plugin.where)
                self.losses.append(Loss(where, option, value, reason))

    def _take_other(self, name: str, value: str) -> bool:
        if name == "protocol":
            self._listener.websocket = {"": False, "mqtt": False, "websockets": True}[word(value)]
        elif name == "per_listener_settings":
            if self._security and (flag(value) or self._per_listener):
                raise ConfigError(f"Mosquitto wants it before all settings of security, as in {self._security}")
            self._per_listener = flag(value)
        elif name == "socket_domain":
            if word(value) not in FAMILIES:
                raise ConfigError("Mosquitto takes ipv4 and ipv6 only")
            self._listener.family = word(value)
            self._listener.where = self._listener.where or self._where
        elif name == "bind_address":
            self.first.host, self.first.where = _host(value), self._where
            self._is_named = True
        elif name == "persistence":
            self._persistent = flag(value)
        elif name == "persistence_location":
            self.values["store.url"] = f"sqlite:{Path(value) / STORE_FILE}"
        elif name == "capath":
            self._capath = self._capath or f"{self._where}: `capath {value}`"
            self.notes.append(f"capath {value}: {CHAIN}")
        elif name == "log_type":
            if word(value) in ("debug", "all"):
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
                self._lose(listener.places[key].partition(": `")[0], f"use_{kind}_as_username", "true")
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
        """FlockMQ has one maximum QoS: take the listeners' QoS if they agree, else note it."""
        found = [listener.values.pop("mqtt.maximum_qos", 2) for listener in listeners]
        if len(set(found)) == 1 and found[0] != 2:
            self.values["mqtt.maximum_qos"] = found[0]
        elif len(set(found)) > 1:
            limits = (f"{qos} for {listener.url}" for qos, listener in zip(found, listeners, strict=True))
            self.notes.append(f"the maximum QoS, {', '.join(limits)}: mqtt.maximum_qos is the same for all listeners")

    def _opened(self) -> list[Listener]:
        """The listeners that Mosquitto opens, with the default listener if it is one of them. Raises ConfigError."""
        first = self.first
        if not self.listeners:
            if not self._is_named:
                first.host = LOCAL
                if self._opener:
                    self.warnings.append(
                        f"{self._opener}: no `listener` stands in the file: Mosquitto opens port {PORT} to every "
                        f"machine and client, FlockMQ to this machine only; write `listener {PORT}` if others connect"
                    )
            return [first]
        if self._is_named or self._opener:
            first.where = first.where or self._opener.partition(": `")[0]
            if not self._is_named:
                self.warnings.append(
                    f"{self._opener}: it stands before the first `listener`, so it is about the default listener: "
                    f"Mosquitto opens {first.url} for it, and FlockMQ does"
                )
            return [first, *self.listeners]
        for key in first.values:
            self.warnings.append(
                f"{first.places[key]} has no effect: it stands before the first `listener`, so it is about the default "
                "listener, which Mosquitto does not open"
            )
        return self.listeners

    def _without_closed(self, listeners: list[Listener]) -> list[Listener]:
        """The listeners at which somebody can connect; all if nobody can at any.

        FlockMQ does not start with a listener that refuses everybody, or accepts anonymous clients if only this machine
        reaches it.
        """
        if not (self.listeners or self._is_named):
            return listeners  # Mosquitto accepts clients of this machine, and FlockMQ does
        closed = {id(listener): self._why_closed(listener) for listener in listeners}
        found = [f"{listener.where}: {listener.url}" for listener in listeners if closed[id(listener)]]
        reasons = [reason for reason in closed.values() if reason]
        if len(found) == len(listeners):
            self.nobody = "; ".join(f"{place}: {why}" for place, why in zip(found, reasons, strict=True))
            return listeners
        for place, why in zip(found, reasons, strict=True):
            self.warnings.append(f"{place} is left out: {why}")
        return [listener for listener in listeners if not closed[id(listener)]]

    def _why_closed(self, listener: Listener) -> str:
        """Why nobody can connect to a listener; empty: somebody can."""
        values = {**self.values, **listener.values}
        is_by_mistake = self._per_listener and listener is self.first and "auth.allow_anonymous" not in values
        by_certificate = values.get("tls.username_from", "none") != "none" and listener.is_for("tls.username_from")
        is_known = values.get("auth.password_file") or by_certificate or listener.is_checked or self._is_checked
        if values.get("auth.allow_anonymous") or is_known:
            if is_by_mistake:
                self.warnings.append(f"{listener.where}: {listener.url}: {BY_MISTAKE}")
            return ""
        return BY_MISTAKE if is_by_mistake else CLOSED

    def _check_places(self, listeners: list[Listener]) -> None:
        """Raise ConfigError if two listeners want the same port of an address."""
        for number, listener in enumerate(listeners):
            for other in listeners[:number]:
                if clash(ListenUrl.parse(listener.url), ListenUrl.parse(other.url)):
                    raise ConfigError(
                        f"{listener.where}: {listener.url} is taken by {other.url} of {other.where}, so Mosquitto does "
                        "not start"
                    )

    def toml(self) -> Iterator[str]:
        """The lines of the configuration. Raises ConfigError."""
        self._translate_go_auth()
        opened = self._opened()
        self._check_places(opened)
        listeners = self._without_closed(opened)
        for listener in listeners:
            self._drop_unused(listener)
        self._take_maximum_qos(listeners)
        default = min(listeners, key=lambda listener: len(listener.values))  # the others inherit what it has
        yield f"listen = {json.dumps([default.url])}"
        values = {**self.values, **default.values, "mqtt.long_client_ids": True}  # as Mosquitto, also at MQTT 3.1
        if "limits.max_packet_size" not in values:
            self.notes.append(NO_SIZE)
        if not self._persistent:
            values["store.url"] = "memory"  # as Mosquitto without persistence
        yield from _sections(values)
        for number, listener in enumerate((each for each in listeners if each is not default), 2):
            name = f"listeners.listener-{number}"
            inherited = {key: KEYS[key].field.default for key in default.values if listener.is_for(key)}
            yield from ("", f"[{name}]", f"listen = {json.dumps([listener.url])}")
            yield from _sections({**inherited, **listener.values}, f"{name}.")
        for name, bridge in self.bridges.items():
            yield from ("", f"[links.{name}]", *bridge.lines(name))
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
        ConfigError: a file can't be read, a line is not understood, a loss is not accepted, or no client could connect.
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
    if translation.nobody:
        raise ConfigError(
            f"nobody could connect: {translation.nobody}",
            "write `allow_anonymous true`, or name a password_file (`flockmq passwd` makes one), in the file",
        )
    return Translated("\n".join(lines) + "\n", translation.losses, translation.warnings)
