"""Links (bridges) to other brokers: the tables `[links.NAME]`, how one is read, checked and written."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from ..._speedups.codec.topics import InvalidTopic, is_shared, validate_topic_filter, validate_topic_name
from .broker_url import PORTS, SECURE, WEB
from .kinds import Boolean, Choice, Duration, FilePath, Integer, Kind, Size, Text, Texts, not_one, texts
from .listen_url import split_address

DIRECTIONS = ("out", "in", "both")
LEVELS = {"3.1": 3, "3.1.1": 4, "5": 5}  # protocol levels, by the versions of MQTT
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
LISTENER = "$links"  # of the connections of links to their own node; no table [listeners.NAME] can have this name
HOP = "flockmq-hop"  # user property: the identity of a broker that the message has left by a link
WANTED = (
    "flockmq-wanted"  # of CONNECT: version and number of rows of the exchange of wanted filters; of CONNACK: version
)
SENDS = "flockmq-sends"  # of CONNECT: a topic filter of messages that the link can send
PATH = "flockmq-path"  # of SUBSCRIBE: identity of a broker between the sender and the clients that want the filters
NOTICE = "$flockmq/wanted"  # topic name of the messages by which the other broker reports its wanted filters
EVERYTHING = "#"  # in such a report: all that the rules of the link send
MAX_WANTED = 10_000  # rows
CLIENT_ID_PREFIX = "$link/"  # of their sessions; other clients can't use it
DAY = 86_400.0
HIDDEN = "(hidden)"  # in place of a password
RULE = re.compile(r'\s*(?:"([^"]*)"|(\S+))')


def is_of_link(client_id: bytes) -> bool:
    """Whether a session of this client identifier is a link's."""
    return client_id.startswith(CLIENT_ID_PREFIX.encode())


