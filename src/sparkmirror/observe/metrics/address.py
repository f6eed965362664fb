"""Resolves the ``HOST:PORT`` to listen on, and whether other machines could reach it."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from sparkmirror.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """A numeric address. ``loopback``: only this machine can reach it."""

    family: socket.AddressFamily
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback


_PORT = re.compile(r"[0-9]{1,5}")


def resolve(listen: str, where: str) -> Address:
    """Resolve ``HOST:PORT``, ``[IPv6]:PORT`` or ``PORT`` (on 127.0.0.1). Raises `ConfigError`.

    If a name has several addresses, only the first one is used.
    """
    host, _, port = listen.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not _PORT.fullmatch(port) or int(port) > 65_535 or listen.startswith(":"):
        raise ConfigError(
            f"{listen!r} is not an address to listen on.",
            where=where,
            do="Write HOST:PORT, for example 127.0.0.1:9404; port 0 takes any free port.",
        )
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the host of {listen!r} cannot be found.",
            where=where,
            do="Write an address of this machine, for example 127.0.0.1:9404.",
        ) from error
    family, _, _, _, place = found[0]
    return Address(family, str(place[0]), int(port))
