"""Lag: the arithmetic, timestamps out of batch headers, the table and the limits."""

import struct
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.cli.main import main
from sparkmirror.cli.verbs import lag_queries
from sparkmirror.cli.verbs.lag import Format, LagTrend, any_over_limit, over_limit, report
from sparkmirror.cli.verbs.lag_tables import broker_lines
from sparkmirror.config.mm1.load import load_mm1_consumer
from sparkmirror.control.positions.lag import (
    LagView,
    Offsets,
    PartitionLag,
    measure,
    observe_group,
)
from sparkmirror.errors import ClusterError, ConfigError
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.admin.messages import record_batch
from sparkmirror.wire.admin.record_times import first_record, records_at
from sparkmirror.wire.cluster.views import BrokerView, Committed, GroupOwner, TopicView
from tests.unit.config_files import BASE, write

TP = TopicPartition("t", 0)
CONSUMER = "bootstrap.servers=127.0.0.1:1\ngroup.id=g\n"


def one(
    position: int | None,
    start: int | None,
    end: int | None,
    *,
    reset: str = "earliest",
    time_ms: int | None = None,
    size: float | None = None,
) -> PartitionLag:
    offsets = Offsets(*({} if value is None else {TP: value} for value in (position, start, end)))
    times = {} if time_ms is None else {TP: time_ms}
    sizes = {} if size is None else {TP: size}
    (row,) = measure([TP], offsets, times, sizes, reset=reset, now_ms=10_000)
    return row


@pytest.mark.parametrize(
    ("row", "records", "seconds", "remark"),
    [
        (one(7, 0, 10, time_ms=8_500), 3, 1.5, ""),
        (one(10, 0, 10), 0, 0.0, ""),
        (one(7, 0, 10), 3, None, ""),
        (one(7, 0, 10, time_ms=99_999), 3, 0.0, ""),  # a clock that is ahead
        (one(None, 4, 10), 6, None, "no position yet, begins at earliest"),
        (one(None, 4, 10, reset="latest"), None, None, "no position yet, begins at latest"),
        (one(None, 4, 4, reset="latest"), 0, 0.0, "no position yet, begins at latest"),
        (one(3, 5, 10), 5, None, "retention deleted 2 offsets before they were mirrored"),
        (one(11, 0, 10), None, None, "the position is beyond the end"),
        (one(3, None, None), None, None, "no leader"),
        (one(None, None, None), None, None, "no leader"),
    ],
)
def test_measure(
    row: PartitionLag, records: int | None, seconds: float | None, remark: str
) -> None:
    assert row.records == records
    assert row.seconds == seconds
    assert row.remark.startswith(remark)
    assert bool(row.remark) == bool(remark)


@given(
    st.dictionaries(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 3)),
                    st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)))
)  # fmt: skip
def test_every_partition_has_one_row_and_no_lag_is_negative(
    state: dict[TopicPartition, tuple[int, int, int]],
) -> None:
    starts = {tp: min(low, high) for tp, (_, low, high) in state.items()}
    ends = {tp: max(low, high) for tp, (_, low, high) in state.items()}
    positions = {tp: position for tp, (position, _, _) in state.items()}
    rows = measure(state, Offsets(positions, starts, ends), {}, reset="earliest", now_ms=0)
    assert [TopicPartition(row.topic, row.partition) for row in rows] == sorted(state)
    for row in rows:
        tp = TopicPartition(row.topic, row.partition)
        if positions[tp] <= ends[tp]:
            assert row.records == ends[tp] - max(positions[tp], starts[tp])


def batch(offset: int, time_ms: int, count: int = 1, *, attributes: int = 0) -> bytes:
    data = bytearray(record_batch([(b"k", b"v")] * count, time_ms))
    struct.pack_into(">q", data, 0, offset)
    struct.pack_into(">h", data, 21, attributes)
    return bytes(data)


def first_time_ms(records: bytes, position: int) -> int:
    found = first_record(records, position)
    return -1 if found is None else found.time_ms


def test_the_batch_that_holds_the_position_tells_the_time() -> None:
    records = batch(10, 1_000, 5) + batch(15, 2_000)
    assert first_time_ms(records, 10) == 1_000
    assert first_time_ms(records, 14) == 1_000
    assert first_time_ms(records, 15) == 2_000
    assert first_time_ms(records, 16) == -1
    assert first_time_ms(b"", 0) == -1


def test_control_batches_hold_no_records() -> None:
    assert first_time_ms(batch(1, 5, attributes=0x20) + batch(2, 7), 1) == 7


def test_log_append_time_is_that_of_the_batch() -> None:
    data = bytearray(batch(1, 5, attributes=0x08))
    struct.pack_into(">q", data, 35, 99)
    assert first_time_ms(bytes(data), 1) == 99


