"""Notifications to the service manager that started the node: systemd (units of Type=notify), or a compatible one.

The manager names a datagram socket in NOTIFY_SOCKET; without it nothing is sent. See sd_notify(3). A thread sends: the
queue of a manager that is slow is full at times, and the loop must not wait for it.
"""

import contextlib
import socket
import threading

from .config.load import environment


def notify(state: str) -> None:
    """Send a state such as "READY=1". An unreachable manager is ignored."""
    address = environment().get("NOTIFY_SOCKET", "")
    if address:
        threading.Thread(target=_send, args=(state, address), daemon=True).start()


def _send(state: str, address: str) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
