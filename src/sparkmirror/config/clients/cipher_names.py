"""Names of cipher suites: Java's (IANA's) to OpenSSL's, by rule instead of by table."""

from __future__ import annotations

import re

__all__ = ["TLS13_SUITES", "openssl_name"]

TLS13_SUITES = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
_SUITE = re.compile(
    r"(?:TLS|SSL)_(?P<exchange>RSA|DHE_RSA|DHE_DSS|ECDHE_RSA|ECDHE_ECDSA)_WITH_(?P<cipher>\w+)"
)
_CIPHERS = {
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    **{
        f"AES_{bits}_{mode}{mac}": f"AES{bits}-{ours}{mac}"
        for bits in (128, 256)
        for mode, ours, mac in (
            ("GCM_", "GCM-", "SHA256" if bits == 128 else "SHA384"),
            ("CBC_", "", "SHA"),
            ("CBC_", "", "SHA256"),
            ("CBC_", "", "SHA384"),
        )
    },
}


def openssl_name(suite: str) -> str:
    """OpenSSL's name for a suite that Java names; ``""`` when it is not known."""
    if suite in TLS13_SUITES:
        return suite
    match = _SUITE.fullmatch(suite)
    cipher = _CIPHERS.get(match["cipher"]) if match else None
    if match is None or cipher is None:
        return ""
    exchange = match["exchange"].replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange}-{cipher}"