def test_old_formats() -> None:
    magic_1 = struct.pack(">qiIBBq", 3, 22, 0, 1, 0, 123) + b"\0" * 8
    magic_0 = struct.pack(">qiIBB", 3, 14, 0, 0, 0) + b"\0" * 8
    assert first_time_ms(magic_1, 3) == 123
    assert first_time_ms(magic_0, 3) == -1


@given(st.binary(max_size=80), st.integers(0, 5))
def test_garbage_never_raises_or_loops(data: bytes, position: int) -> None:
    first_time_ms(data, position)


@pytest.mark.parametrize(
    ("row", "records", "seconds", "over"),
    [
        (one(7, 0, 10, time_ms=8_500), 3, None, False),
        (one(7, 0, 10, time_ms=8_500), 2, None, True),
        (one(7, 0, 10, time_ms=8_500), None, 1.5, False),
        (one(7, 0, 10, time_ms=8_500), None, 1.4, True),
        (one(7, 0, 10), 5, 100, True),
        (one(11, 0, 10), 5, None, True),
        (one(11, 0, 10), None, None, False),
    ],
)
def test_limits(row: PartitionLag, records: int | None, seconds: float | None, over: bool) -> None:
    assert over_limit(row, records, seconds) is over
    assert any_over_limit([LagView("A->B", "g", "B", (row,))], records, seconds) is over


@pytest.mark.parametrize(("records", "seconds"), [(0, None), (None, 0.0), (0, 0.0), (9, 9.0)])
def test_a_flow_that_shows_nothing_keeps_no_limit(
    records: int | None, seconds: float | None
) -> None:
    """Its principal may see no topic any more; what it lags behind is unknown then."""
    seen, unseen = (LagView("A->B", "g", "B", rows) for rows in ((one(10, 0, 10),), ()))
    assert any_over_limit([seen, unseen], records, seconds)
    assert not any_over_limit([seen], records, seconds)
    assert not any_over_limit([seen, unseen], None, None)


OWNED = LagView(
    "",
    "mirror",
    "A",
    (
        PartitionLag("orders", 0, 7, 10, 3, 1.5, "", GroupOwner("m-1", "client", "10.0.0.1")),
        PartitionLag("orders", 10, 12, 10, None, None, "made anew", GroupOwner("mirror_host-0")),
        PartitionLag("a-topic-with-a-name-of-over-30-letters", 0, None, 4, 4, None),
        PartitionLag("gone", 0, 3, None, None, None, "no leader"),
    ),
    (BrokerView(1, "b1", 9092), BrokerView(2, "b2", 9093)),
)


def test_the_classic_table() -> None:
    # "%-15s %-30s %-3s %-15s %-15s %-15s %s", as ConsumerOffsetChecker.scala prints it.
    assert [line.rstrip() for line in report([OWNED], Format.CLASSIC).lines()] == [
        "Group           Topic                          Pid Offset          logSize         Lag"
        "             Owner",
        "mirror          orders                         0   7               10              3"
        "               client_/10.0.0.1",
        "mirror          orders                         10  12              10              -2"
        "              mirror_host-0",
        "mirror          a-topic-with-a-name-of-over-30-letters 0   -1              4"
        "               unknown         none",
        "mirror          gone                           0   3               unknown         unknown"
        "         none",
    ]
    assert broker_lines([OWNED]) == ["BROKER INFO", "1 -> b1:9092", "2 -> b2:9093"]


def test_the_columns_of_the_newer_tool() -> None:
    head, first, second, third, _ = report([OWNED], Format.GROUPS).lines()
    assert head.split() == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET",
                            "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]  # fmt: skip
    assert first.split()[3:] == ["7", "10", "3", "m-1", "/10.0.0.1", "client"]
    assert second.split()[3:] == ["12", "10", "-2", "mirror_host-0", "-", "-"]
    assert third.split()[3:] == ["-", "4", "-", "-", "-", "-"]
    assert head.index("LAG") == first.index("3 ")


VIEW = LagView(
    "A->B",
    "__mirror.A->B",
    "B",
    (
        one(7, 0, 10, time_ms=8_500, size=100.1),
        PartitionLag("a-topic-with-a-long-name", 3, None, None, None, None, "no leader"),
    ),
)  # fmt: skip


def test_the_table_has_the_columns_of_kafkas_tool() -> None:
    title, head, first, second = report([VIEW]).lines()
    assert title == "A->B: group __mirror.A->B on B"
    assert head.split() == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET",
                            "LAG", "SECONDS", "BYTES"]  # fmt: skip
    assert first.split() == ["__mirror.A->B", "t", "0", "7", "10", "3", "1.5", "300"]
    assert second.split()[:8] == [
        "__mirror.A->B", "a-topic-with-a-long-name", "3", "-", "-", "-", "-", "-",
    ]  # fmt: skip
    assert second.endswith("no leader")
    assert head.index("LAG") == first.index("3 ")
    assert report([LagView("", "g", "A", ())]).lines()[-1] == "no partitions"


