"""Bytes of MirrorMaker 2's internal topics, against what its own classes write and read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.internal_topics.mm2_records import (
    Checkpoint,
    Heartbeat,
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
    encode_checkpoint,
    encode_heartbeat,
    encode_offset_sync,
)
from sparkmirror.model import TopicPartition
from tests.vectors import load

VECTORS: dict[str, list[dict[str, Any]]] = load("formats")


def _bytes(entry: dict[str, Any]) -> tuple[bytes, bytes]:
    return bytes.fromhex(entry["key"]), bytes.fromhex(entry["value"])


@pytest.mark.parametrize("entry", VECTORS["heartbeat"], ids=lambda e: e["toString"])
def test_heartbeats_are_java_s(entry: dict[str, Any]) -> None:
    heartbeat = Heartbeat(entry["source"], entry["target"], entry["timestamp"])
    assert encode_heartbeat(heartbeat) == _bytes(entry)
    assert decode_heartbeat(*_bytes(entry)) == heartbeat


@pytest.mark.parametrize("entry", VECTORS["checkpoint"], ids=lambda e: e["toString"])
def test_checkpoints_are_java_s(entry: dict[str, Any]) -> None:
    checkpoint = Checkpoint(
        entry["group"],
        TopicPartition(entry["topic"], entry["partition"]),
        entry["upstreamOffset"],
        entry["downstreamOffset"],
        entry["metadata"],
    )
    assert encode_checkpoint(checkpoint) == _bytes(entry)
    assert decode_checkpoint(*_bytes(entry)) == checkpoint


@pytest.mark.parametrize("entry", VECTORS["offset_sync"], ids=lambda e: e["toString"])
def test_offset_syncs_are_java_s(entry: dict[str, Any]) -> None:
    source = TopicPartition(entry["topic"], entry["partition"])
    sync = (source, entry["upstreamOffset"], entry["downstreamOffset"])
    assert encode_offset_sync(*sync) == _bytes(entry)
    assert decode_offset_sync(*_bytes(entry)) == sync


def test_malformed_records_are_none() -> None:
    key, value = encode_checkpoint(Checkpoint("g1", TopicPartition("A.t1", 3), 100, 55, "meta"))
    for bad in (value[:-1], value[:10], b"", None):
        assert decode_checkpoint(key, bad) is None
    for bad in (b"\xff\xff" + key[2:], b"\x7f\x02" + key[2:], key[:-1], b"\0\1\xff", None):
        assert decode_checkpoint(bad, value) is None
    assert decode_offset_sync(key, None) is None
    assert decode_heartbeat(None, None) is None
    # Unlike Java, which takes any version for the first one.
    assert decode_checkpoint(key, b"\0\1" + value[2:]) is None
    assert decode_checkpoint(key, value + b"xyz") is not None


def test_texts_have_java_s_limit() -> None:
    encode_heartbeat(Heartbeat("x" * 32_767, "B", 0))
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_heartbeat(Heartbeat("x" * 32_768, "B", 0))


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_raise(key: bytes, value: bytes) -> None:
    decode_heartbeat(key, value)
    decode_checkpoint(key, value)
    decode_offset_sync(key, value)
