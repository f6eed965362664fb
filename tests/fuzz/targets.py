"""What is fuzzed. A target takes a `Random`, makes a case of it and runs it.

It raises nothing for whatever a hostile peer may send: errors that the code documents are caught
here, everything else is a crash.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from itertools import islice
from random import Random
from types import SimpleNamespace
from typing import Any

from kafka.protocol.consumer import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceResponse,
)

from sparkmirror.control.coordination.orders_topic import Order, decode_order, encode_order
from sparkmirror.errors import BatchError
from sparkmirror.internal_topics.commands import (
    AssignmentCollector,
    AssignmentDocument,
    Command,
    CommandKind,
    Planned,
    SourcePartition,
    decode_command,
    decode_planned,
    decode_progress,
    encode_assignment,
    encode_command,
    encode_planned,
    encode_progress,
)
from sparkmirror.internal_topics.connect_offsets import decode_source_offset, encode_source_offset
from sparkmirror.internal_topics.driver_report import (
    DriverReport,
    decode_driver_report,
    encode_driver_report,
)
from sparkmirror.internal_topics.flow_claims import Claim, decode_claim, encode_claim, is_believed
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
from sparkmirror.internal_topics.reports import ReportPiece, decode_piece, encode_piece
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.internal_topics.runs import decode_run, encode_run
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import Partitioner, TopicPartition
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress, Spread
from sparkmirror.records.codecs import DECOMPRESSED_BYTES_MAX, compress, decompress
from sparkmirror.records.header import split, stamp
from sparkmirror.records.key_columns import COST_BYTES_MAX, scans
from sparkmirror.records.partitioner import RecordPartitioner, write_partitioned
from sparkmirror.records.selection import AbortedTransaction, SelectRules, select
from sparkmirror.records.split import cut_batch
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch import fetcher as fetching
from sparkmirror.wire.fetch.messages import FETCH_HIGHEST, FETCH_LOWEST
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.messages import parse_response
from tests.fuzz.driver import admin, internal, large
from tests.fuzz.exchanges import CLIENT, Answering, groups, logins, sessions
from tests.fuzz.inputs import batches, bomb, mutated

__all__ = ["TARGETS"]

_TP = TopicPartition("topic", 3)


# --- Fetch: the frame, and the records in it ----------------------------------------------------


class _Connections:
    client = CLIENT
    leaders: dict[TopicPartition, Any] = {}  # noqa: RUF012
    leaderless: dict[TopicPartition, int] = {}  # noqa: RUF012
    reachable = True

    def doubt(self, _tp: TopicPartition) -> None:
        """Believe the next metadata."""

    def mark_stale(self, _tp: TopicPartition | None = None) -> None:
        """Nothing to refresh."""

    def drop(self, connection: object) -> None:
        """Nothing to close."""


def fetch(rng: Random) -> None:
    """A Fetch answer through the fetcher, as a slot takes it."""
    version = rng.randrange(FETCH_LOWEST, FETCH_HIGHEST + 1)
    frame = mutated(_fetch_frame(rng, version), rng)
    fetcher = fetching.Fetcher(_Connections(), FetchSettings())  # type: ignore[arg-type]
    fetcher.assign(_TP, 7)
    state = fetcher._states[_TP]
    state.requested = True
    peer = SimpleNamespace(
        unsent=False, round_trip_s=0.001, receive_available=lambda _: memoryview(frame)
    )
    fetcher._requests[1, 0] = fetching._Request(
        peer, 77, version, {_TP: state}, 0.0, 0.0, {_TP: (7, -1, 0)}  # type: ignore[arg-type]
    )  # fmt: skip
    for part in fetcher.receive(peer):
        assert len(part.records) <= len(frame)
        _choose(bytes(part.records), part.aborted, SelectRules())
    assert not state.requested


def _fetch_frame(rng: Random, version: int) -> bytes:
    topics = FetchResponse.FetchableTopicResponse
    rows = topics.PartitionData
    aborted = [
        rows.AbortedTransaction(producer_id=5, first_offset=rng.randrange(60))
        for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    partitions = [
        rows(
            partition_index=index,
            error_code=rng.choice((0, 0, 0, 1, 3, 6, 29, 99)),
            high_watermark=100,
            last_stable_offset=90,
            log_start_offset=0,
            aborted_transactions=aborted,
            preferred_read_replica=rng.choice((-1, 2)),
            records=batches(rng),
        )
        for index in rng.choice(((3,), (3,), (3, 4), (3, 3), ()))
    ]
    answer = FetchResponse(
        throttle_time_ms=rng.choice((0, 0, 5, 2**31 - 1)),
        error_code=rng.choice((0, 0, 0, 70)),
        session_id=0,
        responses=[topics(topic="topic", partitions=partitions)] * rng.choice((1, 1, 2)),
    )
    return struct.pack(">i", 77) + bytes(answer.encode(version=version))


def _choose(
    records: bytes, aborted: list[AbortedTransaction], rules: SelectRules, *, cut: bool = True
) -> None:
    """Select as the source does; split, stamp and cut as the sink does."""
    try:
        chosen = select(memoryview(records), 0, aborted, rules)
    except BatchError:
        return
    assert chosen.next_offset >= 0
    for piece in chosen.pieces:
        view = memoryview(piece)
        for start, end in split(view):
            one = view[start:end]
            stamp(one, producer_id=1, producer_epoch=0, base_sequence=0, transactional=False)
            if not cut:
                continue
            try:
                cut_batch(one)
            except BatchError:
                continue


def records(rng: Random) -> None:
    """Record batches alone, with rules of all kinds."""
    rules = SelectRules(
        check_crcs=rng.random() < 0.7,
        read_committed=rng.random() < 0.7,
        join_bytes=rng.choice((300, 256 * 1024)),
        join_below_bytes=rng.choice((0, 150, 4_096)),
        join_uncompressed_below_bytes=rng.choice((0, 32 * 1024)),
    )
    aborted = [AbortedTransaction(5, rng.randrange(60)) for _ in range(rng.choice((0, 1, 3)))]
    _choose(batches(rng), aborted, rules)


def bombs(rng: Random) -> None:
    """Small batches that unpack to a lot: an answer is taken bit by bit, each bit in bounds."""
    _choose(bomb(rng), [], SelectRules(), cut=False)


def dealt(rng: Random) -> None:
    """The record path: what an answer unpacks to is dealt in portions, each in bounds."""
    view = memoryview(bomb(rng) if rng.random() < 0.5 else batches(rng))
    try:
        chosen = select(view, 0, (), SelectRules(join_below_bytes=0))
        codec = rng.choice((0, 4))
        for piece in map(memoryview, chosen.pieces):
            for found in islice(scans(piece), 3):  # rows leave between them
                size = len(found.columns.flat)
                assert size <= max(COST_BYTES_MAX, DECOMPRESSED_BYTES_MAX)
                partitions = RecordPartitioner(Partitioner.KEY, rng=rng).choose(found, 12)
                write_partitioned(found, partitions, codec=codec, batch_bytes=256 * 1024)
    except BatchError:
        return


def codecs(rng: Random) -> None:
    """Packed data after damage."""
    codec = rng.randrange(8)
    plain = rng.choice(
        (b"", b"a" * 5_000, rng.randbytes(300), rng.randbytes(70_000) + b"z" * 70_000)
    )
    packed = compress(codec, plain) if codec < 5 else plain
    limit = rng.choice((0, 100, 1 << 20, 1 << 28))
    try:
        unpacked = decompress(codec, memoryview(mutated(packed, rng)), limit)
    except BatchError:
        return
    assert codec == 0 or len(unpacked) <= limit


# --- Produce and the small answers --------------------------------------------------------------


def produce(rng: Random) -> None:
    """A Produce answer."""
    version = rng.randrange(3, 9)
    topics = ProduceResponse.TopicProduceResponse
    rows = topics.PartitionProduceResponse
    reasons = [
        rows.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
        for index, text in ((0, "why"), (1, None))
    ]
    partitions = [
        rows(
            index=index,
            error_code=rng.choice((0, 6, 87)),
            base_offset=5,
            log_append_time_ms=-1,
            log_start_offset=0,
            record_errors=rng.choice(([], reasons)),
            error_message=rng.choice((None, "käse")),
        )
        for index in range(rng.choice((0, 1, 3)))
    ]
    answer = ProduceResponse(
        responses=[topics(name="topic", partition_responses=partitions)] * rng.choice((0, 1, 2)),
        throttle_time_ms=0,
    )
    frame = struct.pack(">i", 77) + bytes(answer.encode(version=version))
    try:
        parse_response(memoryview(mutated(frame, rng)), version)
    except (struct.error, ValueError):  # what the producer takes for a broken connection
        return


def answers(rng: Random) -> None:
    """Small answers, which kafka-python decodes."""
    request, response, lowest, highest = _ANSWERS[rng.randrange(len(_ANSWERS))](rng)
    version = rng.randrange(lowest, highest + 1)
    tags = b"\0" if response.flexible_version_q(version) else b""
    frame = tags + bytes(response.encode(version=version))
    connection = Answering(lambda _message, _version: mutated(frame, rng), rng)
    try:
        connection.request(request, lowest=version, highest=version)
    except ConnectionLost:
        return


def _metadata(rng: Random) -> tuple[Any, Any, int, int]:
    topics = MetadataResponse.MetadataResponseTopic
    parts = [
        topics.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, leader_epoch=3, replica_nodes=[1],
            isr_nodes=[1], offline_replicas=[],
        )
    ]  # fmt: skip
    brokers = [MetadataResponse.MetadataResponseBroker(node_id=1, host="b", port=9092, rack=None)]
    response = MetadataResponse(
        throttle_time_ms=0, brokers=brokers, cluster_id="c", controller_id=1,
        topics=[topics(error_code=0, name="topic", is_internal=False, partitions=parts)],
    )  # fmt: skip
    return MetadataRequest(topics=[]), response, 4, 9


def _coordinator(rng: Random) -> tuple[Any, Any, int, int]:
    response = FindCoordinatorResponse(
        throttle_time_ms=0, error_code=0, error_message="no", node_id=1, host="b", port=9092
    )
    return FindCoordinatorRequest(key="g", key_type=0), response, 0, 3


def _offsets(rng: Random) -> tuple[Any, Any, int, int]:
    topics = ListOffsetsResponse.ListOffsetsTopicResponse
    part = topics.ListOffsetsPartitionResponse(
        partition_index=0, error_code=0, timestamp=1, offset=5, leader_epoch=1
    )
    response = ListOffsetsResponse(
        throttle_time_ms=0, topics=[topics(name="topic", partitions=[part])]
    )
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[]), response, 1, 5


def _committed(rng: Random) -> tuple[Any, Any, int, int]:
    topics = OffsetFetchResponse.OffsetFetchResponseTopic
    part = topics.OffsetFetchResponsePartition(
        partition_index=0, committed_offset=5, committed_leader_epoch=1, metadata="m", error_code=0
    )
    response = OffsetFetchResponse(
        throttle_time_ms=0, error_code=0, topics=[topics(name="topic", partitions=[part])]
    )
    return OffsetFetchRequest(group_id="g", topics=None), response, 2, 7


def _commit(rng: Random) -> tuple[Any, Any, int, int]:
    topics = OffsetCommitResponse.OffsetCommitResponseTopic
    part = topics.OffsetCommitResponsePartition(partition_index=0, error_code=0)
    response = OffsetCommitResponse(
        throttle_time_ms=0, topics=[topics(name="topic", partitions=[part])]
    )
    return OffsetCommitRequest(group_id="g", topics=[]), response, 2, 8


def _producer_id(rng: Random) -> tuple[Any, Any, int, int]:
    response = InitProducerIdResponse(
        throttle_time_ms=0, error_code=0, producer_id=5, producer_epoch=0
    )
    return InitProducerIdRequest(transactional_id=None), response, 0, 4


_ANSWERS = (_metadata, _coordinator, _offsets, _committed, _commit, _producer_id)


# --- internal topics ----------------------------------------------------------------------------


def topics(rng: Random) -> None:
    """Records of the internal topics: whatever stands there, none is an error."""
    key, value = _SIGNALS[rng.randrange(len(_SIGNALS))]
    if value[:1] == b"\x78" and rng.random() < 0.7:
        value = zlib.compress(mutated(zlib.decompress(value), rng))
    key, value = mutated(key, rng), mutated(value, rng)
    if rng.random() < 0.3:
        value = _odd_json(value, rng)
    decode_command(key, value)
    decode_progress(key, value)
    decode_piece(key, value)
    decode_driver_report(key, value)
    AssignmentCollector("A->B").feed(key, value)
    decode_source_offset(key, value)
    decode_heartbeat(key, value)
    decode_checkpoint(key, value)
    decode_offset_sync(key, value)
    decode_claim(key, value)
    is_believed(key, value, Signer("s" * 32))
    decode_order(key, value)
    decode_planned(key, value)
    decode_run(key, value)


def _odd_json(value: bytes, rng: Random) -> bytes:
    """A document with one field of another shape."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return b"[" * rng.choice((10, 100_000))
    if not isinstance(document, dict) or not document:
        return value
    odd = rng.choice((None, -1, 1e400, 10**400, "x", [], {}, [[]], {"a": [1]}, True, [[None] * 8]))
    document[rng.choice(sorted(document))] = odd
    return json.dumps(document).encode()


def _signals() -> list[tuple[bytes, bytes]]:
    halt = Halt("CODE", "why", True)
    spread = Spread(1, 2, 3, 4)
    partitions = tuple(
        PartitionProgress("topic", n, 5, 6, 7, 8, halt, spread, spread) for n in range(3)
    )
    progress = SlotProgress("A->B", 1, "w", 2, 3, 4, 5, 6, (1, 2), {"E": 1}, partitions, 9)
    many = tuple(PartitionProgress("topic", n, 5) for n in range(2_000))
    mirrored = tuple(SourcePartition("t", n, "A.t", "id") for n in range(4))
    document = AssignmentDocument("A->B", "r", 1, mirrored, {TopicPartition("t", 0): 5})
    found = [
        encode_command(Command("A->B", CommandKind.RUN, "r", 1, epoch=3, version=2)),
        encode_command(Command("A->B", CommandKind.PAUSE, "r", 1)),
        encode_progress(progress),
        encode_progress(SlotProgress("A->B", 1, "w", 2, 3, 4, 5, 6, partitions=many)),
        encode_piece(ReportPiece("A->B", 1, "r", 2, 3, many)),
        encode_driver_report(DriverReport("A->B", "r", "h", "v", 1, 2, False, 3, {_TP: halt})),
        *encode_assignment(document),
        encode_source_offset("A", _TP, 5),
        encode_heartbeat(Heartbeat("A", "B", 5)),
        encode_checkpoint(Checkpoint("g", _TP, 5, 6, "m")),
        encode_offset_sync(_TP, 5, 6),
        encode_planned(Planned("A->B", "r", 3)),
        encode_claim(Claim("A->B", "r", 2, "h")),
        encode_claim(Claim("A->B", "r", 2, "h", 7), Signer("s" * 32)),
        encode_order(Order("A->B", CommandKind.DRAIN, 5, ("r",))),
        encode_run(_TP, Run(5, 6, 7)),
    ]
    return [(key, value or b"") for key, value in found]


_SIGNALS = _signals()

TARGETS: dict[str, Callable[[Random], None]] = {
    "fetch": fetch,
    "records": records,
    "bombs": bombs,
    "dealt": dealt,
    "codecs": codecs,
    "produce": produce,
    "answers": answers,
    "topics": topics,
    "admin": admin,
    "large": large,
    "internal": internal,
    "sessions": sessions,
    "groups": groups,
    "logins": logins,
}
