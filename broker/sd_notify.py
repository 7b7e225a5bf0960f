"""What a node tells the service manager that started it: systemd (units of Type=notify), or what speaks as it does.

The manager names a datagram socket in NOTIFY_SOCKET; without it there is nobody to tell. See sd_notify(3).
"""

import contextlib
import socket

from broker.config.load import environment


def tell(state: str) -> None:
    """Send a state such as "READY=1". A manager that can't be reached is no reason to stop."""
    address = environment().get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
