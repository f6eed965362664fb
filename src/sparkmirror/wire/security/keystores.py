"""Reads truststores and keystores of any type as PEM, for OpenSSL.

As in Java, stores of types JKS and PKCS12 are recognised by content: each type reads both.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from sparkmirror.config.clients.tls import Store
from sparkmirror.errors import ConfigError
from sparkmirror.wire.security.jks import StoreError, WrongPassword, is_jks, read_jks

__all__ = ["Identity", "read_identity", "read_trusted"]

log = logging.getLogger(__name__)

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(
    rb"-----BEGIN ((?:[A-Z]+ )*)PRIVATE KEY-----.+?-----END \1PRIVATE KEY-----", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's certificate chain, its own certificate first, and its key, unencrypted; both PEM.

    ``begins``, ``expires``: validity of its own certificate.
    """

    chain: bytes
    key: bytes = field(repr=False)
    begins: datetime
    expires: datetime


def read_trusted(store: Store, where: str) -> bytes:
    """The certificates of a truststore as PEM, at least one. Raises ConfigError."""
    try:
        certificates = _trusted(store)
    except (StoreError, OSError) as error:
        raise _unreadable("truststore", store, error, where) from error
    if not certificates:
        raise _unreadable("truststore", store, StoreError("it holds no certificate"), where)
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def read_identity(store: Store, where: str) -> Identity:
    """The first private key of a keystore with its chain.

    Raises ConfigError, also for a certificate that is not valid now.
    """
    try:
        key, chain = _key_and_chain(store)
    except (StoreError, OSError) as error:
        raise _unreadable("keystore", store, error, where) from error
    own = chain[0]
    now = datetime.now(UTC)
    for wrong, what in (
        (now > own.not_valid_after_utc, f"expired on {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"),
        (now < own.not_valid_before_utc,
         f"is not valid before {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"),
    ):  # fmt: skip
        if wrong:
            raise ConfigError(
                f"the client certificate in the keystore {_name(store)} {what}.",
                where=where,
                do="Put a certificate there that is valid now; it is read at the next connection.",
            )
    return Identity(
        b"".join(one.public_bytes(Encoding.PEM) for one in chain),
        key,
        own.not_valid_before_utc,
        own.not_valid_after_utc,
    )


def _name(store: Store) -> str:
    return store.location or "in the properties"


def _unreadable(kind: str, store: Store, error: Exception, where: str) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    wrong = isinstance(error, WrongPassword)
    if wrong and "key" in str(error):
        do = "Check ssl.key.password."
    elif wrong:
        do = f"Check ssl.{kind}.password."
    else:
        do = f"Check ssl.{kind}.location and ssl.{kind}.type."
    return ConfigError(f"the {kind} {_name(store)} cannot be used: {reason}.", where=where, do=do)


def _content(store: Store) -> bytes:
    if store.location:
        return Path(store.location).read_bytes()
    # A properties file may hold the text in one line, with \n written out by providers.
    return f"{store.key}\n{store.certificates}".encode()


def _trusted(store: Store) -> list[x509.Certificate]:
    data = _content(store)
    if store.kind == "PEM":
        return _pem_certificates(data)
    if is_jks(data):
        found = read_jks(data, store.password, keys=False)
        return [_certificate(entry.chain[0]) for entry in found if entry.chain]
    content = _pkcs12(data, store.password)
    certificates = [each.certificate for each in content.additional_certs]
    if content.cert is None:
        return certificates
    # Java trusts the certificate of a key, but not its chain, which is meant for the peer. An
    # authority that was also imported by itself is in the store twice.
    own, *chain = _ordered(content.cert.certificate, certificates)
    for issuer in chain:
        certificates.remove(issuer)
    left_out = [issuer for issuer in chain if issuer not in certificates]
    if left_out:
        log.warning(
            "the truststore %s holds a private key; as in Java, this does not make %s of its chain "
            "trusted. To trust it, import it by itself (keytool -importcert), or name a store "
            "without keys in ssl.truststore.location.",
            _name(store),
            ", ".join(each.subject.rfc4514_string() for each in left_out),
        )
    return [own, *certificates]


def _key_and_chain(store: Store) -> tuple[bytes, list[x509.Certificate]]:
    data = _content(store)
    if store.kind == "PEM":
        match = _KEY.search(data)
        if match is None:
            raise StoreError("it holds no private key (PEM, PKCS#8)")
        chain = _pem_certificates(data)
        return _own_first(_pem_key(match.group(), store.key_password), chain)
    if is_jks(data):
        found = read_jks(data, store.password, key_password=store.key_password)
        for entry in found:
            if entry.key:
                chain = [_certificate(der) for der in entry.chain]
                return _own_first(_der_key(entry.key), chain)
        raise StoreError("it holds no private key")
    content = _pkcs12(data, store.password)
    if content.key is None or content.cert is None:
        raise StoreError("it holds no private key")
    others = [each.certificate for each in content.additional_certs]
    return _own_first(_plain(content.key), _ordered(content.cert.certificate, others))


def _plain(key: object) -> bytes:
    text: bytes = key.private_bytes(  # type: ignore[attr-defined]
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    return text


def _own_first(key: bytes, chain: list[x509.Certificate]) -> tuple[bytes, list[x509.Certificate]]:
    if not chain:
        raise StoreError("it holds no certificate for its key")
    return key, chain


def _ordered(own: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """``own``, its issuer, its issuer's issuer …, as a peer expects; others are left out."""
    chain, left = [own], list(others)
    while True:
        issuer = next((each for each in left if each.subject == chain[-1].issuer), None)
        if issuer is None or issuer.subject == chain[-1].subject:
            return chain
        chain.append(issuer)
        left.remove(issuer)


def _pem_key(text: bytes, password: str | None) -> bytes:
    encrypted = b"ENCRYPTED" in text
    if encrypted and password is None:
        raise WrongPassword("its key is encrypted, and no password is given")
    try:
        return _plain(
            load_pem_private_key(
                text, password.encode() if encrypted and password is not None else None
            )
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if encrypted:
            raise WrongPassword("the password of its key is wrong") from error
        raise StoreError("its private key cannot be read") from error


def _der_key(der: bytes) -> bytes:
    try:
        return _plain(load_der_private_key(der, None))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StoreError("its private key cannot be read") from error


def _pem_certificates(data: bytes) -> list[x509.Certificate]:
    try:
        return [x509.load_pem_x509_certificate(text) for text in _CERTIFICATE.findall(data)]
    except ValueError as error:
        raise StoreError("a certificate in it cannot be read") from error


def _certificate(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as error:
        raise StoreError("a certificate in it cannot be read") from error


def _pkcs12(data: bytes, password: str | None):  # type: ignore[no-untyped-def]
    if not data.startswith(b"\x30"):
        kind = "PEM text" if b"-----BEGIN" in data else "neither JKS nor PKCS12"
        raise StoreError(f"its content is {kind}")
    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except UnsupportedAlgorithm as error:
        raise StoreError("its private key or its encryption is not supported") from error
    except ValueError as error:
        if "password" in str(error).lower() or "mac" in str(error).lower():
            raise WrongPassword("its password is wrong") from error
        raise StoreError("the file is damaged, or its encryption is not supported") from error
