"""Limits on what kafka-python reads from brokers, which are not trusted with memory or CPU time.

kafka-python compiles a decoder per message. Five of its parts need other code:

* a varint has no maximum length, and each further byte costs more than the one before;
* a structure with tags copies the rest of the response, so many of them take quadratic time;
* a receive continues as long as data arrives, and a response that cannot be read may leave a
  connection that waits, because only some errors close it;
* record batches are decompressed without a limit, and only by packages that are not installed. A
  batch that cannot be read hides all batches after it (see `passing_over`);
* the socket of a connection attempt that fails stays open as long as its error is referenced.

`guard_decoding` and `guard_receiving` replace these parts. The rest is limited by the size of a
response: each element takes at least one byte, and becomes an object of some hundred bytes.
The replaced parts are private to kafka-python;
`tests/unit/wire/net/test_kafka_python_limits.py` fails when a release of it has others.
"""

from __future__ import annotations

import io
import logging
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kafka.protocol.schemas.fields.codecs.types import UnsignedVarInt32
from kafka.protocol.schemas.fields.struct import StructField

from sparkmirror.errors import BatchError

__all__ = ["FRAME_BYTES_MAX", "UNREADABLE", "guard_decoding", "guard_receiving", "passing_over"]

log = logging.getLogger(__name__)

# A Metadata response for a million partitions is smaller, and so are the driver's Fetch responses.
FRAME_BYTES_MAX = 64 << 20
_RECEIVED_AT_ONCE_MAX = 4 << 20
_RECEIVE_BYTES = 64 << 10
_VARINT_BYTES_MAX = 5
# Internal topics hold small records; Java's producer fills a batch with a megabyte at most.
_UNPACKED_BYTES_MAX = 32 << 20
_passing = threading.local()

# What kafka-python raises for bytes that are not a response of the expected kind.
UNREADABLE = (
    *(ValueError, struct.error, IndexError, KeyError, TypeError, AttributeError),
    *(OverflowError, MemoryError, EOFError, AssertionError),
)


# --- decoding -----------------------------------------------------------------------------------


def guard_decoding() -> None:
    """Make decoders that are compiled from now on check what they read. Idempotent."""
    UnsignedVarInt32.emit_decode_from = staticmethod(_emit_varint)
    StructField._emit_tagged_decode = _emit_tags


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


# --- receiving ----------------------------------------------------------------------------------


def guard_receiving() -> None:
    """Limit kafka-python's connections and consumers, too. Idempotent."""
    # Imported where they are used: the workers' connections do not need them.
    import kafka.net.connection as connecting  # noqa: PLC0415
    from kafka.net import transport  # noqa: PLC0415

    guard_decoding()
    connecting.KafkaProtocol = _protocol(connecting)
    transport.KafkaTCPTransport._sock_recv = _receive
    transport.KafkaSSLTransport._sock_recv = _receive
    _guard_connecting()
    _guard_unpacking()


def _guard_connecting() -> None:
    from kafka.net.inet import KafkaNetSocket  # noqa: PLC0415

    connect = KafkaNetSocket.sock_connect
    if connect.__module__ == __name__:
        return

    async def sock_connect(self: Any, net: Any, sock: Any, *args: Any, **options: Any) -> Any:
        try:
            return await connect(self, net, sock, *args, **options)
        except BaseException:  # also when its event loop ends
            sock.close()
            raise

    KafkaNetSocket.sock_connect = sock_connect


def _protocol(connecting: Any) -> Any:
    from kafka.errors import CorrelationIdError, KafkaProtocolError  # noqa: PLC0415
    from kafka.protocol.parser import KafkaProtocol  # noqa: PLC0415

    if connecting.KafkaProtocol is not KafkaProtocol:
        return connecting.KafkaProtocol

    class GuardedProtocol(KafkaProtocol):  # type: ignore[misc]
        """Any response that cannot be read closes the connection, and is not logged."""

        def _process_response(self, read_buffer: Any) -> tuple[int, Any]:
            if not self.in_flight_requests:
                raise CorrelationIdError("a response without a request")
            header = self.in_flight_requests.popleft()
            kind = header.get_response_class()
            try:
                correlation = int(kind.parse_header(read_buffer).correlation_id)
                if correlation != header.correlation_id:
                    raise CorrelationIdError("a response to another request")
                return correlation, kind.decode(read_buffer)
            except UNREADABLE as error:
                raise KafkaProtocolError(
                    f"the response cannot be read ({type(error).__name__})"
                ) from error

    return GuardedProtocol


def _receive(self: Any) -> tuple[bytes, Exception | None]:
    """What has arrived, up to a limit; the rest is read in the next turn of the loop."""
    from kafka.errors import KafkaConnectionError  # noqa: PLC0415

    parts: list[bytes] = []
    size = 0
    try:
        # Data that TLS has decrypted does not make the socket readable: it is always read.
        while size < _RECEIVED_AT_ONCE_MAX or _pending(self._sock):
            part = self._sock.recv(_RECEIVE_BYTES)
            if not part:
                return b"".join(parts), KafkaConnectionError("socket disconnected")
            parts.append(part)
            size += len(part)
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    except (OSError, ValueError) as error:
        return b"".join(parts), KafkaConnectionError(error)
    return b"".join(parts), None


def _pending(sock: Any) -> bool:
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def _guard_unpacking() -> None:
    """Use our own codecs, which have a limit, for the records that kafka-python reads."""
    import kafka.record.default_records as batches  # noqa: PLC0415
    import kafka.record.legacy_records as messages  # noqa: PLC0415

    from kafka import codec  # noqa: PLC0415

    gzip, snappy, lz4, zstd = (partial(_unpack, kind) for kind in range(1, 5))
    for module in (batches, messages):
        module.gzip_decode, module.snappy_decode, module.lz4_decode = gzip, snappy, lz4
    batches.zstd_decode, messages.lz4_decode_old_kafka = zstd, lz4
    for name in ("has_snappy", "has_lz4", "has_zstd"):
        setattr(codec, name, lambda: True)
    read = batches.DefaultRecordBatch.__iter__
    if read.__module__ != __name__:

        def records(batch: Any) -> Iterator[Any]:
            return _records(batch, read)

        batches.DefaultRecordBatch.__iter__ = records


@contextmanager
def passing_over() -> Iterator[None]:
    """Within this block, this thread's consumers skip the rest of a batch that they cannot read.

    For topics that others may write to: one of their batches must not hide the rest.
    """
    before = getattr(_passing, "on", False)
    _passing.on = True
    try:
        yield
    finally:
        _passing.on = before


def _records(batch: Any, read: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    from kafka.errors import CorruptRecordError  # noqa: PLC0415

    try:
        source = read(batch)
        while True:  # the batch is its own iterator, so `yield from` would call this again
            record = next(source, None)
            if record is None:
                return
            yield record
    except (BatchError, CorruptRecordError, *UNREADABLE) as error:
        if not getattr(_passing, "on", False):
            raise
        log.warning("records at offset %d cannot be read, skipped: %s", batch.base_offset, error)


def _unpack(codec: int, payload: Any) -> Any:
    from sparkmirror.records.codecs import decompress  # noqa: PLC0415  (numpy: not at every start)

    return decompress(codec, memoryview(payload), _UNPACKED_BYTES_MAX)