def test_what_is_at_its_end_hides_no_age_that_is_not_known() -> None:
    done = one(10, 0, 10)
    assert LagView("", "g", "A", (done, done)).seconds == 0.0
    assert LagView("", "g", "A", (done, one(7, 0, 10))).seconds is None
    assert LagView("", "g", "A", (done, one(7, 0, 10), one(8, 0, 10, time_ms=9_000))).seconds == 1.0


def test_the_time_to_go_comes_from_several_looks() -> None:
    pace = LagTrend()

    def look(second: int, position: int, *, time_ms: int = 0) -> dict[str, float]:
        view = LagView("", "g", "A", (one(position, 0, 1_000, time_ms=time_ms),))
        return pace.note([view], second * 1_000)

    assert look(0, 0) == {}
    assert look(5, 500) == {"g": pytest.approx(5.0)}
    assert look(10, 500) == {"g": pytest.approx(10.0)}
    assert look(15, 600, time_ms=9_999) == {}, "what is a second late does not catch up"


def test_the_size_of_a_batch_tells_that_of_its_records() -> None:
    data = batch(10, 1_000, 5)
    found = first_record(data, 10)
    assert found is not None
    assert found.mean_bytes == len(data) / 5


def test_totals_are_known_only_when_all_parts_are() -> None:
    flows = report([VIEW]).document["flows"]  # type: ignore[index]
    assert isinstance(flows, list)
    assert flows[0]["lag_records"] is None
    assert flows[0]["lag_seconds_max"] == 1.5
    assert len(flows[0]["partitions"]) == 2


def test_a_consumer_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "broker.list=a:1\ngroupid=g\nautooffset.reset=largest\n")
    (flow,) = load_mm1_consumer(path, include="t.*").flows
    assert (flow.group_id, flow.source.bootstrap_servers) == ("g", ("a:1",))
    assert flow.topics.include == ("t.*",)
    with pytest.raises(ConfigError, match=r"group\.id is missing"):
        load_mm1_consumer(write(tmp_path, "broker.list=a:1\n"))