@dataclass(frozen=True)
class Rule:
    """Topics of a link, as a `topic` line of Mosquitto's bridges has them."""

    pattern: str  # topic filter after the prefixes; may be empty if there are prefixes
    direction: str = "out"
    qos: int = 0
    local_prefix: str = ""
    remote_prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Parse `FILTER [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]`; "" is an empty word.

        Raises:
            ValueError: with a text that completes "expected ...".
        """
        words = [quoted or plain for quoted, plain in RULE.findall(text)]
        if not 1 <= len(words) <= 5:
            raise ValueError(EXPECTED_RULE)
        words += ["", "out", "0", "", ""][len(words) :]
        pattern, direction, qos, local, remote = words
        if direction not in DIRECTIONS or qos not in ("0", "1", "2"):
            raise ValueError(f"{EXPECTED_RULE}, not {text!r}")
        rule = cls(pattern, direction, int(qos), local, remote)
        for topic_filter in (rule.local_filter, rule.remote_filter):
            try:
                validate_topic_filter(topic_filter, 5)
            except InvalidTopic as fault:
                raise ValueError(f"topic filters; {topic_filter!r} of {text!r} is none: {fault}") from fault
        for prefix in filter(None, (local, remote)):
            try:
                validate_topic_name(prefix, 5)
            except InvalidTopic as fault:
                raise ValueError(f"prefixes without wildcards; {prefix!r} of {text!r}: {fault}") from fault
        if any(map(is_shared, (rule.local_filter, rule.remote_filter))):
            raise ValueError(f"rules without shared subscriptions, not {text!r}")
        return rule

    @property
    def local_filter(self) -> str:
        """The topic filter at this broker."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        """The topic filter at the other broker."""
        return self.remote_prefix + self.pattern

    @property
    def is_out(self) -> bool:
        """Whether messages of this broker go to the other."""
        return self.direction != "in"

    @property
    def is_in(self) -> bool:
        """Whether messages of the other broker come here."""
        return self.direction != "out"

    def __str__(self) -> str:
        words = [self.pattern, self.direction, str(self.qos), self.local_prefix, self.remote_prefix]
        while not words[-1]:
            words.pop()
        return " ".join(word if word and not re.search(r"\s", word) else f'"{word}"' for word in words)


EXPECTED_RULE = "rules of the form FILTER [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]"


class Rules(Kind):
    """Rules of a link."""

    expected = EXPECTED_RULE

    def read(self, raw: object, *, is_text: bool) -> object:
        found = tuple(map(Rule.parse, texts(raw, is_text=False)))
        if not found:
            raise ValueError
        return found

    def write(self, value: object) -> str:
        return json.dumps([str(rule) for rule in cast(tuple[Rule, ...], value)], ensure_ascii=False)


class LinkUrls(Texts):
    """Addresses of one broker."""

    def read(self, raw: object, *, is_text: bool) -> object:
        found = cast(tuple[str, ...], super().read(raw, is_text=is_text))
        for url in found:
            address_of(url)
        return found


def address_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address; of "unix" the path and 0. Raises ValueError."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = ("unix", url.removeprefix("unix:")) if url.startswith("unix:/") else ("mqtt", url)
    if scheme not in (*PORTS, "unix"):
        raise ValueError
    if scheme == "unix":
        return scheme, rest, 0
    if scheme in WEB:  # it may have a path
        rest = rest.partition("/")[0]
        rest += "" if re.search(r":\d+$", rest) else f":{PORTS[scheme]}"
    return (scheme, *split_address(rest.removesuffix("/")))


def path_of(url: str) -> str:
    """The path of an address of WebSocket, and its query if it has one."""
    return "/" + url.partition("://")[2].partition("/")[2]


@dataclass(frozen=True)
class LinkConfig:
    """A link to another broker."""

    name: str
    url: tuple[str, ...]
    topics: tuple[Rule, ...]
    version: str = "5"
    client_id: str = ""
    username: str = ""
    password: str = ""
    password_file: str = ""
    ca_file: str = ""
    certificate: str = ""
    key: str = ""
    insecure: bool = False
    keep_alive: int = 60
    session_expiry: float = DAY
    max_inflight: int = 0
    max_rate: int = 0
    max_bytes_rate: int = 0
    max_queued_messages: int = 0
    max_queued_bytes: int = 0
    queue_policy: str = ""
    retry: float = 30.0
    wanted_only: bool = False
    max_wanted: int = 1000

    @property
    def level(self) -> int:
        """The protocol level."""
        return LEVELS[self.version]

    @property
    def secure(self) -> bool:
        """Whether it uses TLS."""
        return any(address_of(url)[0] in SECURE for url in self.url)


# The settings of a link, with a description of each.
OPTIONS: dict[str, tuple[Kind, str]] = {
    "url": (
        LinkUrls(
            r"\S+",
            'addresses such as "mqtt://broker.example:1883", "mqtts://broker.example:8883" or "wss://broker.example/mqtt"',
        ),
        "addresses of the other broker, tried in turn: mqtt://, mqtts:// (TLS), ws://, wss://, unix:",
    ),
    "topics": (Rules(), 'rules, each "FILTER out|in|both QOS LOCAL-PREFIX REMOTE-PREFIX", as in Mosquitto'),
    "version": (Choice(tuple(LEVELS)), "the version of MQTT"),
    "client_id": (Text(), "at the other broker; empty = one that is unique and stays the same"),
    "username": (Text(), "at the other broker"),
    "password": (Text(), "at the other broker"),
    "password_file": (FilePath(), "file with the password, or a token; read at each connect"),
    "ca_file": (FilePath(), "PEM file with the authorities to trust; empty = those of the system"),
    "certificate": (FilePath(), "PEM file with the certificate of this side"),
    "key": (FilePath(), "PEM file with its private key"),
    "insecure": (Boolean(), "accept a certificate of another name"),
    "keep_alive": (Integer(5, 65_535), "seconds"),
    "session_expiry": (Duration(0, 36_500 * DAY), "seconds that the other broker keeps messages for this side"),
    "max_inflight": (
        Integer(0, 65_535),
        "unacknowledged messages of QoS 1 and 2; 0 = as the other broker says, or 100",
    ),
    "max_rate": (Integer(0, 10_000_000), "messages per second to the other broker; 0 = no limit"),
    "max_bytes_rate": (Integer(0, 1 << 40), "bytes of their packets per second; 0 = no limit"),
    "retry": (Duration(0.1, 3600), "the longest time between attempts to connect"),
    "max_queued_messages": (Integer(0, 1 << 31), "that wait for the other broker; 0 = as limits.max_queued_messages"),
    "max_queued_bytes": (Size(0, 1 << 50), "of these messages; 0 = as limits.max_queued_bytes"),
    "queue_policy": (Choice(("drop-new", "drop-old", "")), "when they are as many; empty = as limits.queue_policy"),
    "wanted_only": (Boolean(), "carry messages that the receiving side wants only; between FlockMQ brokers"),
    "max_wanted": (Integer(1, MAX_WANTED), "wanted filters of each side; with more, all of the rules' topics are"),
}


def link(name: str, options: Mapping[str, object]) -> LinkConfig:
    """A link of a configuration.

    Args:
        name: of the table.
        options: its keys and values.

    Raises:
        ValueError: name or settings are invalid; the text completes "expected ...".
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"a table named by letters, digits, - and _, such as [links.cloud], not {name!r}")
    found: dict[str, Any] = {}
    for option, raw in options.items():
        if option not in OPTIONS:
            raise not_one(f"settings of a link in links.{name}", option, OPTIONS)
        kind, _ = OPTIONS[option]
        try:
            found[option] = kind.read(raw, is_text=False)
        except (ValueError, OverflowError) as error:
            wanted = str(error) if type(error) is ValueError and str(error) else kind.expected
            raise ValueError(f"{wanted} for links.{name}.{option}") from None
    missing = [option for option in ("url", "topics") if not found.get(option)]
    if missing:
        raise ValueError(f"{' and '.join(missing)} in links.{name}")
    made = LinkConfig(name, **found)
    if bool(made.certificate) != bool(made.key):
        raise ValueError(f"certificate and key, both or none of them, in links.{name}")
    if made.password and made.password_file:
        raise ValueError(f"password or password_file, not both, in links.{name}")
    if (made.ca_file or made.certificate or made.insecure) and not made.secure:
        raise ValueError(f"an address mqtts://HOST:PORT in links.{name}, which has settings of TLS")
    if made.wanted_only and (made.level < LEVELS["5"] or made.session_expiry < 1):
        raise ValueError(f'version = "5" and a session_expiry in links.{name}, which has wanted_only')
    return made


