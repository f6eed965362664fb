"""Limits on what kafka-python decodes of brokers' responses, which are not trusted with CPU time.

kafka-python compiles a decoder per message. Two of its parts need other code:

* a varint has no maximum length, and each further byte costs more than the one before;
* a structure with tags copies the rest of the response, so many of them take quadratic time.

`guard_decoding` replaces these parts, because kafka-python has no other place for a limit: it
compiles each decoder from the parts of its fields. The rest is limited by the size of a response:
each element takes at least one byte, and becomes an object of some hundred bytes. The replaced
parts are private to kafka-python. So it is checked before that they are the known ones, and
afterwards that a decoder refuses what it must.
"""

from __future__ import annotations

import inspect
import io
import struct
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateResponse
from kafka.protocol.schemas.fields.codecs.types import UnsignedVarInt32
from kafka.protocol.schemas.fields.struct import StructField

from sparkmirror.errors import MachineError

__all__ = ["FRAME_BYTES_MAX", "UNREADABLE", "guard_decoding"]

# A Metadata response for a million partitions is smaller, and so are the driver's Fetch responses.
FRAME_BYTES_MAX = 64 << 20
_VARINT_BYTES_MAX = 5
_TAGS = "_emit_tagged_decode"

# What kafka-python raises for bytes that are not a response of the expected kind.
UNREADABLE = (
    *(ValueError, struct.error, IndexError, KeyError, TypeError, AttributeError),
    *(OverflowError, MemoryError, EOFError, AssertionError),
)


def guard_decoding() -> None:
    """Make decoders that are compiled from now on check what they read. Idempotent.

    Raises `MachineError` if the installed kafka-python decodes in another way.
    """
    for owner, name, count in ((UnsignedVarInt32, "emit_decode_from", 3), (StructField, _TAGS, 5)):
        found = getattr(owner, name, None)
        if not callable(found) or len(inspect.signature(found).parameters) != count:
            raise _another_kafka_python()
    UnsignedVarInt32.emit_decode_from = staticmethod(_emit_varint)
    StructField._emit_tagged_decode = _emit_tags
    _check(SaslAuthenticateResponse._struct.compiled_decode_from)


def _check(compiled: Callable[..., Any]) -> None:
    """Decode a valid SaslAuthenticate response and two hostile ones with a new decoder.

    ``compiled`` compiles it. Decoders that exist already are not affected: other users of
    kafka-python in this process may have theirs.
    """

    class Response:
        """The content of a response; kafka-python compiles one decoder per class."""

    head, tail = bytes(2), b"\1" + bytes(8)
    endless, beyond = head + b"\xff" * 5 + b"\1", head + b"\0" + tail + b"\1\0\x7f"
    try:
        decode = compiled(2, compact=True, tagged=True, data_class=Response)
        whole, _ = decode(memoryview(head + b"\0" + tail + b"\0"), 0)
        read = (whole.error_code, whole.error_message, whole.session_lifetime_ms) == (0, None, 0)
        known = read and _refuses(decode, endless) and _refuses(decode, beyond)
    except UNREADABLE as error:
        raise _another_kafka_python() from error
    if not known:
        raise _another_kafka_python()


def _refuses(decode: Callable[..., Any], data: bytes) -> bool:
    try:
        decode(memoryview(data), 0)
    except ValueError:
        return True
    return False


def _another_kafka_python() -> MachineError:
    return MachineError(
        f"kafka-python {version('kafka-python')} decodes responses in another way than the "
        "kafka-python that this sparkmirror is made for.",
        do="Install the version that it requires: pip install kafka-python==3.0.12.",
    )


def _emit_varint(ctx: Any, name: str, indent: str) -> None:
    """Emit code that reads a varint at ``pos``; the usual single byte needs no call."""
    ctx.globs["_varint"] = _varint
    ctx.emit(indent, f"{name} = data[pos]")
    ctx.emit(indent, f"if {name} < 128: pos += 1")
    ctx.emit(indent, f"else: {name}, pos = _varint(data, pos)")


def _varint(data: memoryview, pos: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = data[pos + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, pos + index + 1
    raise ValueError("a number takes more than five bytes")


def _emit_tags(self: Any, ctx: Any, name: str, indent: str, version: int) -> None:
    """Emit code that reads the tags of a structure."""
    fields, tags = ctx.next_var("tf"), ctx.next_var("tags")
    ctx.globs[fields] = self.tagged_fields(version)
    ctx.globs["_tags"] = _tags
    ctx.emit(indent, f"{tags}, pos = _tags(data, pos, {fields}, {version})")
    ctx.emit(indent, f"for _tag, _value in {tags}.items():")
    ctx.emit(indent, f"    if {name}.tags is None: {name}.tags = set()")
    ctx.emit(indent, f"    {name}.tags.add(_tag)")
    ctx.emit(indent, f"    setattr({name}, _tag, _value)")


def _tags(data: memoryview, pos: int, fields: Any, version: int) -> tuple[dict[str, Any], int]:
    """The known tags at ``pos`` by name, and the end of all tags; unknown ones are left out."""
    found = {}
    count, pos = _varint(data, pos)
    for _ in range(count):
        tag, pos = _varint(data, pos)
        size, pos = _varint(data, pos)
        end = pos + size
        if end > len(data):
            raise ValueError("a tag is longer than the response")
        field = fields._tags.get(tag)
        if field is not None:
            inside = io.BytesIO(data[pos:end])
            found[field.name] = field.decode(inside, version=version, compact=True, tagged=None)
        pos = end
    return found, pos
