"""Answers that a broker never sends by itself, and what they may cost."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import JoinGroupResponse, SyncGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataRequest

from sparkmirror.data.coordination import control_reader as watching
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.errors import BatchError, ClusterError, CorruptBatch, Denied, Unreachable
from sparkmirror.internal_topics.commands import Command, CommandKind, encode_command
from sparkmirror.model import TopicPartition
from sparkmirror.records.codecs import ZSTD
from sparkmirror.records.header import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CRC_AT,
    LENGTH_AT,
    LOG_APPEND_TIME_BIT,
)
from sparkmirror.records.records import Limits, Record, decode_records, encode_batch
from sparkmirror.records.selection import Selection, SelectRules, select
from sparkmirror.records.split import cut_batch
from sparkmirror.settings import ClusterClient, FetchSettings, FlowSettings, GroupSettings
from sparkmirror.wire.fetch import fetcher as fetching
from sparkmirror.wire.group.assignors import decode_assignment, decode_subscription
from sparkmirror.wire.group.session import GroupSession
from sparkmirror.wire.net import connection as connecting
from sparkmirror.wire.net import framing
from sparkmirror.wire.net.connection import ConnectionLost, ReceiveBuffer
from sparkmirror.wire.produce.messages import parse_response
from sparkmirror.wire.security.sasl import Login
from tests.fuzz.exchanges import Answering
from tests.fuzz.inputs import resealed
from tests.fuzz.targets import _Connections

TP = TopicPartition("t", 0)
CLIENT = ClusterClient("A", ("a:1",), "c")


def received(frame: bytes) -> fetching.Fetcher:
    fetcher = fetching.Fetcher(_Connections(), FetchSettings())  # type: ignore[arg-type]
    fetcher.assign(TP, 0)
    states = {TP: fetcher._states[TP]}
    peer = SimpleNamespace(unsent=False, receive_available=lambda _: memoryview(frame))
    fetcher._requests[1, 0] = fetching._Request(peer, 77, 11, states, 0.0, 0.0, {TP: (0, -1, 0)})  # type: ignore[arg-type]
    assert fetcher.receive(peer) == []
    return fetcher


@pytest.mark.parametrize("size", [-1, -6, -(2**15), 2**15 - 1])
def test_a_topic_name_of_a_negative_size_does_not_lead_round_in_circles(size: int) -> None:
    began_s = time.process_time()
    topics = struct.pack(">i", 2**31 - 1) + struct.pack(">hi", size, 0) * 3
    fetcher = received(struct.pack(">iihi", 77, 0, 0, 0) + topics)
    assert fetcher.errors == {"CONNECTION_LOST": 1}
    with pytest.raises(struct.error):
        parse_response(memoryview(struct.pack(">i", 77) + topics), 3)
    assert time.process_time() - began_s < 2


def test_an_answer_that_says_it_is_huge_is_hung_up_on() -> None:
    peer = connecting.Connection.__new__(connecting.Connection)
    peer.host, peer.port = "a", 1
    for size in (framing.RESPONSE_FRAME_BYTES_MAX + 1, -1, 3):
        peer._receive_size = lambda size=size: size  # type: ignore[method-assign]
        with pytest.raises(ConnectionLost, match="invalid frame size"):
            peer.receive_frame()


@pytest.mark.parametrize("size", [framing.FETCH_FRAME_BYTES_MAX + 1, -1, 3])
def test_an_answer_to_fetch_that_says_it_is_huge_is_hung_up_on(size: int) -> None:
    ours, brokers = socket.socketpair()
    with ours, brokers:
        peer = framing.FramedSocket("a", 1)
        ours.settimeout(1.0)
        peer._use(ours)
        brokers.sendall(struct.pack(">i", size))
        with pytest.raises(ConnectionLost, match="invalid frame size"):
            peer.receive_available(ReceiveBuffer())


def test_an_answer_that_cannot_be_read_is_a_lost_connection() -> None:
    peer = Answering(lambda _message, _version: struct.pack(">ii", 0, 2**31 - 1), Random(1))
    with pytest.raises(ConnectionLost, match="the response to MetadataRequest cannot be read"):
        peer.request(MetadataRequest(topics=[]), lowest=5, highest=5)


def test_timestamps_that_run_over_can_be_cut() -> None:
    """A base timestamp at the end of int64, and deltas that lead beyond it: Java wraps."""
    batch = bytearray(encode_batch([Record(n, 100 * n, None, b"x") for n in range(4)]))
    batch[BASE_TIMESTAMP_AT : BASE_TIMESTAMP_AT + 8] = (2**63 - 1).to_bytes(8, "big")
    halves = cut_batch(memoryview(resealed(bytes(batch))))
    offsets = [one.offset for half in halves for one in decode_records(memoryview(half))]
    assert offsets == [0, 1, 2, 3]
    with pytest.raises(CorruptBatch, match="cannot be cut"):
        cut_batch(memoryview(encode_batch([Record(0, 1, None, b"x")])))


@pytest.mark.parametrize("host", ["a" * 64, "broker..example", "\ud800"])
def test_a_host_that_is_no_name_is_unreachable(host: str) -> None:
    """A broker says in its metadata where the others are: Python takes such names for no host."""
    with pytest.raises(Unreachable, match="the host name does not resolve") as caught:
        connecting.Connection(host, 9092, CLIENT)
    assert caught.value.where == f"cluster A, {host}:9092"
    assert "advertised.listeners" in caught.value.do


# --- groups and logins --------------------------------------------------------------------------


def member_of(answer: Callable[[Any, int], Any], strategy: str = "sticky") -> GroupSession:
    """A member whose coordinator gives ``answer(request, version)``."""

    def encoded(message: Any, version: int) -> bytes:
        response = answer(message, version)
        tags = b"\0" if response.flexible_version_q(version) else b""
        return tags + bytes(response.encode(version=version))

    peer = Answering(encoded, Random(1))
    session = GroupSession(
        CLIENT, "g", GroupSettings((strategy,)), counts=lambda _: {"t": 2}, stopping=lambda: False
    )
    session._coordinators = SimpleNamespace(connection=lambda _: peer, close=lambda: None)  # type: ignore[assignment]
    return session


def joined_as(strategy: str, metadata: bytes | None = b"") -> JoinGroupResponse:
    """What makes this member the leader of a group of one."""
    rows = JoinGroupResponse.JoinGroupResponseMember
    members = [rows(member_id="m", group_instance_id=None, metadata=metadata)]
    return JoinGroupResponse(
        throttle_time_ms=0, error_code=0, generation_id=1, protocol_type="consumer",
        protocol_name=strategy, leader="m", skip_assignment=False, member_id="m", members=members,
    )  # fmt: skip


def test_what_a_sticky_member_had_does_not_lead_round_in_circles() -> None:
    """A name of -6 bytes leads back to itself: two billion times, in the group's leader."""
    owned = struct.pack(">ih1si", 2**31 - 1, 1, b"t", 0) + struct.pack(">hq", -6, 0)
    said = ConsumerProtocolSubscription(version=1, topics=["t"], user_data=owned)
    began_s = time.process_time()
    heard = decode_subscription(bytes(said.encode()), "sticky", None)
    assert (heard.topics, heard.owned, heard.generation) == (("t",), (), -1)
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize("metadata", [b"\xff\xff" + b"\x80" * (8 << 20), b"", b"\0"])
def test_a_member_that_says_nothing_readable_gets_nothing(metadata: bytes) -> None:
    """A negative version would be read with numbers of any length: some cost their square."""
    began_s = time.process_time()
    with pytest.raises(ValueError, match="no subscription: it has no version"):
        decode_subscription(metadata, "range", None)
    if metadata:
        with pytest.raises(ValueError, match="no assignment: it has no version"):
            decode_assignment(metadata)
    assert time.process_time() - began_s < 2


