"""The network that an address belongs to: limits hold for the network, since one customer has it."""

from ipaddress import IPv6Address, ip_address


def network_of(address: str) -> str:
    """The host of an address, HOST:PORT or HOST; of IPv6 the network of 64 bits that one customer has."""
    host = address.rpartition(":")[0].strip("[]")
    for text in (host, address):
        try:
            found = ip_address(text)
        except ValueError:
            continue
        if isinstance(found, IPv6Address):
            return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
        return text
    return host or address  # a Unix socket
