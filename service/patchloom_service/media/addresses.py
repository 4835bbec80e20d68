"""Which addresses and hosts an URL may lead to."""

import ipaddress
from collections.abc import Sequence

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
HTTPS_PORT = 443


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, whatever way it is wrapped in IPv6."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None or ip.teredo is not None or ip in _LOCAL_NAT64:
            return False
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(inner)
        if ip.is_site_local:
            return False
    return _is_public(ip)


def _is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    special = ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback or ip.is_link_local
    return ip.is_global and not special


def is_allowed(host: str, port: int, allowed: Sequence[str]) -> bool:
    """Whether an entry names the host, or with a leading dot a domain above it.

    Ports other than 443 count only where the entry names them: `host:8443`.
    """
    host = host.lower().rstrip(".")
    for entry in allowed:
        name, colon, number = entry.lower().rpartition(":")
        name, wanted = (name, number) if colon and number.isdigit() else (entry.lower(), str(HTTPS_PORT))
        matches = host.endswith(name) if name.startswith(".") else host == name
        if matches and wanted == str(port):
            return True
    return False
