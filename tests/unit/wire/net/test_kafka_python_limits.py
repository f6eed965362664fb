"""What kafka-python makes of hostile answers, with the bounds of `kafka_python_limits`."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.schemas.fields.struct import StructField

from sparkmirror.errors import MachineError
from sparkmirror.wire.net import kafka_python_limits
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.net.kafka_python_limits import FRAME_BYTES_MAX
from sparkmirror.wire.protocol_errors import UnreadableResponse
from tests.fuzz.driver import received, response_frame, responses

HEAD = struct.pack(">ih", 0, 0)


def count(number: int) -> bytes:
    """Of a compact array with ``number`` elements."""
    value, out = number + 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def test_a_number_without_end_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="more than five bytes"):
        ListGroupsResponse.decode(HEAD + b"\xff" * (8 << 20), version=4)


def test_tags_cost_what_they_hold() -> None:
    """Not the rest of the answer each, which would be hours for these."""
    tagged = b"\1\1\1" + b"\1\x63\0"
    assert StructField._emit_tagged_decode is kafka_python_limits._emit_tags
    answer = ListGroupsResponse.decode(HEAD + count(300_000) + tagged * 300_000 + b"\0", version=4)
    assert len(answer.groups) == 300_000
    with pytest.raises(ValueError, match="longer than the response"):
        ListGroupsResponse.decode(HEAD + count(1) + b"\1\1\1" + b"\1\x63\x7f" + b"\0", version=4)


def test_known_tags_are_read_and_others_left_out() -> None:
    versions = ApiVersionsResponse(
        error_code=0, api_keys=[], throttle_time_ms=0, finalized_features_epoch=7
    )
    data = bytes(versions.encode(version=3))
    assert ApiVersionsResponse.decode(data, version=3).finalized_features_epoch == 7
    assert data[-11:-8] == b"\1\1\x08", "one tag, number 1, eight bytes"
    more = data[:-11] + b"\2" + data[-10:] + b"\x63\2ab"
    again = ApiVersionsResponse.decode(more, version=3)
    assert again.finalized_features_epoch == 7
    assert again.unknown_tags is None


def test_an_answer_of_small_elements_costs_a_bounded_multiple() -> None:
    frame = HEAD + count(20_000) + b"\1\1\1\0" * 20_000 + b"\0"
    tracemalloc.start()
    try:
        answer = ListGroupsResponse.decode(frame, version=4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(answer.groups) == 20_000
    assert peak < 32 * len(frame)


def test_every_answer_is_read_as_before() -> None:
    """Valid ones of all APIs and versions, made from the schemas, come back whole."""
    seed = Random(3)
    for kind in responses():
        for version in range(kind.max_version + 1):
            frame = response_frame(kind, version, seed)
            if kind.API_KEY == 18:  # with an error it is one of version 0
                frame = frame[:4] + bytes(2) + frame[6:]
            with_head = kind[version].decode(frame, header=True)
            assert type(with_head) is kind[None]


@pytest.mark.parametrize(
    "answer",
    [
        b"\0\0\0\x4d\0" + HEAD + b"\xff" * 9,  # a number without end
        b"\0\0\0\x4d\0" + HEAD + count(3),  # elements that are not there
        b"\0\0\0\x4d\0" + HEAD + count(1) + b"\2\xff\1\1\0\0",  # no UTF-8
        b"\0\0\0\x4e\0" + HEAD + count(0) + b"\0",  # the answer to another request
    ],
)
def test_what_cannot_be_read_ends_the_connection(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    framed = len(answer).to_bytes(4, "big") + answer
    with pytest.raises(UnreadableResponse):
        received(ListGroupsResponse, 4, framed)
    assert "buffer" not in caplog.text, "the bytes of a hostile answer are not logged"


@pytest.mark.parametrize("size", [-1, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_size_that_no_answer_has_ends_it_too(size: int) -> None:
    with pytest.raises(ConnectionLost, match="invalid frame size"):
        received(ListGroupsResponse, 4, struct.pack(">i", size))


@pytest.mark.parametrize("error", [None, ValueError("odd"), AttributeError("no emit")])
def test_decoders_without_the_limits_are_noticed(error: Exception | None) -> None:
    """Those that take everything, those that take nothing, and those that do not compile."""

    def compiled(*_: int, **__: Any) -> Any:
        def decode(_data: memoryview, _pos: int) -> Any:
            if isinstance(error, ValueError):
                raise error
            return SimpleNamespace(error_code=0, error_message=None, session_lifetime_ms=0), 0

        if isinstance(error, AttributeError):
            raise error
        return decode

    with pytest.raises(MachineError, match="in another way") as caught:
        kafka_python_limits._check(compiled)
    assert "kafka-python==3.0.12" in caught.value.do


@pytest.mark.parametrize("part", ["UnsignedVarInt32.emit_decode_from = staticmethod", "StructF"])
def test_each_part_that_is_not_replaced_is_noticed(part: str) -> None:
    """In a process of its own, since decoders are compiled once."""
    source = Path(kafka_python_limits.__file__).read_text(encoding="utf-8")
    line = next(one for one in source.splitlines() if one.strip().startswith(part) and "=" in one)
    code = source.replace(line, "    pass") + "\n\nguard_decoding()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MachineError: kafka-python 3" in done.stderr


def test_decoders_that_others_have_compiled_are_left_alone() -> None:
    code = (
        "from kafka.protocol.sasl import SaslAuthenticateResponse as R\n"
        "R.decode(bytes(3) + b'\\1' + bytes(9), version=2)\n"
        "import sparkmirror.wire.net.connection\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_kafka_python_with_other_decoders_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka_python_limits.guard_decoding()
    monkeypatch.setattr(StructField, "_emit_tagged_decode", lambda self: None)
    with pytest.raises(MachineError, match="kafka-python 3") as caught:
        kafka_python_limits.guard_decoding()
    assert "pip install" in caught.value.do
    monkeypatch.delattr(StructField, "_emit_tagged_decode")
    with pytest.raises(MachineError):
        kafka_python_limits.guard_decoding()
