"""Reads Java keystores of the old type JKS.

The format and its key protection are those of ``sun.security.provider.JavaKeyStore`` and
``KeyProtector``: entries in big-endian fields, a SHA-1 over password and content at the end, keys
encrypted with a SHA-1 key stream. No maintained Python library reads it; newer stores are PKCS12.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field

__all__ = ["JksEntry", "StoreError", "WrongPassword", "is_jks", "read_jks"]

_MAGIC = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC = b"\xce\xce\xce\xce"
_SALT = b"Mighty Aphrodite"
_DIGEST_BYTES = 20
_KEY, _CERTIFICATE = 1, 2
_SEQUENCE, _OCTETS = 0x30, 0x04


class StoreError(Exception):
    """A store that cannot be read; the text says why, without secrets."""


class WrongPassword(StoreError):
    """The password does not open the store, or a key in it."""


@dataclass(frozen=True, slots=True)
class JksEntry:
    """``key``: PKCS#8 DER of a private key, empty for a trusted certificate. ``chain``: DER."""

    alias: str
    chain: tuple[bytes, ...]
    key: bytes = field(default=b"", repr=False)


def is_jks(data: bytes) -> bool:
    """Whether ``data`` is a keystore of type JKS or JCEKS."""
    return data[:4] in (_MAGIC, _JCEKS_MAGIC)


def read_jks(
    data: bytes, password: str | None, *, key_password: str | None = None, keys: bool = True
) -> list[JksEntry]:
    """All entries. Without a ``password`` the content is not checked, as in Java.

    ``key_password``: of the keys, by default the store's. ``keys``: False skips the keys.
    Raises `WrongPassword` or `StoreError`.
    """
    if data[:4] == _JCEKS_MAGIC:
        raise StoreError("it is of type JCEKS, which is not supported (convert it to PKCS12)")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        found = hashlib.sha1(_utf16(password) + _SALT + body).digest()  # noqa: S324 (the format's)
        if not hmac.compare_digest(found, digest):
            raise WrongPassword("its password is wrong, or the file is damaged")
    try:
        return _entries(_Cursor(body), key_password or password or "", keys=keys)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise StoreError("the file is damaged") from error


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 4

    def number(self, code: str) -> int:
        value: int = struct.unpack_from(">" + code, self.data, self.at)[0]
        self.at += struct.calcsize(code)
        return value

    def block(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self) -> str:
        return self.block(self.number("H")).decode("utf-8", errors="replace")


def _entries(cursor: _Cursor, key_password: str, *, keys: bool) -> list[JksEntry]:
    version = cursor.number("I")
    if version not in (1, 2):
        raise StoreError(f"its version {version} is unknown")
    entries = []
    for _ in range(cursor.number("I")):
        tag = cursor.number("I")
        alias = cursor.text()
        cursor.number("Q")  # creation time
        if tag == _KEY:
            hidden = cursor.block(cursor.number("I"))
            chain = tuple(_certificate(cursor, version) for _ in range(cursor.number("I")))
            key = _unhide(hidden, key_password, alias) if keys else b""
            entries.append(JksEntry(alias, chain, key))
        elif tag == _CERTIFICATE:
            entries.append(JksEntry(alias, (_certificate(cursor, version),)))
        else:
            raise StoreError(f"it holds an entry of the unknown kind {tag}")
    return entries


def _certificate(cursor: _Cursor, version: int) -> bytes:
    if version == 2:
        cursor.text()  # the certificate's type: always X.509
    return cursor.block(cursor.number("I"))


def _unhide(hidden: bytes, password: str, alias: str) -> bytes:
    """PKCS#8 from an EncryptedPrivateKeyInfo with Sun's own protection."""
    secret = _utf16(password)
    content = _octets(hidden)
    salt, mixed, check = (
        content[:_DIGEST_BYTES],
        content[_DIGEST_BYTES:-_DIGEST_BYTES],
        content[-_DIGEST_BYTES:],
    )
    stream, last = bytearray(), salt
    while len(stream) < len(mixed):
        last = hashlib.sha1(secret + last).digest()  # noqa: S324 (the format's)
        stream += last
    key = bytes(one ^ other for one, other in zip(mixed, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):  # noqa: S324
        raise WrongPassword(f"the password of the key '{alias}' is wrong")
    return key


def _octets(data: bytes) -> bytes:
    """The octet string of ``SEQUENCE { SEQUENCE {...}, OCTET STRING }``."""
    tag, at, _ = _der(data, 0)
    inner, begin, end = _der(data, at)
    octets, start, stop = _der(data, end)
    if (tag, inner, octets) != (_SEQUENCE, _SEQUENCE, _OCTETS) or begin > end:
        raise StoreError("a key in it has an unknown format")
    return data[start:stop]


def _der(data: bytes, at: int) -> tuple[int, int, int]:
    """(tag, begin, end) of the value that starts at ``at``."""
    tag, size = data[at], data[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[at : at + count], "big")
        at += count
    if at + size > len(data):
        raise IndexError
    return tag, at, at + size
