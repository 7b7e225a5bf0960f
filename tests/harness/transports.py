"""A node that speaks all transports, and how tests connect to it."""

import socket
import ssl
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.harness.broker_process import BrokerProcess
from tests.harness.certificates import Authority, Pair
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient

URLS = "mqtts://127.0.0.1:0,ws://127.0.0.1:0,wss://127.0.0.1:0"


def tls_settings(pair: Pair, urls: str = URLS, name: str = "open", **tls: object) -> dict[str, object]:
    """Settings of a listener; `tls` are keys of its TLS."""
    keys = {"certificate": pair.cert, "key": pair.key, **tls}
    return {f"listeners.{name}.listen": urls, **{f"listeners.{name}.tls.{key}": value for key, value in keys.items()}}


def ports(broker: Any, name: str = "open") -> dict[str, int]:
    """The ports of a listener, by their protocols."""
    urls = broker.wait_for_log("^listener$", name=name)["listen"].split(", ")
    return {url.partition(":")[0]: int(url.rpartition(":")[2]) for url in urls if "//" in url}


def trusting(authority: Authority | None, pair: Pair | None = None) -> ssl.SSLContext:
    """A client's context: the authority that it trusts (None: any), and its certificate."""
    context = ssl.create_default_context(cafile=authority.ca if authority else None)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


def tls_socket(port: int, context: ssl.SSLContext, name: str = "localhost", **more: Any) -> ssl.SSLSocket:
    """A socket after its handshake. Raises ssl.SSLError."""
    plain = socket.create_connection(("127.0.0.1", port), DEADLINE)
    try:
        return context.wrap_socket(plain, server_hostname=name, **more)
    except BaseException:
        plain.close()
        raise


def tls_client(port: int, context: ssl.SSLContext, client_id: str | None = "lamp", **connect: Any) -> SocketClient:
    """A client over TLS."""
    return SocketClient(port, client_id, connected=tls_socket(port, context), **connect)


def websocket(port: int, context: ssl.SSLContext | None = None, path: str = "/mqtt", **more: Any) -> ClientConnection:
    """A WebSocket after its handshake.

    With TLS 1.2: the library reads and writes in two threads. With TLS 1.3 both take the ticket that follows the
    handshake, and sometimes the reply of the server is lost.
    """
    if context is not None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    url = f"{'wss' if context else 'ws'}://127.0.0.1:{port}{path}"
    return connect(url, **{"ssl": context, "subprotocols": ["mqtt"], "compression": None, "proxy": None, **more})


def make_node(directory: Path, settings: dict[str, object], **more: Any) -> BrokerProcess:
    """A node that keeps nothing on disk, started."""
    directory.mkdir(exist_ok=True)
    quiet = {"log.level": "debug", "mqtt.sys_interval": 0}
    return BrokerProcess(directory, "memory", {**quiet, **settings}, **more).start()