class Links(Kind):
    """Tables `[links.NAME]`; as text a JSON object of objects."""

    is_table = True
    expected = 'tables such as [links.cloud], with url = "mqtts://broker.example:8883" and topics = ["sensors/# out 1"]'

    def read(self, raw: object, *, is_text: bool) -> object:
        if is_text and isinstance(raw, str):
            raw = json.loads(raw) if raw.strip() else {}
        raw = raw or {}
        if not isinstance(raw, Mapping) or not all(isinstance(table, Mapping) for table in raw.values()):
            raise ValueError
        return tuple(link(name, table) for name, table in raw.items())

    def write(self, value: object) -> str:
        tables = (f"{each.name} = {_inline(each)}" for each in cast(tuple[LinkConfig, ...], value))
        return "{" + ", ".join(tables) + "}"

    def shown(self, raw: object) -> str:
        return "{...}"  # it may have passwords


def _inline(found: LinkConfig) -> str:
    """The table of a link in one line, without its password."""
    settings = []
    for each in fields(found):
        value = getattr(found, each.name)
        if each.name != "name" and value != each.default:
            shown = json.dumps(HIDDEN) if each.name == "password" else OPTIONS[each.name][0].write(value)
            settings.append(f"{each.name} = {shown}")
    return "{" + ", ".join(settings) + "}"
