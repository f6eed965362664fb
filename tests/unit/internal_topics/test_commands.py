"""Codecs of the control topic."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.internal_topics.assignments import ASSIGNMENT_PIECE_BYTES_MAX
from sparkmirror.internal_topics.commands import (
    AssignmentCollector,
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
    control_topic,
    decode_command,
    decode_halted,
    decode_progress,
    encode_assignment,
    encode_command,
    encode_progress,
)
from sparkmirror.internal_topics.driver_report import (
    DriverReport,
    decode_driver_report,
    encode_driver_report,
)
from sparkmirror.model import TopicPartition
from sparkmirror.progress import (
    Halt,
    JoinCounts,
    PartitionProgress,
    SlotProgress,
    Spread,
    TransformCounts,
)
from sparkmirror.settings import ClusterClient, FlowSettings, TopicSettings

FLOW = "A->B"
ID = "35a11f88-5f94-4293-baf8-f3769c144d7a"


def document(count: int = 3, *, version: int = 1, run_id: str = "r1", ends: bool = False):
    partitions = tuple(SourcePartition("t", n, "A.t", ID) for n in range(count))
    frozen = {p.source: p.partition * 10 for p in partitions} if ends else None
    since = {p.source: 1 + p.partition for p in partitions if p.partition % 3}
    return AssignmentDocument(FLOW, run_id, version, partitions, frozen, since=since, base=1)


def collect(collector: AssignmentCollector, records):
    results = [collector.feed(key, value) for key, value in records]
    assert all(result is None for result in results[:-1]), "complete before the last piece"
    return results[-1]


def test_the_topic_is_one_that_mirrormaker_2_leaves_alone():
    client = ClusterClient("A", ("a:1",), "c")
    topic = control_topic(FlowSettings(client, client, client, client))
    assert topic == "mm2-sparkmirror.A.internal"
    assert any(re.fullmatch(pattern, topic) for pattern in TopicSettings().exclude)


@pytest.mark.parametrize("kind", CommandKind)
@pytest.mark.parametrize(("epoch", "version"), [(None, 0), (0, 1), (7, 12)])
def test_command_round_trip(kind, epoch, version):
    command = Command(FLOW, kind, "r1", 1_700_000_000_000, epoch, version, base=version // 2)
    assert decode_command(*encode_command(command)) == command


def test_command_bytes():
    key, value = encode_command(Command(FLOW, CommandKind.DRAIN, "r1", 5))
    assert key == b"A->B"
    assert json.loads(value) == {"command": "drain", "run_id": "r1", "time_ms": 5}


def test_unknown_fields_are_no_obstacle():
    value = b'{"command":"run","run_id":"r1","time_ms":5,"who":{"x":[1]}}'
    assert decode_command(b"A->B", value) == Command(FLOW, CommandKind.RUN, "r1", 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"A->B", None),
        (b"A->B", b""),
        (b"A->B", b"[]"),
        (b"A->B", b"{"),
        (b"A->B", b'{"command":"fly"}'),
        (b"A->B", b'{"command":["run"]}'),
        (b"A->B", b'{"command":"run","epoch":"x"}'),
        (b"A->B", b'{"command":"run","time_ms":null}'),
        (b"", b'{"command":"run"}'),
        (None, b'{"command":"run"}'),
        (b"\xff", b'{"command":"run"}'),
        (b"A->B/assignment", b'{"command":"run"}'),
        (b"A->B/assignment/3", b'{"command":"run"}'),
        (b"A->B", b"\x78\x9cgarbage"),
    ],
)
def test_what_is_no_command_gives_none(key, value):
    assert decode_command(key, value) is None


def test_assignment_in_one_record():
    records = encode_assignment(document(ends=True))
    assert [key for key, _ in records] == [b"A->B/assignment"]
    assert collect(AssignmentCollector(FLOW), records) == document(ends=True)


def test_ends_none_and_ends_empty_are_told_apart():
    for ends in (None, {}):
        wanted = AssignmentDocument(FLOW, "r1", 1, (), ends)
        got = collect(AssignmentCollector(FLOW), encode_assignment(wanted))
        assert got == wanted


@pytest.mark.parametrize("per_topic", [1, 10_000])
def test_ten_thousand_partitions_fit(per_topic):
    names = [f"orders.{number:06}.with-a-rather-long-name" for number in range(10_000 // per_topic)]
    partitions = tuple(
        SourcePartition(name, n, f"A.{name}", ID) for name in names for n in range(per_topic)
    )
    ends = {p.source: 2**62 + p.partition for p in partitions}
    wanted = AssignmentDocument(FLOW, "r1", 4, partitions, ends)
    records = encode_assignment(wanted)
    assert all(len(value) <= ASSIGNMENT_PIECE_BYTES_MAX for _, value in records)
    assert collect(AssignmentCollector(FLOW), records) == wanted


@given(st.integers(0, 60), st.integers(200, 2_000), st.booleans())
def test_pieces_lose_nothing(count, limit, ends):
    wanted = document(count, ends=ends)
    records = encode_assignment(wanted, piece_bytes_max=limit)
    assert len({key for key, _ in records}) == len(records)
    assert collect(AssignmentCollector(FLOW), records) == wanted


def test_pieces_of_different_versions_never_mix():
    old = encode_assignment(document(40, version=1), piece_bytes_max=900)
    new = encode_assignment(document(41, version=2), piece_bytes_max=900)
    assert len(old) > 2
    collector = AssignmentCollector(FLOW)
    for key, value in [*old[:-1], *new[:-1]]:
        assert collector.feed(key, value) is None
    # A straggler of the old version starts over, it completes nothing.
    assert collector.feed(*old[-1]) is None
    assert collect(collector, new) == document(41, version=2)


def test_compaction_that_has_eaten_a_piece_leaves_the_document_incomplete():
    records = encode_assignment(document(40), piece_bytes_max=900)
    collector = AssignmentCollector(FLOW)
    for key, value in records[1:]:
        assert collector.feed(key, value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"A->C/assignment", encode_assignment(document())[0][1]),
        (b"A->B", encode_assignment(document())[0][1]),
        (b"A->B/assignment", None),
        (b"A->B/assignment", b'{"run_id":"r1","version":1,"piece":0,"pieces":1}'),
        (
            b"A->B/assignment",
            b'{"run_id":"r","version":1,"piece":0,"pieces":1,"partitions":[["t"]]}',
        ),
        (b"A->B/assignment", b'{"version":1,"piece":0,"pieces":1,"partitions":[]}'),
        (
            b"A->B/assignment",
            b'{"run_id":"r","version":1,"piece":1,"pieces":1,"partitions":[]}',
        ),
        (
            b"A->B/assignment",
            b'{"run_id":"r","version":1,"piece":0,"pieces":1000000000000000,"partitions":[]}',
        ),
    ],
)
def test_what_is_no_piece_changes_nothing(key, value):
    collector = AssignmentCollector(FLOW)
    assert collector.feed(key, value) is None
    assert collect(collector, encode_assignment(document())) == document()


PROGRESS = SlotProgress(
    flow=FLOW,
    slot=3,
    worker="host:12:1",
    epoch=9,
    time_ms=1_700_000_000_000,
    records=10,
    bytes=20,
    batches=2,
    latency_counts=(0, 4, 1),
    errors={"UNREACHABLE": 2},
    run_id='r "1"',
    attempt=12,
    began_ms=1_700_000_000_002,
    ended_ms=1_700_000_000_003,
    joined=JoinCounts(40, 655_360, 600_000, 0.25),
    transforms=(
        TransformCounts("clean", 9, 4, 3, 2, unpack_s=0.25, sql_s=1.5, pack_s=0.000002),
        TransformCounts("mask", 5, 5),
    ),
    partitions=(
        PartitionProgress("t", 0, 7, 1_700_000_000_001, 7, 70),
        PartitionProgress("t", 1, 0, halt=Halt("CORRUPT_BATCH", "checksum ✗", retriable=True)),
        PartitionProgress("u", 0, 3),
    ),
)


def test_progress_round_trip():
    key, value = encode_progress(PROGRESS)
    assert key == b"A->B/3"
    assert decode_progress(key, value) == PROGRESS


def test_a_report_of_an_older_release_has_no_times():
    key, value = encode_progress(PROGRESS)
    document = json.loads(value)
    document["transforms"] = {"clean": [9, 4, 3, 2]}
    found = decode_progress(key, json.dumps(document).encode())
    assert found is not None
    assert found.transforms == (TransformCounts("clean", 9, 4, 3, 2),)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.none() | st.builds(Halt, st.text(), st.text(), st.booleans(), st.integers(0, 9))),
    st.text(),
    st.sampled_from([1, 400]),
)
def test_halted_partitions_are_told_without_the_others(
    halts: list[Halt | None], worker: str, times: int
):
    partitions = tuple(
        PartitionProgress("t", n, 5, 6, 7, 8, halt, Spread(1.5), Spread(1, 2, 3, 4))
        for n, halt in enumerate(halts * times)
    )
    progress = replace(PROGRESS, worker=worker, partitions=partitions)
    key, value = encode_progress(progress)
    ours = (progress.run_id, progress.attempt)
    found = decode_halted("A->B", 3, ours, key, value)
    assert found == tuple(one for one in partitions if one.halt is not None)
    assert decode_halted("A->B", 4, ours, key, value) is None
    assert decode_halted("A->C", 3, ours, key, value) is None
    assert decode_halted("A->B", 3, ours, key, None) is None
    assert decode_halted("A->B", 3, ("r2", progress.attempt), key, value) is None
    assert decode_halted("A->B", 3, (progress.run_id, progress.attempt * 10), key, value) is None
    if times > 1 and any(halts):
        assert decode_halted("A->B", 3, ours, key, value[:-1]) is None


def test_progress_of_ten_thousand_partitions_fits_into_a_record():
    partitions = tuple(
        PartitionProgress(f"topic-{n // 100:03}", n % 100, n * 1_000_003, 1_700_000_000_000 + n, n)
        for n in range(10_000)
    )
    big = SlotProgress(FLOW, 0, "w", 1, 1, 1, 1, 1, (), {}, partitions)
    key, value = encode_progress(big)
    assert len(value) < 900_000
    assert decode_progress(key, value) == big


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"A->B", encode_progress(PROGRESS)[1]),
        (b"A->B/x", encode_progress(PROGRESS)[1]),
        (b"A->B/3", None),
        (b"A->B/3", b"{}"),
        (b"A->B/3", encode_progress(PROGRESS)[1].replace(b'"epoch":9', b'"epoch":Infinity')),
        (b"A->B/3", encode_progress(PROGRESS)[1].replace(b'"epoch":9', b'"epoch":"?"')),
        (b"A->B/3", encode_progress(PROGRESS)[1].replace(b'"t":[[0,', b'"t":[[[],')),
        (b"A->B/3", encode_progress(PROGRESS)[1].replace(b'"errors":{', b'"errors":[],"x":{')),
        (b"A->B/3", encode_progress(PROGRESS)[1][:-1]),
    ],
)
def test_what_is_no_progress_gives_none(key, value):
    assert decode_progress(key, value) is None


def test_a_compression_bomb_is_garbage():
    bomb = zlib.compress(b" " * (80 * 1024 * 1024), 9)
    assert decode_progress(b"A->B/3", bomb) is None


@given(st.binary(max_size=200) | st.none(), st.binary(max_size=400) | st.none())
def test_no_bytes_at_all_raise(key, value):
    decode_command(key, value)
    decode_progress(key, value)
    AssignmentCollector(FLOW).feed(key, value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(["partitions", "ends", "errors", "epoch", "pieces", "piece"]), json_values)
def test_no_json_at_all_raises(field, value):
    """A record that is right but for one field, of whatever shape."""
    progress = {**json.loads(encode_progress(PROGRESS)[1]), field: value}
    decode_progress(b"A->B/3", json.dumps(progress).encode())
    piece = {**json.loads(encode_assignment(document(ends=True))[0][1]), field: value}
    AssignmentCollector(FLOW).feed(b"A->B/assignment", json.dumps(piece).encode())


def test_source_partition_names_both_ends():
    p = SourcePartition("t", 4, "A.t", ID)
    assert (p.source, p.target) == (TopicPartition("t", 4), TopicPartition("A.t", 4))


def test_a_pause_stands_beside_the_commands_of_runs():
    pause = Command(FLOW, CommandKind.PAUSE, "", 5)
    run = Command(FLOW, CommandKind.RUN, "r2", 6, version=1)
    assert encode_command(pause)[0] != encode_command(run)[0]  # compaction keeps both
    assert encode_command(pause)[0] == encode_command(Command(FLOW, CommandKind.RESUME, "", 7))[0]
    # Under the key of the runs' commands it would hide one of them: it is none there.
    assert decode_command(encode_command(run)[0], encode_command(pause)[1]) is None


spreads = st.builds(Spread, *[st.floats(0, 1e9).map(lambda ms: round(ms, 1))] * 4) | st.builds(
    Spread, st.floats(0, 1e9).map(lambda ms: round(ms, 1))
)


@given(
    st.none() | spreads,
    st.none() | spreads,
    st.none() | st.just(Halt("DENIED", "no", True)),
    st.booleans(),
)
def test_ages_and_latencies_travel(age, latency, halt, paused):
    partition = PartitionProgress("t", 3, 10, 5, 4, 100, halt, age, latency)
    progress = SlotProgress(
        FLOW, 1, "w", 2, 3, 4, 100, 1, partitions=(partition,), latency_ms_sum=9, paused=paused
    )
    assert decode_progress(*encode_progress(progress)) == progress


def test_the_drivers_report_travels():
    halts = {TopicPartition("t", 1): Halt("DENIED", "no", True)}
    report = DriverReport(FLOW, "r1", "host:1", "0.1.0", 1, 2, True, 7, halts)
    for each in (report, replace(report, to_go_s=95.5), replace(report, slot_count=3)):
        key, value = encode_driver_report(each)
        assert decode_driver_report(key, value) == each
    assert decode_progress(key, value) is None
    assert decode_driver_report(*encode_progress(SlotProgress(FLOW, 1, "w", 2, 3, 4, 5, 6))) is None


def test_a_drivers_report_of_before_has_no_time_to_go():
    """And what is no time at all counts as none, since the rest of the report is of use."""
    report = DriverReport(FLOW, "r1", "host:1", "0.1.0", 1, 2, to_go_s=7.0)
    key, value = encode_driver_report(report)
    document = json.loads(value)
    assert document.pop("to_go_s") == 7.0
    odd = [{**document, "to_go_s": one} for one in ("7", -1, True, [], float("inf"), float("nan"))]
    for one in (document, *odd):
        found = decode_driver_report(key, json.dumps(one).encode())
        assert found == replace(report, to_go_s=None)


@given(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=60))
def test_garbage_is_no_drivers_report(key, value):
    assert decode_driver_report(key, value) is None
    assert decode_driver_report(b"A->B/driver", value) is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3)))  # fmt: skip
def test_fields_of_the_wrong_shape_are_no_drivers_report(odd):
    key, value = encode_driver_report(DriverReport(FLOW, "r", "h", "v", 1, 2, slot_count=3))
    document = json.loads(value)
    for name in document:
        found = decode_driver_report(key, json.dumps({**document, name: odd}).encode())
        assert found is None or found.flow == FLOW
