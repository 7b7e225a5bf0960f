"""The network that an address belongs to: what limits hold for, since one customer has it."""

from ipaddress import IPv6Address, ip_address


def network_of(address: str) -> str:
    """The host of an address, without its port; of IPv6 the network of 64 bits that one customer has."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ip_address(host)
    except ValueError:  # a Unix socket
        return host or address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
    return host
