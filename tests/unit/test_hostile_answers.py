"""Answers that a broker never sends by itself, and what they may cost."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from random import Random
from types import SimpleNamespace

import pytest
from kafka.protocol.metadata import MetadataRequest

from sparkmirror.data.watch import ControlWatch
from sparkmirror.errors import CorruptBatch
from sparkmirror.model import ClusterClient, FetchSettings, FlowSettings, TopicPartition
from sparkmirror.wire import connection as connecting
from sparkmirror.wire import fetch as fetching
from sparkmirror.wire import framing
from sparkmirror.wire.batch import BASE_TIMESTAMP_AT
from sparkmirror.wire.connection import ConnectionLost, ReceiveBuffer
from sparkmirror.wire.cut import cut_batch
from sparkmirror.wire.produce_frames import parse_answer
from sparkmirror.wire.records import Limits, Record, decode_records, encode_batch
from sparkmirror.wire.select import Selection, SelectRules, select
from tests.fuzz.inputs import resealed
from tests.fuzz.targets import _Answering, _Routes

TP = TopicPartition("t", 0)
CLIENT = ClusterClient("A", ("a:1",), "c")


def received(frame: bytes) -> fetching.Fetcher:
    fetcher = fetching.Fetcher(_Routes(), FetchSettings())  # type: ignore[arg-type]
    fetcher.assign(TP, 0)
    states = {TP: fetcher._states[TP]}
    peer = SimpleNamespace(receive_frame=lambda _: memoryview(frame))
    fetcher._requests[1] = fetching._Request(peer, 77, 11, states, 0.0, 0.0, {TP: (0, -1, 0)})  # type: ignore[arg-type]
    assert fetcher.receive(peer) == []
    return fetcher


@pytest.mark.parametrize("size", [-1, -6, -(2**15), 2**15 - 1])
def test_a_topic_name_of_a_negative_size_does_not_lead_round_in_circles(size: int) -> None:
    began_s = time.monotonic()
    topics = struct.pack(">i", 2**31 - 1) + struct.pack(">hi", size, 0) * 3
    fetcher = received(struct.pack(">iihi", 77, 0, 0, 0) + topics)
    assert fetcher.errors == {"CONNECTION_LOST": 1}
    with pytest.raises(struct.error):
        parse_answer(memoryview(struct.pack(">i", 77) + topics), 3)
    assert time.monotonic() - began_s < 2


def test_an_answer_that_says_it_is_huge_is_hung_up_on() -> None:
    peer = connecting.Connection.__new__(connecting.Connection)
    peer.host, peer.port = "a", 1
    for size, buffer in (
        (framing.ANSWER_FRAME_BYTES_MAX + 1, None),
        (framing.FETCH_FRAME_BYTES_MAX + 1, ReceiveBuffer()),
        (-1, None),
        (3, ReceiveBuffer()),
    ):
        peer._receive_size = lambda size=size: size  # type: ignore[method-assign]
        with pytest.raises(ConnectionLost, match="nonsense frame"):
            peer.receive_frame(buffer)


def test_an_answer_that_cannot_be_read_is_a_lost_connection() -> None:
    peer = _Answering(5, struct.pack(">iii", 77, 0, 2**31 - 1))
    with pytest.raises(ConnectionLost, match="the answer to MetadataRequest cannot be read"):
        peer.request(MetadataRequest(topics=[]))


def test_timestamps_that_run_over_can_be_cut() -> None:
    """A base timestamp at the end of int64, and deltas that lead beyond it: Java wraps."""
    batch = bytearray(encode_batch([Record(n, 100 * n, None, b"x") for n in range(4)]))
    batch[BASE_TIMESTAMP_AT : BASE_TIMESTAMP_AT + 8] = (2**63 - 1).to_bytes(8, "big")
    halves = cut_batch(memoryview(resealed(bytes(batch))))
    offsets = [one.offset for half in halves for one in decode_records(memoryview(half))]
    assert offsets == [0, 1, 2, 3]
    with pytest.raises(CorruptBatch, match="cannot be cut"):
        cut_batch(memoryview(encode_batch([Record(0, 1, None, b"x")])))


# --- what batches unpack to ---------------------------------------------------------------------


def packed(count: int, size: int, *, codec: int = 4, bits: int = 0) -> bytes:
    """``count`` batches of one record each, whose value is ``size`` zeros."""
    one = encode_batch([Record(0, 1, None, bytes(size))], codec=codec, attributes=bits)
    return b"".join(n.to_bytes(8, "big") + one[8:] for n in range(count))


def all_of(data: bytes, rules: SelectRules) -> list[Selection]:
    """What a slot takes of an answer, going on where each selection ends."""
    found: list[Selection] = []
    position = 0
    while not found or found[-1].record_count:
        found.append(select(memoryview(data), position, (), rules))
        position = found[-1].next_offset
    return found[:-1]


@pytest.mark.parametrize(("count", "size"), [(3, 60 << 20), (30, 8 << 20)])
@pytest.mark.parametrize("bits", [0, 8])  # joined, and with log append time made real
def test_what_unpacks_to_a_lot_is_taken_bit_by_bit(count: int, size: int, bits: int) -> None:
    data = packed(count, size, bits=bits)
    assert len(data) < 4_096 * count
    steps = all_of(data, SelectRules())
    assert len(steps) > 1
    assert sum(step.record_count for step in steps) == count
    limits = Limits()
    for step in steps:
        # One batch more than the limit is in memory at most.
        assert step.record_count * size <= limits.together_bytes_max + size
    values = [
        len(record.value or b"")
        for step in steps
        for piece in step.pieces
        for record in decode_records(memoryview(piece))
    ]
    assert values == [size] * count


def test_what_unpacks_to_too_much_is_refused() -> None:
    rules = SelectRules(decompressed_bytes_max=1 << 20)
    with pytest.raises(CorruptBatch, match="unpacks to more than 1048576 bytes"):
        select(memoryview(packed(1, 2 << 20, bits=8)), 0, (), rules)
    # A large batch is no bomb: sixteen times its own size is always allowed.
    block = Random(1).randbytes(150_000)
    large = encode_batch([Record(0, 1, None, block * 8)], codec=4, attributes=8)
    assert len(large) < len(block * 8) / 7
    assert select(memoryview(large), 0, (), rules).record_count == 1


def test_a_bomb_costs_a_bounded_amount_of_memory() -> None:
    """In a process of its own, since a process's peak never goes down."""
    script = (
        "import resource\n"
        "from tests.unit.test_hostile_answers import packed, select, SelectRules\n"
        "data = packed(60, 100 << 20)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "chosen = select(memoryview(data), 0, (), SelectRules())\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(chosen.record_count, (after - before) // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    count, grown_mb = map(int, done.stdout.split())
    assert count >= 1
    assert grown_mb < 600  # all sixty would be 6 GB


# --- the control topic --------------------------------------------------------------------------


def test_records_that_cannot_be_read_do_not_stop_a_slot() -> None:
    flow = FlowSettings(CLIENT, CLIENT, CLIENT, CLIENT)
    watch = ControlWatch(flow, slot=0, offset=0)
    tp = watch._commands
    watch.fetcher.assign(tp, 0)
    damaged = bytearray(encode_batch([Record(0, 1, b"A->A", b"{}")]))
    damaged[-2:] = b"\x7f\x7f"  # states 63 headers
    part = fetching.FetchedPartition(tp, 0, 1, 1, 0, [], memoryview(resealed(bytes(damaged))))
    watch._take(part)
    assert watch.fetcher.position(tp) == 1
    assert watch.command is None
