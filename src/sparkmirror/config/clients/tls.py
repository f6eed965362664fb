"""TLS settings of one client, from its ``ssl.*`` properties; checked as in Java."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.config.files.values import split_list
from sparkmirror.errors import ConfigError

__all__ = ["Store", "TlsSettings", "openssl_name", "tls_settings"]

STORE_TYPES = ("JKS", "PKCS12", "PEM")
VERSIONS = ("TLSv1.2", "TLSv1.3")
_OLD_VERSIONS = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})
_PROTOCOLS = ("TLS", "TLSv1.3", "TLSv1.2")
_TLS13_SUITES = frozenset(
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


@dataclass(frozen=True, slots=True)
class Store:
    """A truststore or keystore: a file, or PEM text in the property itself.

    ``location`` is empty for PEM text. ``certificates`` and ``key`` are PEM text.
    """

    kind: str
    location: str = ""
    password: str | None = field(default=None, repr=False)
    certificates: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Settings of a TLS connection.

    ``truststore`` None: the machine's certificates. ``keystore`` None: no client certificate.
    ``versions``: TLSv1.2, TLSv1.3 or both. ``ciphers``: OpenSSL's cipher list, for TLS 1.2 only;
    empty: OpenSSL's default. ``suites``: all names that may be negotiated; empty: any. ``crl``:
    path of the file with revocation lists; empty: no check. ``level``: OpenSSL's security level, 1
    or 2.
    """

    truststore: Store | None = None
    keystore: Store | None = None
    check_host: bool = True
    versions: tuple[str, ...] = VERSIONS
    ciphers: str = ""
    suites: frozenset[str] = frozenset()
    crl: str = ""
    level: int = 2