def test_a_consumer_file_with_keys_of_mirrormaker_2(tmp_path: Path) -> None:
    """The mirror runs such a file; the keys say nothing about the group."""
    path = write(tmp_path, CONSUMER + "topics=x.*\ntasks.max=4\nclient.rack\n")
    settings = load_mm1_consumer(path)
    assert [flow.group_id for flow in settings.flows] == ["g"]
    (warning,) = settings.warnings
    assert "no '=' follows 'client.rack'" in warning
    with pytest.raises(ConfigError, match="renames topics"):
        load_mm1_consumer(
            write(tmp_path, CONSUMER + "replication.policy.class=DefaultReplicationPolicy\n")
        )


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        (BASE, ["--watch", "--max-lag", "5"], "a limit is checked once"),
        (BASE, ["--include", "t"], "a MirrorMaker 2 file names its topics itself"),
        (BASE, ["--clusters", "A"], "No source->target replication flows"),
        ("group.id=g\n", [], "bootstrap.servers is missing"),
        ("bootstrap.servers=a:1\n", ["--format", "classic"], "group.id is missing"),
        (BASE, ["--group", "g"], "a MirrorMaker 2 file names several clusters"),
        (BASE, ["--format", "classic"], "a MirrorMaker 2 file names several clusters"),
        (CONSUMER, ["--clusters", "nowhere"], "--clusters: this option needs a MirrorMaker 2 file"),
        (CONSUMER, ["--group", "g", "--include", "t"], "--include: this option is for a mirror"),
        (CONSUMER, ["--group", "g", "--clusters", "A"], "--clusters, --flow: this option is for"),
        (CONSUMER, ["--group", "g", "--command-config", "x"], "two files say how to connect"),
    ],
)
def test_wrong_usage(
    tmp_path: Path,
    text: str,
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["lag", str(write(tmp_path, text)), *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no file and no group is named"),
        (["--bootstrap-server", "a:1"], "group.id is missing"),
        (["--group", "g", "--bootstrap-server", "nothing"], "--bootstrap-server"),
        (["--group", "g", "--zkconnect", "a:x"], "ZooKeeper a:x"),
    ],
)
def test_wrong_usage_without_a_file(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lag", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_options_count_more_than_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "zookeeper.connect=z:1\ngroup.id=g\nsecurity.protocol=PLAINTEXT\n")
    options = {
        "group.id": ("other", "--group"),
        "bootstrap.servers": ("b:1", "--bootstrap-server"),
    }
    (flow,) = load_mm1_consumer(path, options=options).flows
    assert (flow.group_id, flow.source.bootstrap_servers) == ("other", ("b:1",))
    assert flow.zookeeper == ""


def test_a_delete_horizon_is_no_records_time() -> None:
    """KIP-534: the base timestamp of a cleaned batch may be when its tombstones go."""
    batch = encode_batch([Record(7, 1_000, b"k", None)], attributes=0x40, base_timestamp=9_999_999)
    found = first_record(batch, 7)
    assert found is not None
    assert found.time_ms == 1_000


def source_of(committed: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> Any:
    """A source with logs from 0 to ``ends``, and a group with ``committed`` offsets."""
    counts = Counter(tp.topic for tp in ends)
    return SimpleNamespace(
        alias="A",
        committed_offsets=lambda *_: {tp: Committed(at) for tp, at in committed.items()},
        topics=lambda names: {
            name: TopicView(name, "", count, 1) for name, count in counts.items() if name in names
        },
        earliest_offsets=lambda tps: {tp: 0 for tp in tps if tp in ends},
        end_offsets=lambda tps, _: {tp: ends[tp] for tp in tps if tp in ends},
        records_at=lambda _: {},
    )


@pytest.mark.parametrize(
    ("reset", "end", "records"),
    [("earliest", 100, 100), ("latest", 100, 0), ("latest", 0, 0), ("by_duration:pt1h", 100, None)],
)
def test_partitions_that_the_group_has_not_committed_yet_count(
    tmp_path: Path, reset: str, end: int, records: int | None
) -> None:
    """A topic grows, and other topics are none of the group's. At `latest` nothing is left."""
    text = f"{CONSUMER}auto.offset.reset={reset}\n"
    (flow,) = load_mm1_consumer(write(tmp_path, text)).flows
    second = TopicPartition("t", 1)
    source = source_of({TP: 5}, {TP: 5, second: end, TopicPartition("other", 0): 9})
    view = observe_group(source, flow)
    assert [(row.topic, row.partition, row.position, row.records) for row in view.partitions] == [
        ("t", 0, 5, 0),
        ("t", 1, None, records),
    ]
    assert view.records == records
    assert (view.bytes, view.seconds) == ((0, 0.0) if records == 0 else (None, None))
    assert any(over_limit(row, 0, None) for row in view.partitions) is (records != 0)
    assert any(over_limit(row, None, 0) for row in view.partitions) is (records != 0)
    assert view.partitions[1].remark == f"no position yet, begins at {reset}"


def test_a_partition_without_a_leader_has_an_unknown_lag_at_latest(tmp_path: Path) -> None:
    (flow,) = load_mm1_consumer(write(tmp_path, CONSUMER)).flows
    source = source_of({TP: 5}, {TP: 5, TopicPartition("t", 1): 7})
    source.end_offsets = lambda *_: {TP: 5}
    view = observe_group(source, flow)
    assert [row.records for row in view.partitions] == [0, None]
    assert (view.records, view.partitions[1].remark) == (None, "no leader")


def test_offsets_of_what_is_gone_are_no_lag(tmp_path: Path) -> None:
    """They stay until they expire."""
    (flow,) = load_mm1_consumer(write(tmp_path, CONSUMER)).flows
    gone = {TopicPartition("gone", 0): 7, TopicPartition("t", 1): 3}
    view = observe_group(source_of({TP: 2, **gone}, {TP: 5}), flow)
    assert [(row.topic, row.partition) for row in view.partitions] == [TP]
    assert view.records == 3


@pytest.mark.parametrize("committed", [{}, {TopicPartition("gone", 0): 7}])
def test_a_group_without_offsets_is_an_error(
    tmp_path: Path, committed: dict[TopicPartition, int]
) -> None:
    """As with the other formats: a mistyped group is not one without a lag."""
    (flow,) = load_mm1_consumer(write(tmp_path, CONSUMER)).flows
    nobody = source_of(committed, {TP: 5})
    connections: Any = SimpleNamespace(cluster=lambda _: nobody)
    with pytest.raises(ClusterError, match="has no offsets of topics that exist"):
        lag_queries._read_group(connections, flow)


def test_the_record_behind_a_marker_tells_the_time() -> None:
    """A broker returns one batch, and a group's offset is often that of a marker."""
    log = {10: batch(10, 5, attributes=0x20), 11: batch(11, 7_000)}

    def request(make: Any, *_: object, **__: object) -> Any:
        at = make().topics[0].partitions[0].fetch_offset
        part = SimpleNamespace(error_code=0, records=log.get(at, b""))
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[part])])

    leaders: Any = SimpleNamespace(by_leader=lambda tps, fresh: ({1: list(tps)}, set()))
    requester: Any = SimpleNamespace(request=request)
    assert records_at(requester, leaders, {TP: 10}, 5.0)[TP].time_ms == 7_000
    assert records_at(requester, leaders, {TP: 12}, 5.0) == {}