def test_a_leader_without_a_list_of_members_asks_again() -> None:
    """Damage on the way: minus one, where the number of members stands."""
    asked = []

    class Joined(Exception):
        """The member has gone on."""

    def answer(request: Any, _version: int) -> Any:
        asked.append(request.name)
        if request.name != "JoinGroupRequest":
            raise Joined
        return joined_as("sticky")

    session = member_of(answer)
    whole = session._exchange

    def damaged(request: Any, *rest: Any) -> Any:
        response = whole(request, *rest)
        if len(asked) == 1:
            response.members = None
        return response

    session._exchange = damaged  # type: ignore[method-assign]
    session.client = replace(session.client, retry_backoff_ms=1)
    with pytest.raises(Joined):
        session.join(("t",))
    assert asked == ["JoinGroupRequest", "JoinGroupRequest", "SyncGroupRequest"]


@pytest.mark.parametrize("strategy", ["range", "none", ""])
def test_an_assignor_that_was_not_offered_is_refused(strategy: str) -> None:
    session = member_of(lambda _message, _version: joined_as(strategy))
    with pytest.raises(ClusterError, match="which was not offered") as caught:
        session.join(("t",))
    assert (strategy or "(none)") in caught.value.what
    assert caught.value.where == "cluster A, group g"
    assert "Check the broker's log" in caught.value.do


