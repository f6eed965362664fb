"""One partition beside its copy: what every difference is called, and what is no difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.verify import comparison
from sparkmirror.control.verify.comparison import PartitionComparison
from sparkmirror.control.verify.scope import (
    STRETCH,
    Bound,
    NothingToCompare,
    Progress,
    Scope,
    ScopeOffsets,
    _unrepeatable,
)
from sparkmirror.data.transform.compared import ReplayedTopics
from sparkmirror.errors import Defect
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.comparison_result import EMPTY, PartitionResult
from sparkmirror.records.records import Carried, encode_rest
from sparkmirror.settings import ClusterClient, FetchSettings, FlowSettings
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.admin.cluster import Cluster

TP, COPY = TopicPartition("t", 1), TopicPartition("A.t", 1)
A, B = (ClusterClient(name, ("x:1",), "t") for name in "AB")
Row = tuple[int, int, bytes]
"""(offset, time, key and value)."""


class Stream:
    """Reads a log of the test, in runs of seven; counts those that are open."""

    logs: dict[tuple[str, TopicPartition], list[Row]]
    open: int
    read: list[tuple[str, int, int]]

    def __init__(
        self, client: ClusterClient, fetch: FetchSettings, tp: TopicPartition, start: int, end: int
    ) -> None:
        Stream.open += 1
        Stream.read.append((client.alias, start, end))
        self.rows = [row for row in Stream.logs[client.alias, tp] if start <= row[0] < end]
        assert (fetch.isolation_level == "read_uncommitted") == (client is A)

    def __iter__(self) -> Iterator[Carried]:
        for at in range(0, len(self.rows), 7):
            part = self.rows[at : at + 7]
            offsets, times, rests = (list(column) for column in zip(*part, strict=True))
            yield Carried(offsets, times, [0] * len(part), rests)

    def close(self) -> None:
        Stream.open -= 1


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    Stream.logs, Stream.open, Stream.read = {}, 0, []
    monkeypatch.setattr(comparison, "RecordStream", Stream)


def rest(number: int, key: bytes = b"k") -> bytes:
    return encode_rest(key, b"value %d" % number)


def log(numbers: Sequence[int], first: int = 0) -> list[Row]:
    """Records that are told apart by their number, which is their time, too."""
    return [(first + n, 1_000 + number, rest(number)) for n, number in enumerate(numbers)]


def compared(
    source: list[Row],
    target: list[Row],
    *,
    start: int | None = None,
    end: int | None = None,
    remote_start: int | None = None,
    later: int | None = None,
    **more: Any,
) -> PartitionResult:
    """The result for two logs. ``later``: where the source ends by now, else at its ``end``."""
    Stream.logs = {("A", TP): source, ("B", COPY): target}
    scope: Scope = more.get("scope", Scope())

    def offsets_at(rows: list[Row]) -> Any:
        def ask(partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
            found = [offset for offset, when, _ in rows if when >= time_ms]
            return dict.fromkeys(partitions, found[0]) if found else {}

        return ask

    first = source[0][0] if source else 0
    last = source[-1][0] + 1 if source else 0
    remote_first = (target[0][0] if target else 0) if remote_start is None else remote_start
    chosen: Any = SimpleNamespace(
        flow=SimpleNamespace(
            source=A, target_admin=B, fetch=FetchSettings(isolation_level="read_uncommitted")
        ),
        scope=scope,
        pairs={TP: COPY},
        there=more.get("there", {COPY}),
        stamped={"t"} if more.get("stamped") else set(),
        compacted={"t"} if more.get("compacted") else set(),
        earliest={TP: more.get("earliest", first)},
        starts={TP: first if start is None else start},
        ends=more.get("ends", {TP: last if end is None else end}),
        later_ends={TP: last if later is None else later},
        remote_starts={COPY: remote_first},
        remote_ends={COPY: target[-1][0] + 1 if target else remote_first},
        positions=more.get("positions", {}),
        transformed=more.get("transformed"),
        source=SimpleNamespace(offsets_at=offsets_at(source)),
        target=SimpleNamespace(offsets_at=offsets_at(target)),
    )
    result = PartitionComparison(chosen, TP, more.get("progress", Progress())).compared()
    assert Stream.open == 0, "every stream is closed"
    assert (result.topic, result.partition) == TP
    assert result.equal == (result.difference is None)
    return result


def told(result: PartitionResult) -> tuple[str, int | None, int | None, str]:
    one = result.difference
    assert one is not None
    return one.kind, one.source_offset, one.target_offset, one.what


def test_equal_logs_are_equal_wherever_the_copy_begins() -> None:
    progress = Progress()
    result = compared(log(range(30)), log(range(30), 100), remote_start=100, progress=progress)
    assert result.difference is None
    assert result.source == result.target
    assert (result.source.records, progress.taken, result.remark) == (30, 30, "")


def test_without_partition_or_leader_there_is_nothing_to_compare() -> None:
    result = compared(log(range(3)), [], there=set())
    assert told(result) == ("no partition", 0, None, "the target has no partition A.t-1")
    assert (result.source, result.target) == (EMPTY, None)
    result = compared(log(range(3)), [], ends={})
    assert told(result) == ("no partition", None, None, "no leader at the source")
    assert Stream.read == []


@pytest.mark.parametrize(
    ("positions", "kind", "what"),
    [
        ({TP: 20}, "behind", "source offset 20 is not mirrored yet"),
        ({TP: 21}, "missing", "the target lacks source offset 20"),
        ({}, "missing", "the target lacks source offset 20"),
    ],
)
def test_what_lacks_at_the_end_is_behind_or_missing_by_the_position(
    positions: dict[TopicPartition, int], kind: str, what: str
) -> None:
    result = compared(log(range(30)), log(range(20)), positions=positions)
    assert told(result) == (kind, 20, None, what)
    assert result.target is not None
    assert (result.source.records, result.target.records) == (30, 20)


def test_what_came_after_the_freeze_is_no_difference() -> None:
    assert compared(log(range(30)), log(range(25)), end=20).difference is None
    assert compared(log(range(30)), log(range(20)), end=20).difference is None
    result = compared(log(range(30)), log(range(19)), end=20)
    assert told(result)[:2] == ("missing", 19)
    # But the target may have nothing that the source has not even now.
    result = compared(log(range(30)), log([*range(25), 77]), end=20, later=25)
    assert told(result) == ("extra", None, 25, "the target has more, from its offset 25 on")


def test_what_the_target_has_on_top_counts_unless_an_end_is_given() -> None:
    more = log([*range(10), 50, 51])
    result = compared(log(range(10)), more)
    assert told(result) == ("extra", None, 10, "the target has more, from its offset 10 on")
    assert result.target is not None
    assert result.target.records == 12
    assert compared(log(range(10)), more, scope=Scope(end=Bound(10))).difference is None


def test_a_record_that_lacks_or_differs_in_the_middle_is_found() -> None:
    source = log(range(30))
    result = compared(source, log([*range(12), *range(13, 30)]))
    assert told(result)[:3] == ("missing", 12, 12)
    changed = log(range(30))
    changed[12] = (12, 1_012, rest(99))
    assert told(compared(source, changed)) == (
        "differs", 12, 12, "source offset 12 and target offset 12 differ in value",
    )  # fmt: skip
    changed[12] = (12, 5, rest(12))
    assert told(compared(source, changed))[3].endswith("differ in timestamp")


def test_a_target_that_stamps_its_own_time_is_compared_without_it() -> None:
    stamped = [(offset, 9_999, body) for offset, _, body in log(range(20))]
    assert compared(log(range(20)), stamped).difference is not None
    result = compared(log(range(20)), stamped, stamped=True)
    assert result.difference is None
    assert result.remark == "the target sets its own timestamps: not compared"


# --- logs that do not begin with the same record ------------------------------------------------


def test_a_copy_that_lacks_the_beginning_is_missing_it() -> None:
    result = compared(log(range(30)), log(range(12, 30)))
    assert told(result)[:2] == ("missing", 0)
    # Of a log that has lost its own beginning, another text says it.
    result = compared(log(range(10, 30), 10), log(range(15, 30)), start=10)
    assert told(result) == (
        "missing", 10, 0, "the target begins with source offset 15: it lacks the records before it",
    )  # fmt: skip


def test_what_the_target_has_deleted_is_left_out() -> None:
    result = compared(log(range(30)), log(range(12, 30), 12), remote_start=12)
    assert result.difference is None
    assert result.remark == "the target has deleted the records before source offset 12"
    assert result.source.records == 18


def test_what_the_source_has_deleted_is_left_out() -> None:
    result = compared(log(range(12, 30), 12), log(range(30)), start=12)
    assert result.difference is None
    assert result.remark == "the target also holds older records, which the source has deleted"
    assert result.source.records == 18


def test_older_records_that_the_source_never_had_are_too_much() -> None:
    result = compared(log(range(30)), log([90, 91, *range(30)], 5), remote_start=5)
    what = "the target has records from its offset 5 on that the source never had"
    assert told(result) == ("extra", None, 5, what)


def test_logs_with_nothing_in_common_differ_in_their_first_record() -> None:
    result = compared(log(range(10, 20), 10), log(range(50, 60), 3), start=10, remote_start=3)
    assert told(result)[:3] == ("differs", 10, 3)


# --- a part of it -------------------------------------------------------------------------------


def test_from_a_bound_the_copy_is_looked_up_by_time() -> None:
    scope = Scope(start=Bound(20))
    result = compared(log(range(30)), log(range(30), 100), start=20, remote_start=100, scope=scope)
    assert result.difference is None
    assert result.source.records == 10
    assert ("B", 120, 130) in Stream.read, "no more of the target is read than is needed"
    assert compared(log(range(30)), [], start=30, scope=scope).source == EMPTY
    result = compared(log(range(30)), log(range(15)), start=20, scope=scope)
    assert told(result) == ("missing", 20, None, "the target lacks source offset 20")
    assert result.target is not None
    assert (result.source.records, result.target.records) == (10, 0)


def test_records_of_one_content_are_told_apart_by_what_follows() -> None:
    same = [(n, 1_000, rest(0)) for n in range(3)]
    numbers = log(range(1, 40), 3)
    target = [*same, (3, 1_000, rest(77)), *((o + 7, t, r) for o, t, r in [*same, *numbers])]
    source = [*same, *numbers]
    result = compared(source, target, start=0, scope=Scope(start=Bound(0)))
    assert result.difference is None
    assert result.source.records == 42


def test_a_sample_takes_stretches_from_all_of_the_log() -> None:
    count = 10 * STRETCH
    source, target = log(range(count)), log(range(count), 50)
    scope = Scope(sample=4)
    result = compared(source, target, remote_start=50, scope=scope)
    assert result.difference is None
    assert result.source.records == 4 * STRETCH
    assert result.remark == f"4 stretches of up to {STRETCH} records"
    begun = [start for alias, start, _ in Stream.read if alias == "A"]
    assert begun == [0, 2_500, 5_000, 7_500]
    del target[5_100]
    result = compared(source, target, remote_start=50, scope=scope)
    assert told(result)[:2] == ("missing", 5_100)
    # Between the stretches nothing is looked at.
    assert compared(source, log([*range(2_000), *range(2_001, count)]), scope=scope).equal


def test_a_sample_passes_over_what_the_target_has_deleted() -> None:
    source = log(range(4_000))
    target = log(range(2_000, 4_000), 2_000)
    result = compared(source, target, remote_start=2_000, scope=Scope(sample=4))
    assert result.difference is None
    assert result.source.records == 2 * STRETCH
    assert result.remark.startswith("the target has deleted the first stretches; 2 stretches of")
    result = compared(source, [(o - 2_000, t, r) for o, t, r in target], scope=Scope(sample=4))
    assert told(result) == ("missing", 0, None, "the target lacks source offset 0")


# --- compacted topics ---------------------------------------------------------------------------


def keyed(*pairs: tuple[bytes, bytes | None], first: int = 0) -> list[Row]:
    return [(first + n, 1_000, encode_rest(key, value)) for n, (key, value) in enumerate(pairs)]


def test_of_a_compacted_topic_the_last_values_count() -> None:
    source = keyed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"c", None))
    target = keyed((b"b", b"1"), (b"a", b"2"), first=9)
    result = compared(source, target, compacted=True)
    assert result.difference is None
    assert result.equal
    assert result.by_key
    assert result.remark == "compacted: the last value of each key is compared"
    assert result.source == result.target
    assert result.source.records == 2


@pytest.mark.parametrize(
    ("target", "positions", "wanted"),
    [
        (((b"a", b"1"),), {}, ("missing", 1, None, "the target lacks the key of source offset 1")),
        (((b"a", b"1"),), {TP: 1}, ("behind", 1, None, "source offset 1 is not mirrored yet")),
        (((b"a", b"1"),), {TP: 2},
         ("missing", 1, None, "the target lacks the key of source offset 1")),
        (((b"b", b"1"), (b"a", b"0")), {},
         ("differs", 0, 1, "source offset 0 and target offset 1 have one key and differ")),
        (((b"a", b"1"), (b"b", b"1"), (b"x", b"1")), {},
         ("extra", None, 2, "the target has a key at its offset 2 that the source does not have")),
    ],
)  # fmt: skip
def test_a_key_that_lacks_differs_or_is_too_much(
    target: tuple[tuple[bytes, bytes], ...],
    positions: dict[TopicPartition, int],
    wanted: tuple[str, int | None, int | None, str],
) -> None:
    source = keyed((b"a", b"1"), (b"b", b"1"))
    result = compared(source, keyed(*target), compacted=True, positions=positions)
    assert told(result) == wanted


def test_a_newer_value_on_the_target_is_one_that_came_after_the_freeze() -> None:
    source = keyed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None))
    target = keyed((b"a", b"2"))
    assert compared(source, target, compacted=True, end=2, later=4).difference is None
    target = keyed((b"a", b"3"))
    result = compared(source, target, compacted=True, end=2, later=4)
    assert told(result)[:3] == ("differs", 0, 0)


def test_a_log_that_retention_has_emptied_is_left_out() -> None:
    """Each side deletes its segments at its own time."""
    result = compared([], log(range(30)), start=30, end=30, later=30, earliest=30)
    assert (result.difference, result.remark) == (None, "the source has deleted all its records")
    rows, all_of_it = log(range(30)), {TP: 30}
    for scope in (Scope(), Scope(sample=2)):
        result = compared(rows, [], remote_start=30, positions=all_of_it, scope=scope)
        assert result.difference is None
        assert "the target has deleted" in result.remark
    assert told(compared(rows, [], positions=all_of_it))[0] == "missing", "it was never written"
    assert told(compared(rows, [], remote_start=30, positions={TP: 7}))[:2] == ("behind", 7)


# -- transforms ------------------------------------------------------------------------------------


class Made:
    """A transform that keeps even numbers, and stops before the record at offset ``stops``."""

    def __init__(self, source: list[Row], stops: int | None = None) -> None:
        self._rows, self._stops = source, stops
        self.open = 0

    def has(self, topic: str) -> bool:
        return topic == "t"

    def read(self, tp: TopicPartition, start: int, end: int) -> Any:
        assert tp == TP
        self.open += 1
        try:
            for offset, time, text in self._rows:
                if start <= offset < end and time % 2 == 0:
                    if self._stops is not None and offset >= self._stops:
                        return
                    yield Carried([offset], [time], [0], [text])
        finally:
            self.open -= 1

    def stopped(self, _: TopicPartition) -> tuple[int, str] | None:
        return None if self._stops is None else (self._stops, "[WHY]")

    def remark(self, _: TopicPartition) -> str:
        return "after the transform even"


@pytest.mark.parametrize("first", [0, 20])
def test_a_transformed_topic_is_compared_with_what_its_transform_makes(first: int) -> None:
    """Also where both logs begin with other records, since older ones were deleted."""
    rows = log(range(first, 40), first)
    made = Made(rows)
    copy = log(range(10 if first else 0, 40, 2), 500)
    result = compared(rows, copy, remote_start=500 if first else 0, transformed=made)
    assert result.difference is None
    assert (result.source.records, made.open) == ((40 - first) // 2, 0)
    assert result.source == result.target
    assert result.remark.startswith("after the transform even")
    assert ("A", first, 40) not in Stream.read


def test_the_first_record_that_differs_is_named_by_its_source_offset() -> None:
    rows = log(range(40))
    copy = [
        (at, time, rest(99) if time == 1_020 else text) for at, time, text in log(range(0, 40, 2))
    ]
    made = Made(rows)
    result = compared(rows, copy, transformed=made)
    assert told(result) == (
        "differs",
        20,
        10,
        "source offset 20 and target offset 10 differ in value",
    )
    assert made.open == 0
    result = compared(rows, log([*range(0, 20, 2), *range(22, 40, 2)]), transformed=Made(rows))
    assert told(result)[:2] == ("missing", 20)


def test_a_record_on_which_the_transform_fails_is_where_the_mirror_stops() -> None:
    rows = log(range(40))
    result = compared(rows, log(range(0, 20, 2)), transformed=Made(rows, stops=20))
    assert told(result) == ("failed", 20, None, "the mirror stops at source offset 20: [WHY]")
    ended = compared(rows, log(range(0, 20, 2)), end=20, transformed=Made(rows, stops=20))
    assert ended.difference is None


@pytest.mark.parametrize("stops", [0, 20, 38])
@pytest.mark.parametrize("how", [{"scope": Scope(sample=4)}, {"compacted": True}])
def test_it_is_named_however_the_partition_is_compared(stops: int, how: dict[str, Any]) -> None:
    rows = log(range(40))
    copy = log(range(0, stops, 2))
    result = compared(rows, copy, transformed=Made(rows, stops=stops), **how)
    assert told(result)[:2] == ("failed", stops)


def test_a_transform_that_makes_other_records_each_time_is_named() -> None:
    class Random(Made):
        def unrepeatable(self, topic: str) -> str:
            return "the SQL of the transform r is not deterministic" if topic == "t" else ""

    flow = FlowSettings(A, B, A, B)
    known: Any = Random([])
    found = _unrepeatable(flow, ["t", "u"], known)
    assert [str(one) for one in found.values()] == [
        "flow A->B: topic t is not compared: the SQL of the transform r is not deterministic."
    ]
    assert _unrepeatable(flow, ["t"], None) == {}


class _Cluster:
    """Two empty topics of one partition."""

    alias = "A"

    def topics(self, _names: object = None) -> dict[str, Any]:
        return {name: SimpleNamespace(internal=False, partitions=1) for name in ("t", "u")}

    def earliest_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Any, _isolation: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def committed_offsets(self, _group: str, _partitions: object) -> dict[TopicPartition, Any]:
        return {}

    def topic_configs(self, _topics: object) -> dict[str, Any]:
        return {}


def test_a_topic_of_two_transforms_is_left_out_and_the_others_are_compared() -> None:
    """As a mirror leaves it out."""
    two = tuple(TransformSettings(name, ("t",), "true") for name in ("one", "two"))
    flow, cluster = FlowSettings(A, B, A, B, transforms=two), cast(Cluster, _Cluster())
    transformed = ReplayedTopics(flow, lambda: pytest.fail("Spark is not needed"))
    found = ScopeOffsets(cluster, cluster, flow, Scope(wait_s=0), transformed)
    assert set(found.pairs) == {TopicPartition("u", 0)}
    (error,) = found.left_out.values()
    assert "topic t matches the transforms one and two" in str(error)


def test_partitions_that_no_topic_has() -> None:
    """Else nothing would be compared, and all would be equal."""
    flow, cluster = FlowSettings(A, B, A, B), cast(Cluster, _Cluster())
    with pytest.raises(NothingToCompare, match="no topic has such a partition"):
        ScopeOffsets(cluster, cluster, flow, Scope(partitions=(99,), wait_s=0))


def test_a_flow_with_transforms_is_not_compared_without_them() -> None:
    flow = FlowSettings(A, B, A, B, transforms=(TransformSettings("clean", ("t",), "true"),))
    nobody: Any = None
    with pytest.raises(Defect):
        comparison.verify_flow(nobody, nobody, flow, Scope())
