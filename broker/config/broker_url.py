"""The URL of a broker that a client or a link connects to: its schemes, their ports, the path of WebSocket."""

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}  # unless the URL has one
SECURE = ("mqtts", "wss")
WEB = ("ws", "wss")
WEB_PATH = "/mqtt"  # as brokers have it


def port_of(*, is_web: bool, is_secure: bool) -> int:
    """The port of a transport."""
    return PORTS[("ws" if is_web else "mqtt") + "s" * is_secure]
