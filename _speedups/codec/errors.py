"""Errors of the codec.

ValueError
+-- InvalidPacket              a packet that the wire cannot carry (encode)
+-- MalformedPacket            bytes that the standard forbids (decode); .reason, .code
    +-- ProtocolError          each part is well-formed, the whole is not allowed
        +-- UnacceptableProtocol   CONNECT of an unsupported protocol name or level
        +-- PacketTooLarge         longer than the Decoder's limit
"""

from typing import Any


class InvalidPacket(ValueError):
    """A packet that cannot be put on the wire at this level: the caller's fault."""


class MalformedPacket(ValueError):
    """Bytes that violate the standard: the peer's fault; its connection must end.

    Args:
        reason: for the log; it names the statement.
        code: the reason code for a level-5 peer.

    Attributes:
        packets: the packets that `Decoder.feed` decoded from the same bytes before the fault.
    """

    packets: list[Any] | tuple[()] = ()

    def __init__(self, reason: str, code: int = 0x81) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class ProtocolError(MalformedPacket):
    """A well-formed packet that the standard does not allow."""

    def __init__(self, reason: str, code: int = 0x82) -> None:
        super().__init__(reason, code)


class UnacceptableProtocol(ProtocolError):
    """A CONNECT with an unsupported protocol name or level: refused with return code 1 [MQTT-3.1.2-2]."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, 0x84)


class PacketTooLarge(ProtocolError):
    """A frame longer than the receiver accepts."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, 0x95)
