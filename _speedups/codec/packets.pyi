from typing import Any, ClassVar, TypeAlias, final

Properties: TypeAlias = dict[str, Any]

@final
class Connect:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    client_id: str
    clean_start: bool
    keep_alive: int
    username: str | None
    password: bytes | None
    will_topic: str | None
    will_payload: bytes
    will_qos: int
    will_retain: bool
    will_properties: Properties
    properties: Properties
    protocol_level: int
    bridge: bool
    def __init__(
        self,
        client_id: str = "",
        clean_start: bool = True,
        keep_alive: int = 60,
        username: str | None = None,
        password: bytes | None = None,
        will_topic: str | None = None,
        will_payload: bytes = b"",
        will_qos: int = 0,
        will_retain: bool = False,
        will_properties: Properties | None = None,
        properties: Properties | None = None,
        protocol_level: int = 4,
        bridge: bool = False,
    ) -> None: ...

@final
class Connack:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    session_present: bool
    reason_code: int
    properties: Properties
    def __init__(
        self, session_present: bool = False, reason_code: int = 0, properties: Properties | None = None
    ) -> None: ...

@final
class Publish:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties
    def __init__(
        self,
        topic_name: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties | None = None,
    ) -> None: ...

class _Ack:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    packet_id: int
    reason_code: int
    properties: Properties
    def __init__(self, packet_id: int, reason_code: int = 0, properties: Properties | None = None) -> None: ...

@final
class Puback(_Ack): ...

@final
class Pubrec(_Ack): ...

@final
class Pubrel(_Ack): ...

@final
class Pubcomp(_Ack): ...

@final
class Subscribe:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    packet_id: int
    topic_filters: list[tuple[str, int]]
    properties: Properties
    def __init__(
        self, packet_id: int, topic_filters: list[tuple[str, int]], properties: Properties | None = None
    ) -> None: ...

@final
class Suback:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    packet_id: int
    reason_codes: list[int]
    properties: Properties
    def __init__(self, packet_id: int, reason_codes: list[int], properties: Properties | None = None) -> None: ...

@final
class Unsubscribe:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    packet_id: int
    topic_filters: list[str]
    properties: Properties
    def __init__(self, packet_id: int, topic_filters: list[str], properties: Properties | None = None) -> None: ...

@final
class Unsuback:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    packet_id: int
    reason_codes: list[int]
    properties: Properties
    def __init__(
        self, packet_id: int, reason_codes: list[int] | None = None, properties: Properties | None = None
    ) -> None: ...

@final
class Pingreq:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]

@final
class Pingresp:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]

@final
class Disconnect:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    reason_code: int
    properties: Properties
    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None: ...

@final
class Auth:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    reason_code: int
    properties: Properties
    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None: ...

Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