@pytest.mark.parametrize("share", [b"\0", b"\0\0\0\0\0\1", b"\xff\xff\0\0\0\0"])
def test_a_share_that_cannot_be_read_is_an_error(share: bytes) -> None:
    def answer(message: Any, _version: int) -> Any:
        if message.name == "JoinGroupRequest":
            return joined_as("sticky")
        return SyncGroupResponse(
            throttle_time_ms=0, error_code=0, protocol_type="consumer", protocol_name="sticky",
            assignment=share,
        )  # fmt: skip

    with pytest.raises(ClusterError, match="group's leader cannot be read") as caught:
        member_of(answer).join(("t",))
    assert caught.value.where == "cluster A, group g"
    assert "the member that leads the group" in caught.value.do


def test_mechanisms_without_a_name_are_none_of_ours() -> None:
    properties = {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="p";',
    }
    login = Login(replace(CLIENT, security_protocol="SASL_PLAINTEXT", properties=properties))
    nameless = struct.pack(">hih", 0, 1, -1)
    peer = Answering(lambda _message, _version: nameless, Random(1), login=login)
    with pytest.raises(Denied, match=r"does not offer sasl\.mechanism=PLAIN") as caught:
        peer._authenticate()
    assert "it offers none" in caught.value.what
    assert caught.value.do == "Set sasl.mechanism to one that it offers."


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


@pytest.mark.parametrize(
    ("bits", "count", "size"),  # bits: joined, and with log append time made real
    [
        pytest.param(0, 3, 60 << 20, marks=pytest.mark.more),
        (8, 3, 60 << 20),
        (0, 30, 8 << 20),
        pytest.param(8, 30, 8 << 20, marks=pytest.mark.more),
    ],
)
def test_what_unpacks_to_a_lot_is_taken_bit_by_bit(bits: int, count: int, size: int) -> None:
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
        "from tests.unit.wire.test_hostile_answers import packed, select, SelectRules\n"
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


def _bomb() -> bytes:
    """One that is taken apart, and refused, where the topic's log stamps records itself."""
    bomb = encode_batch([Record(n, 1, b"x", bytes(9 << 20)) for n in range(8)], codec=ZSTD)
    stamped = bytearray(bomb)
    stamped[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME_BIT
    return resealed(bytes(stamped))


def _broken(at: int) -> bytes:
    batch = bytearray(encode_batch([Record(0, 1, b"A->A", b"{}")]))
    batch[at] ^= 0x80
    return bytes(batch)


# Without a length that makes sense nothing is known of what stands behind it.
@pytest.mark.parametrize(
    ("damaged", "behind", "skipped"),
    [
        pytest.param(_bomb, 8, 8, id="bomb"),
        pytest.param(partial(_broken, CRC_AT), 1, 1, id="checksum"),
        pytest.param(partial(_broken, LENGTH_AT), 1, 2, id="length"),
    ],
)
def test_a_damaged_first_batch_does_not_stop_a_slot(
    damaged: Callable[[], bytes], behind: int, skipped: int
) -> None:
    watch = ControlWatch(FlowSettings(CLIENT, CLIENT, CLIENT, CLIENT), "run", slot=0, offset=0)
    tp = watch._commands
    drain = Command("A->A", CommandKind.DRAIN, "run", 1)
    good = behind.to_bytes(8, "big") + encode_batch([Record(0, 1, *encode_command(drain))])[8:]
    bad = damaged()
    with pytest.raises(BatchError):
        select(memoryview(bad), 0, (), watching._RULES)

    def take(offset: int, high_watermark: int, data: bytes) -> int:
        watch.fetcher.assign(tp, offset)
        part = fetching.FetchedPartition(
            tp, offset, high_watermark, high_watermark, 0, [], memoryview(data)
        )
        watch._take(part)
        return watch.offset

    assert take(0, behind, bad) == behind
    assert take(0, behind + 1, bad + good) == skipped
    assert take(behind, behind + 1, good) == behind + 1
    assert watch.command == drain
    watch.close()
