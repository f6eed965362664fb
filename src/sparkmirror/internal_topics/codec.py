"""JSON documents in records of the control topic: packing, and safe unpacking."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

__all__ = ["MALFORMED", "inflated", "pack", "text", "unpack"]

# Errors of reading fields of the wrong shape (OverflowError: JSON's Infinity as an integer).
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)

_COMPRESS_FROM_BYTES = 16 * 1024
_INFLATED_BYTES_MAX = 64 * 1024 * 1024


def text(key: bytes | None) -> str:
    """``key`` as text; empty for None and for bytes that are not UTF-8."""
    try:
        return (key or b"").decode()
    except UnicodeDecodeError:
        return ""


def pack(document: Mapping[str, object], compress_from_bytes: int = _COMPRESS_FROM_BYTES) -> bytes:
    """``document`` as JSON, zlib-compressed from that size up (16 KiB by default)."""
    value = json.dumps(document, separators=(",", ":")).encode()
    return zlib.compress(value, 1) if len(value) >= compress_from_bytes else value


def inflated(value: bytes | None) -> bytes | None:
    """The JSON text in ``value``, decompressed; None if it is empty or cannot be decompressed.

    Also None if it is longer than 64 MiB.
    """
    if not value:
        return None
    if value[:1] != b"\x78":  # zlib's first byte; JSON objects begin with a brace
        return value
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(value, _INFLATED_BYTES_MAX)
    except zlib.error:
        return None
    return data if inflater.eof else None


def unpack(value: bytes | None) -> dict[str, Any] | None:
    """The JSON object in ``value``; None for anything else. Never raises."""
    data = inflated(value)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
