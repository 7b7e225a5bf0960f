"""The addresses of clients behind reverse proxies, as `Forwarded` and `X-Forwarded-For` name them.

Each proxy appends the address that it was connected from. From the right, all up to the first address that is no
trusted proxy's is believed; a client can only have written the rest. A proxy passes on the header that it does not
know: if both are there and name different clients, neither is believed.
"""

import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address

ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]+))\s*(?=;|$)', re.IGNORECASE)


def client_of(
    forwarded: Sequence[str], x_forwarded_for: Sequence[str], peer: str, trusts: Callable[[str], bool]
) -> str:
    """The address of the client of a request.

    Args:
        forwarded, x_forwarded_for: values of these headers, in their order.
        peer: address of the connection, or "unix".
        trusts: whether HOST:PORT is a trusted proxy's.
    """
    found = set()
    if forwarded:
        elements = ELEMENT.findall(",".join(forwarded))
        found.add(_last(peer, [_for_of(element.strip()) for element in elements], trusts))
    if x_forwarded_for:
        found.add(_last(peer, ",".join(x_forwarded_for).split(","), trusts))
    return found.pop() if len(found) == 1 else peer


def _for_of(element: str) -> str:
    """The parameter `for` of an element of `Forwarded`; "": it has none."""
    match = FOR.search(element)
    return "" if match is None else match[1] or match[2] or ""


def _last(peer: str, chain: Sequence[str], trusts: Callable[[str], bool]) -> str:
    """The last address of a chain that is no trusted proxy's, or the address before one that can't be read."""
    client = peer
    for text in reversed(chain):
        address = _address(text.strip())
        if not trusts(f"[{client}]:0") or not address:
            break
        client = address
    return client


def _address(text: str) -> str:
    """The IP address in ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT; "": there is none."""
    for host in (text, text.rpartition(":")[0]):
        try:
            found = ip_address(host.strip("[]"))
        except ValueError:
            continue
        return "" if "%" in text else str(getattr(found, "ipv4_mapped", None) or found)
    return ""
