"""Produce frames next to those of kafka-python, which generates its own from Kafka's schemas."""

from __future__ import annotations

import struct

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from sparkmirror.model import TopicPartition
from sparkmirror.wire.produce.messages import (
    PRODUCE_HIGHEST,
    PRODUCE_LOWEST,
    PartitionProduceResponse,
    parse_response,
    request_parts,
    response_correlation,
)

VERSIONS = range(PRODUCE_LOWEST, PRODUCE_HIGHEST + 1)
REFUSED, TOO_LARGE = 87, 10


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
def test_a_request_is_what_kafka_python_sends(version: int, acks: int) -> None:
    bodies = {("käse", 3): b"a" * 80, ("käse", 0): b"b" * 61, ("t", 7): b"c" * 200}
    header = b"h" * 61
    topics: dict[str, list[tuple[int, bytes, memoryview]]] = {}
    for (topic, partition), body in bodies.items():
        topics.setdefault(topic, []).append((partition, header, memoryview(body)))
    parts = request_parts(b"head", topics, acks=acks, timeout_ms=12_345)

    theirs = ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=12_345,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    ProduceRequest.TopicProduceData.PartitionProduceData(
                        index=partition, records=header + bytes(batch[61:])
                    )
                    for partition, _, batch in batches
                ],
            )
            for topic, batches in topics.items()
        ],
    )
    assert b"".join(parts) == b"head" + theirs.encode(version=version)


def test_record_bytes_are_not_copied() -> None:
    batch = memoryview(bytearray(b"x" * 100))
    parts = request_parts(b"", {"t": [(0, b"h" * 61, batch)]}, acks=-1, timeout_ms=1)
    assert [part.obj for part in parts if isinstance(part, memoryview)] == [batch.obj]


def _answer(version: int) -> memoryview:
    """What a broker says about three batches, with correlation id 77."""
    part = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    record = part.BatchIndexAndErrorMessage
    refused = part(
        index=1,
        error_code=REFUSED,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[
            record(batch_index=n, batch_index_error_message=None if n == 1 else f"no {n}")
            for n in range(5)
        ],
        error_message="invalid",
    )
    taken = part(
        index=0,
        error_code=0,
        base_offset=1 << 40,
        log_append_time_ms=5,
        log_start_offset=9,
        record_errors=[],
        error_message=None,
    )
    large = part(
        index=2,
        error_code=TOO_LARGE,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[],
        error_message="",
    )
    topic = ProduceResponse.TopicProduceResponse
    message = ProduceResponse(
        responses=[
            topic(name="käse", partition_responses=[taken, refused]),
            topic(name="t", partition_responses=[large]),
        ],
        throttle_time_ms=250,
    )
    return memoryview(struct.pack(">i", 77) + message.encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_of_every_version(version: int) -> None:
    frame = _answer(version)
    assert response_correlation(frame) == 77
    answers, throttle_ms = parse_response(frame, version)
    said = "invalid; record 0: no 0; record 1; record 2: no 2" if version >= 8 else ""
    bad, none = (tuple(range(5)), ()) if version >= 8 else (None, None)
    assert answers == {
        TopicPartition("käse", 0): PartitionProduceResponse(0, 1 << 40, "", none),
        TopicPartition("käse", 1): PartitionProduceResponse(REFUSED, -1, said, bad),
        TopicPartition("t", 2): PartitionProduceResponse(TOO_LARGE, -1, "", none),
    }
    assert throttle_ms == 250


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_ends_too_early_is_no_answer(version: int) -> None:
    frame = _answer(version)
    # Every cut that leaves the throttle time incomplete, which comes last.
    for size in range(8, len(frame)):
        with pytest.raises((struct.error, UnicodeDecodeError)):
            parse_response(frame[:size], version)