def tls_settings(properties: Mapping[str, str], *, where: str) -> TlsSettings:
    """``ssl.*`` in ``properties`` as settings; absent keys have Java's defaults.

    Raises ConfigError, with ``where``, for settings that contradict each other or are unsupported.
    """
    reader = _Reader(properties, where)
    algorithm = reader.text("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in ("", "https"):
        raise reader.error(
            f"ssl.endpoint.identification.algorithm={algorithm} is not known.",
            "Write https, or nothing for no check of the host name.",
        )
    if reader.text("ssl.engine.factory.class"):
        raise reader.error(
            "ssl.engine.factory.class names Java code, which cannot run here.",
            "Remove it: truststores and keystores of types JKS, PKCS12 and PEM are built in.",
        )
    versions, ciphers, suites = _ciphers(reader, _versions(reader))
    return TlsSettings(
        truststore=_truststore(reader),
        keystore=_keystore(reader),
        check_host=bool(algorithm),
        versions=versions,
        ciphers=ciphers,
        suites=suites,
        crl=reader.text("ssl.crl.location"),
        level=_level(reader),
    )


class _Reader:
    def __init__(self, properties: Mapping[str, str], where: str) -> None:
        self._properties = properties
        self._where = where

    def text(self, key: str, default: str = "") -> str:
        return self._properties.get(key, default).strip()

    def secret(self, key: str) -> str | None:
        """The trimmed value, as Java trims values of type PASSWORD; ``None`` if it is not set."""
        value = self._properties.get(key)
        return None if value is None else value.strip()

    def error(self, what: str, do: str) -> ConfigError:
        return ConfigError(what, where=self._where, do=do)

    def store_type(self, key: str) -> str:
        kind = self.text(key) or "JKS"
        if kind.upper() not in STORE_TYPES:
            raise self.error(
                f"{key}={kind} is not supported.", f"Convert it to one of {', '.join(STORE_TYPES)}."
            )
        return kind.upper()


def _level(reader: _Reader) -> int:
    level = reader.text("ssl.security.level") or "2"
    if level not in ("1", "2"):
        raise reader.error(
            f"ssl.security.level={level} is not supported.",
            "Write 2, or 1 for brokers with short keys or old suites.",
        )
    return int(level)


def _versions(reader: _Reader) -> tuple[str, ...]:
    enabled = split_list(reader.text("ssl.enabled.protocols", ",".join(VERSIONS)))
    unknown = [name for name in enabled if name not in VERSIONS and name not in _OLD_VERSIONS]
    if unknown:
        raise reader.error(
            f"ssl.enabled.protocols names {', '.join(unknown)}, which is not a TLS version.",
            f"Choose from: {', '.join(VERSIONS)}.",
        )
    protocol = reader.text("ssl.protocol") or "TLSv1.3"
    if protocol not in _PROTOCOLS:
        raise reader.error(
            f"ssl.protocol={protocol} is not supported.", f"Choose from: {', '.join(_PROTOCOLS)}."
        )
    # Kafka's documentation: with ssl.protocol=TLSv1.2, clients never use TLSv1.3.
    lost = {"TLSv1.3"} if protocol == "TLSv1.2" else set()
    versions = tuple(
        name for name in VERSIONS if name in (enabled or VERSIONS) and name not in lost
    )
    if not versions:
        raise reader.error(
            "ssl.enabled.protocols names no TLS version that is still safe.",
            f"Name at least one of {', '.join(VERSIONS)}.",
        )
    return versions


def _ciphers(
    reader: _Reader, versions: tuple[str, ...]
) -> tuple[tuple[str, ...], str, frozenset[str]]:
    """(remaining TLS versions, OpenSSL's cipher list, names that may be negotiated)."""
    named = split_list(reader.text("ssl.cipher.suites"))
    if not named:
        return versions, "", frozenset()
    translated = {name: openssl_name(name) for name in named}
    unknown = [name for name, ours in translated.items() if not ours]
    if len(unknown) == len(named):
        raise reader.error(
            f"ssl.cipher.suites names only unknown suites: {', '.join(unknown)}.",
            "Name suites as Java does, such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384.",
        )
    ours = [name for name in translated.values() if name]
    old = [name for name in ours if name not in _TLS13_SUITES]
    # A list without suites of a version excludes that version.
    possible = {"TLSv1.2": bool(old), "TLSv1.3": len(old) < len(ours)}
    left = tuple(version for version in versions if possible[version])
    if not left:
        raise reader.error(
            "ssl.cipher.suites has no suite for the TLS versions in ssl.enabled.protocols.",
            "Name suites of these versions.",
        )
    return left, ":".join(old), frozenset(ours)


def _truststore(reader: _Reader) -> Store | None:
    kind = reader.store_type("ssl.truststore.type")
    location = reader.text("ssl.truststore.location")
    password = reader.secret("ssl.truststore.password")
    text = reader.secret("ssl.truststore.certificates") or ""
    if text:
        if kind != "PEM":
            raise _only_pem(reader, "ssl.truststore.certificates", "ssl.truststore.type", kind)
        if location:
            raise _both(reader, "ssl.truststore.location", "ssl.truststore.certificates")
    _check_password(reader, kind, location, password, "ssl.truststore")
    if not text and not location:
        return None
    return Store(kind, location, password, certificates=text)


def _keystore(reader: _Reader) -> Store | None:
    kind = reader.store_type("ssl.keystore.type")
    location = reader.text("ssl.keystore.location")
    password = reader.secret("ssl.keystore.password")
    chain = reader.secret("ssl.keystore.certificate.chain") or ""
    key = reader.secret("ssl.keystore.key") or ""
    key_password = reader.secret("ssl.key.password")
    if key or chain:
        given, missing = (
            ("ssl.keystore.key", "ssl.keystore.certificate.chain")
            if key
            else ("ssl.keystore.certificate.chain", "ssl.keystore.key")
        )
        if kind != "PEM":
            raise _only_pem(reader, given, "ssl.keystore.type", kind)
        if location:
            raise _both(reader, "ssl.keystore.location", given)
        if not (key and chain):
            raise reader.error(f"{given} is set without {missing}.", f"Add {missing}.")
    _check_password(reader, kind, location, password, "ssl.keystore")
    if not location and not key:
        return None
    if kind != "PEM" and password is None:
        raise reader.error(
            "ssl.keystore.location is set without ssl.keystore.password.",
            "Add ssl.keystore.password.",
        )
    return Store(kind, location, password, chain, key, key_password)


def _check_password(
    reader: _Reader, kind: str, location: str, password: str | None, prefix: str
) -> None:
    if password is None:
        return
    if kind == "PEM":
        hint = "; the key's own password is ssl.key.password" if "key" in prefix else ""
        raise reader.error(
            f"{prefix}.password is set, but a PEM store has no password.",
            f"Remove {prefix}.password{hint}.",
        )
    if not location:
        raise reader.error(
            f"{prefix}.password is set without {prefix}.location.", f"Add {prefix}.location."
        )


def _only_pem(reader: _Reader, key: str, type_key: str, kind: str) -> ConfigError:
    return reader.error(
        f"{key} contains PEM text, but {type_key} is {kind}.", f"Set {type_key}=PEM."
    )


def _both(reader: _Reader, one: str, other: str) -> ConfigError:
    return reader.error(f"both {one} and {other} are set.", "Keep one of the two.")


def openssl_name(suite: str) -> str:
    """OpenSSL's name for Java's name of a cipher suite; ``""`` if it is unknown."""
    if suite in _TLS13_SUITES:
        return suite
    match = _SUITE.fullmatch(suite)
    cipher = _CIPHERS.get(match["cipher"]) if match else None
    if match is None or cipher is None:
        return ""
    exchange = match["exchange"].replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange}-{cipher}"
