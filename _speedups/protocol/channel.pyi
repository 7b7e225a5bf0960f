from typing import Any

from ..codec.packets import Connect
from ..routing.router import Router
from ..session.session import Session
from ..session.turn import AckReason, Outlet
from .close_reasons import CloseReason
from .terms import Terms

STATE_TOPIC: bytes

class Channel(Outlet):
    session: Session | None
    claimed: Session | None
    connect: Connect | None
    connect_properties: dict[str, Any] | None
    identity: Any
    authentication: Any
    fault: CloseReason | None
    bridge: bool
    maximum_qos: int
    def __init__(self, router: Router, handler: Any) -> None: ...
    @property
    def protocol_level(self) -> int: ...
    @property
    def wants_reasons(self) -> bool: ...
    @property
    def maximum_packet_size(self) -> int: ...
    @property
    def max_packet_size(self) -> int: ...
    @property
    def window(self) -> int: ...
    def limit_output(self, maximum_packet_size: int) -> None: ...
    def accept(self, session: Session, level: int, keep_alive: float, terms: Terms) -> None: ...
    def detach(self) -> Session | None: ...
    def pause(self) -> None: ...
    def publish_as(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        packet_id: int,
        dup: bool,
        properties: bytes = b"",
        expires: int = 0,
    ) -> None: ...
    def drop_publish(
        self, topic: bytes, payload: bytes, qos: int, packet_id: int, reason_code: int, why: AckReason
    ) -> None: ...
    def authenticate(self) -> None: ...
    def ignore(self) -> None: ...
    def reject(self, reason: CloseReason) -> None: ...
