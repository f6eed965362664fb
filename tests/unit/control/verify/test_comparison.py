"""One partition beside its copy: what every difference is called, and what is no difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.verify import comparison
from sparkmirror.control.verify.comparison import PartitionComparison, compare_partition
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
from sparkmirror.errors import Defect, PartitionError, TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.comparison_result import EMPTY, Difference, PartitionResult
from sparkmirror.records.records import Carried, encode_rest
from sparkmirror.settings import (
    ClusterClient,
    FetchSettings,
    FlowSettings,
    Partitioner,
    RecordSettings,
)
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
        self,
        client: ClusterClient,
        fetch: FetchSettings,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        over: Event | None = None,
    ) -> None:
        self.alias = client.alias
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
    """The result for two logs. ``later``: where the source ends by now, else at its ``end``.

    ``silent``: the clusters whose leaders do not tell the offset of a time.
    """
    Stream.logs = {("A", TP): source, ("B", COPY): target}
    scope: Scope = more.get("scope", Scope())

    def cluster(alias: str, rows: list[Row]) -> Any:
        def offsets_at(partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
            if alias in more.get("silent", ""):
                return {}
            found = [offset for offset, when, _ in rows if when >= time_ms]
            return dict.fromkeys(partitions, found[0] if found else -1)

        return SimpleNamespace(alias=alias, offsets_at=offsets_at)

    first = source[0][0] if source else 0
    last = source[-1][0] + 1 if source else 0
    remote_first = (target[0][0] if target else 0) if remote_start is None else remote_start
    chosen: Any = SimpleNamespace(
        flow=SimpleNamespace(
            source=A, target_admin=B, fetch=FetchSettings(isolation_level="read_uncommitted")
        ),
        scope=scope,
        pairs={TP: COPY},
        surplus=more.get("surplus", {}),
        there=more.get("there", {COPY}),
        stamped={"t"} if more.get("stamped") else set(),
        compacted={"t"} if more.get("compacted") else set(),
        earliest={TP: more.get("earliest", first)},
        starts={TP: first if start is None else start},
        ends=more.get("ends", {TP: last if end is None else end}),
        later_ends={TP: last if later is None else later},
        remote_starts={COPY: remote_first},
        remote_ends=more.get("remote_ends", {COPY: target[-1][0] + 1 if target else remote_first}),
        unknown=set(),
        positions=more.get("positions", {}),
        transformed=more.get("transformed"),
        source=cluster("A", source),
        target=cluster("B", target),
    )
    renew = more.get("renew", lambda _: False)
    chosen.renew = lambda _: renew(chosen)
    result = compare_partition(chosen, TP, more.get("progress", Progress()), more.get("over"))
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


def test_without_a_partition_there_is_nothing_to_compare() -> None:
    result = compared(log(range(3)), [], there=set())
    assert told(result) == ("no partition", 0, None, "the target has no partition A.t-1")
    assert (result.source, result.target) == (EMPTY, None)
    assert Stream.read == []


@pytest.mark.parametrize(("lost", "side"), [("ends", "source"), ("remote_ends", "target")])
def test_without_a_leader_nothing_is_known(lost: str, side: str) -> None:
    """It is no difference, nor an empty log."""
    result = compared(log(range(3)), log(range(3)), **{lost: {}})
    assert told(result) == ("unread", None, None, f"no leader at the {side} tells its offsets")
    assert result.unread
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


@pytest.mark.parametrize(
    ("silent", "source", "target", "more"),
    [
        ("B", log(range(30)), log(range(30), 9), {"start": 20, "scope": Scope(start=Bound(20))}),
        ("B", log(range(30)), log(range(30), 9), {"scope": Scope(sample=2)}),
        ("A", log(range(30)), log(range(12, 30), 12), {"start": 5, "remote_start": 12}),
        ("A", log(range(60)), log(range(50, 60), 50),
         {"end": 40, "remote_start": 50, "scope": Scope(end=Bound(40))}),
    ],
)  # fmt: skip
def test_a_leader_that_does_not_tell_the_offset_of_a_time_has_not_said_that_none_is(
    silent: str, source: list[Row], target: list[Row], more: dict[str, Any]
) -> None:
    result = compared(source, target, silent=silent, **more)
    tp = TP if silent == "A" else COPY
    what = f"cluster {silent}: the leader of {tp} does not tell which record a time begins with."
    assert (result.unread, told(result)[3].startswith(what)) == (True, True)
    assert compared(source, target, **more).difference is None


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
    what = "the target has deleted the records before source offset 2000; 4 stretches of"
    assert result.remark.startswith(what), "all of them are where both have records"
    result = compared(source, [(o - 2_000, t, r) for o, t, r in target], scope=Scope(sample=4))
    assert told(result) == ("missing", 0, None, "the target lacks source offset 0")


def test_what_the_target_has_deleted_of_a_sample_does_not_go_by_times() -> None:
    """A producer's times may fall and rise."""
    scope, source = Scope(sample=4), log(range(4_000))
    source[2_000] = (2_000, 5, rest(2_000))
    target = [row for row in source[1_000:] if row[0] != 2_000]
    result = compared(source, target, remote_start=1_000, scope=scope)
    assert told(result)[:2] == ("missing", 2_000)
    source = log(range(4_000))
    source[0] = (0, 9_999_999, rest(0))
    result = compared(source, source[1_000:], remote_start=1_000, scope=scope)
    assert result.difference is None
    assert result.source.records == 3 * STRETCH


def test_where_the_target_begins_is_looked_up_once_for_all_stretches() -> None:
    source = log(range(8_000))
    target = [row for row in source[1_700:5_000] if row[0] != 1_710]
    more: dict[str, Any] = {"start": 100, "remote_start": 1_700, "positions": {TP: 8_000}}
    result = compared(source, target, scope=Scope(sample=3), **more)
    assert told(result)[:2] == ("missing", 1_710)
    whole = [start for alias, start, end in Stream.read if alias == "A" and end == 8_000]
    assert whole.count(1_700) == 2, "by its first records, of which one lacks, and by one"
    Stream.read.clear()
    result = compared(source, source[1_700:5_000], scope=Scope(sample=3), **more)
    assert told(result)[:2] == ("missing", 5_900)
    whole = [start for alias, start, end in Stream.read if alias == "A" and end == 8_000]
    assert whole.count(1_700) == 1


def test_a_sample_looks_only_where_both_have_records() -> None:
    """Else a sample of one stretch would compare nothing where the target keeps less."""
    source, scope = log(range(30)), Scope(sample=1)
    result = compared(source, source[20:25], remote_start=20, positions={TP: 30}, scope=scope)
    assert told(result)[:2] == ("missing", 25)
    result = compared(source, source[20:], remote_start=20, positions={TP: 30}, scope=scope)
    assert (result.difference, result.source.records) == (None, 10)
    # It is not looked for where the source keeps less.
    Stream.read.clear()
    rows = log(range(30_000))
    result = compared(rows[9_000:], rows[5_000:], start=9_000, scope=Scope(sample=2))
    assert (result.difference, result.source.records) == (None, 2 * STRETCH)
    assert max(end - start for alias, start, end in Stream.read if alias == "A") == STRETCH


@pytest.mark.parametrize(
    ("target", "more", "remark"),
    [
        ([], {"remote_start": 30}, "the target has deleted all its records"),
        (log(range(20, 30), 20), {"end": 15, "later": 15},
         "the target has deleted the records before source offset 15"),
        (log(range(20, 30), 20), {"start": 5, "end": 15, "later": 15, "stamped": True},
         "the target has deleted the records before source offset 15"),
    ],
)  # fmt: skip
def test_a_sample_that_could_compare_nothing_is_not_equal(
    target: list[Row], more: dict[str, Any], remark: str
) -> None:
    scope = Scope(sample=2, end=Bound(15) if "end" in more else None)
    result = compared(log(range(30)), target, positions={TP: 30}, scope=scope, **more)
    assert told(result) == ("left out", None, None, "nothing could be compared")
    assert result.remark.endswith(f"{remark}; 0 stretches of up to {STRETCH} records")


def test_a_sample_of_what_was_there_before_all_that_the_target_has_left_is_not_equal() -> None:
    """Retention was faster than the mirror's wait: the target begins behind the frozen end."""
    result = compared(
        log(range(30)), log(range(20, 30), 20), end=10, later=30, remote_start=20,
        scope=Scope(sample=2),
    )  # fmt: skip
    assert told(result)[0] == "left out"


def test_a_sample_whose_stretches_have_no_records_is_equal_only_if_there_are_none() -> None:
    """Of aborted transactions nothing is left but their offsets."""
    rows = [(5 * STRETCH, 1_000, rest(1))]
    result = compared(rows, log([1]), start=0, end=6 * STRETCH, scope=Scope(sample=1))
    assert told(result)[0] == "left out"
    assert compared(rows, [], start=0, end=5 * STRETCH, scope=Scope(sample=1)).equal


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
    result = compared(rows, [], remote_start=30, positions=all_of_it)
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


# --- logs that change, or cannot be read --------------------------------------------------------


def deleting(side: str, begins: dict[str, int]) -> type[Stream]:
    """Logs of which ``side`` loses the records before 20 when its second run is read."""

    class Deleting(Stream):
        def __iter__(self) -> Iterator[Carried]:
            for number, run in enumerate(super().__iter__()):
                if number == 1 and self.alias == side:
                    begins[side] = 20
                if run.offsets[0] < begins[self.alias]:
                    raise PartitionError("it is gone (OFFSET_OUT_OF_RANGE).", where="cluster A")
                yield run

    return Deleting


@pytest.mark.parametrize(
    ("side", "start", "remark"),
    [
        ("A", 20, "the target also holds older records, which the source has deleted"),
        ("B", 0, "the target has deleted the records before source offset 20"),
    ],
)
def test_retention_that_passes_the_reading_begins_it_again(
    side: str, start: int, remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, progress = {"A": 0, "B": 0}, Progress()
    monkeypatch.setattr(comparison, "RecordStream", deleting(side, begins))

    def renew(chosen: Any) -> bool:
        chosen.earliest[TP] = chosen.starts[TP] = begins["A"]
        chosen.remote_starts[COPY] = begins["B"]
        return True

    result = compared(log(range(30)), log(range(30)), renew=renew, progress=progress)
    assert result.difference is None
    assert (result.source.records, progress.taken) == (10, 10)
    again = f"begun again at source offset {start}: records were deleted meanwhile"
    assert result.remark == f"{again}; {remark}"


def test_an_error_while_the_rest_is_counted_hides_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "RecordStream", deleting("A", {"A": 0, "B": 0}))
    target = log(range(30))
    target[3] = (3, 1_003, rest(99))
    result = compared(log(range(30)), target)
    assert told(result)[:3] == ("differs", 3, 3)
    assert result.target is not None
    assert (result.source.records, result.target.records) == (7, 30)
    assert result.remark.startswith("not all records are counted: cluster A: it is gone")


@pytest.mark.parametrize(("moves", "asked"), [(True, 5), (False, 1)])
def test_a_log_that_cannot_be_read_is_unread_in_the_end(
    moves: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Stream) -> Iterator[Carried]:
        raise PartitionError("it is gone (OFFSET_OUT_OF_RANGE).", where="cluster A")

    monkeypatch.setattr(Stream, "__iter__", fail)
    calls: list[object] = []

    def renew(chosen: object) -> bool:
        calls.append(chosen)
        return moves

    result = compared(log(range(3)), log(range(3)), renew=renew)
    what = "cluster A: it is gone (OFFSET_OUT_OF_RANGE)."
    assert told(result) == ("unread", None, None, what)
    assert result.unread
    assert len(calls) == asked


def two_partitions() -> Any:
    pairs = {TopicPartition("t", number): TopicPartition("A.t", number) for number in (0, 1)}
    return SimpleNamespace(
        pairs=pairs, left_out={}, stamped=set(), unknown=set(), starts={}, ends={}, later_ends={},
        remote_starts={}, remote_ends={}, earliest={}, transformed=None, surplus={},
        expected=lambda: 0, renew=lambda _: False,
    )  # fmt: skip


def test_a_partition_that_cannot_be_read_takes_no_result_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def done(self: PartitionComparison) -> PartitionResult:
        if self.tp.partition:
            raise TopicError("it makes no progress.", where="cluster A")
        return PartitionResult(*self.tp, EMPTY, EMPTY)

    monkeypatch.setattr(PartitionComparison, "compared", done)
    monkeypatch.setattr(comparison, "ScopeOffsets", lambda *_: two_partitions())
    nobody: Any = None
    good, bad = comparison.verify_flow(nobody, nobody, FlowSettings(A, B, A, B), Scope())
    assert good.equal
    assert told(bad)[0] == "unread"


def test_an_interrupt_ends_the_comparisons_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = Event(), []

    def done(self: PartitionComparison) -> PartitionResult:
        if self.tp.partition:
            began.set()
            ended.append(self.over.wait(10))
            raise CancelledError
        assert began.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(PartitionComparison, "compared", done)
    monkeypatch.setattr(comparison, "ScopeOffsets", lambda *_: two_partitions())
    nobody: Any = None
    with pytest.raises(KeyboardInterrupt):
        comparison.verify_flow(nobody, nobody, FlowSettings(A, B, A, B), Scope())
    assert ended == [True]


def test_a_comparison_that_is_given_up_runs_no_transform() -> None:
    over, made = Event(), Made(log(range(40)))
    over.set()
    with pytest.raises(CancelledError):
        compared(log(range(40)), log(range(40)), transformed=made, over=over)
    assert made.open == 0


def test_a_log_with_markers_only_is_an_empty_one() -> None:
    result = compared([], log(range(30)), start=30, end=31, later=31, earliest=30)
    assert (result.difference, result.remark) == (None, "the source has deleted all its records")
    more: dict[str, Any] = {"remote_start": 30, "remote_ends": {COPY: 31}, "positions": {TP: 30}}
    assert compared(log(range(30)), [], **more).difference is None


def test_from_a_bound_what_the_target_has_deleted_is_left_out() -> None:
    rows, kept = log(range(60)), log(range(50, 60), 50)
    result = compared(rows, kept, start=20, remote_start=50, scope=Scope(start=Bound(20)))
    assert (result.difference, result.source.records) == (None, 10)
    assert result.remark == "the target has deleted the records before source offset 50"
    scope = Scope(start=Bound(20), end=Bound(40))
    result = compared(rows, kept, start=20, end=40, later=40, remote_start=50, scope=scope)
    assert (result.difference, result.source.records) == (None, 0)
    more: dict[str, Any] = {"remote_start": 30, "positions": {TP: 30}}
    result = compared(log(range(30)), [], start=10, scope=Scope(start=Bound(10)), **more)
    assert (result.difference, result.remark) == (None, "the target has deleted all its records")


def test_a_transform_that_fails_at_the_bound_is_named() -> None:
    rows = log(range(40))
    result = compared(
        rows,
        log(range(0, 20, 2)),
        start=20,
        scope=Scope(start=Bound(20)),
        transformed=Made(rows, stops=20),
    )
    assert told(result)[:2] == ("failed", 20)


def test_a_mirror_that_has_only_deleted_records_is_behind() -> None:
    source, target = log(range(30, 40), 30), log(range(30))
    result = compared(source, target, start=30, positions={TP: 30})
    assert told(result)[:2] == ("behind", 30)
    assert compared(source, target, start=30, end=30, positions={TP: 30}).difference is None


def test_a_sample_tells_without_times_what_the_target_has_deleted() -> None:
    source = log(range(4_000))
    target = [(offset, 9_999, body) for offset, _, body in source[2_000:]]
    result = compared(source, target, remote_start=2_000, stamped=True, scope=Scope(sample=4))
    assert result.difference is None
    assert result.source.records == 2 * STRETCH


# --- compacted topics, from a bound or after retention ------------------------------------------


def test_from_a_bound_only_the_keys_behind_it_count() -> None:
    source = keyed((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"c", None))
    scope = Scope(start=Bound(1))
    target = keyed((b"a", b"1"), (b"b", b"1"))
    result = compared(source, target, start=1, compacted=True, scope=scope)
    assert result.difference is None
    assert result.source == result.target
    kept = keyed((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    result = compared(source, kept, start=1, compacted=True, scope=scope)
    assert told(result)[:3] == ("extra", 3, 2)


def test_up_to_a_bound_newer_values_are_no_difference() -> None:
    scope = Scope(end=Bound(1))
    rows = keyed((b"a", b"1"), (b"a", b"2"), (b"b", b"1"))
    result = compared(rows, rows, end=1, compacted=True, scope=scope)
    assert result.difference is None
    assert result.target is not None
    assert (result.source.records, result.target.records) == (1, 1)
    # What the key had before the end was compacted away.
    source, target = keyed((b"a", b"2"), first=5), keyed((b"a", b"1"))
    more: dict[str, Any] = {"start": 0, "earliest": 0, "end": 3, "compacted": True}
    assert compared(source, target, scope=Scope(end=Bound(3)), **more).difference is None


def test_keys_that_retention_has_deleted_on_one_side_are_left_out() -> None:
    result = compared(
        keyed((b"b", b"1"), first=7), keyed((b"a", b"1"), (b"b", b"1")), compacted=True
    )
    assert result.difference is None
    assert result.remark.endswith("the source has deleted records")
    source = keyed((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    result = compared(source, keyed((b"b", b"1"), (b"c", b"1"), first=4), compacted=True)
    assert result.difference is None
    assert result.remark.endswith("the target has deleted the records before source offset 1")
    lacks = compared(source, keyed((b"b", b"1"), first=4), compacted=True)
    assert told(lacks)[:2] == ("missing", 2)
    more: dict[str, Any] = {"compacted": True, "remote_start": 4}
    assert compared(source, [], positions={TP: 3}, **more).difference is None
    assert told(compared(source, [], positions={TP: 2}, **more))[:2] == ("behind", 2)


def test_a_target_that_begins_with_what_the_source_has_cleaned_up_tells_what_it_deleted() -> None:
    """Retention left an old value there, which the source's cleaner has removed."""
    rows = keyed((b"a", b"1"), (b"b", b"1"), (b"k", b"1"), (b"k", b"2"), (b"c", b"1"))
    source = [row for row in rows if row[0] != 2]
    target = [(offset + 10, time, body) for offset, time, body in rows[2:]]
    result = compared(source, target, compacted=True)
    assert result.difference is None
    assert result.remark.endswith("the target has deleted the records before source offset 3")
    # What comes behind the first record that both have is not deleted.
    lacks = compared(source, target[:2], compacted=True)
    assert told(lacks)[:2] == ("missing", 4)
    # Without any, nothing tells where the target begins.
    assert told(compared(source, target[:1], compacted=True))[:2] == ("missing", 0)


def test_from_a_bound_behind_the_beginning_of_the_target_nothing_is_deleted() -> None:
    """The first record that both have behind the bound is not the target's first one."""
    rows = keyed(*((b"%d" % n, b"1") for n in range(20)))
    target = [(offset + 10, time, body) for offset, time, body in rows[2:] if offset != 5]
    scope = Scope(start=Bound(5))
    more: dict[str, Any] = {"start": 5, "earliest": 0, "compacted": True, "scope": scope}
    result = compared(rows, target, **more)
    assert told(result)[:2] == ("missing", 5)
    result = compared(rows, target[5:], **more)
    assert result.difference is None
    assert result.remark.endswith("the target has deleted the records before source offset 8")


def test_a_target_that_begins_at_the_given_end_has_deleted_what_comes_before() -> None:
    rows = keyed(*((key, b"1") for key in (b"a", b"b", b"c", b"d", b"e")))
    more: dict[str, Any] = {"end": 2, "compacted": True, "later": 5}
    for first in (2, 3):
        kept = [(offset + 10, time, body) for offset, time, body in rows[first:]]
        result = compared(rows, kept, scope=Scope(end=Bound(2)), **more)
        assert result.difference is None
        assert result.remark.endswith(f"deleted the records before source offset {first}")
        scope = Scope(start=Bound(1), end=Bound(2))
        assert compared(rows, kept, start=1, earliest=0, scope=scope, **more).difference is None
    # A target that begins before the range has deleted nothing of it.
    lacks = [(offset + 10, time, body) for offset, time, body in rows if offset not in (0, 2)]
    more |= {"start": 2, "earliest": 0, "end": 3}
    result = compared(rows, lacks, scope=Scope(start=Bound(2), end=Bound(3)), **more)
    assert told(result)[:2] == ("missing", 2)


def test_a_tombstone_that_is_not_mirrored_yet_is_behind() -> None:
    source = keyed((b"a", b"1"), (b"a", None))
    result = compared(source, keyed((b"a", b"1")), compacted=True, positions={TP: 1})
    assert told(result)[:2] == ("behind", 1)


# --- what is compared ---------------------------------------------------------------------------


def test_up_to_a_bound_the_real_end_of_compacted_topics_is_known() -> None:
    class Compacted(_Cluster):
        def end_offsets(self, partitions: Any, _isolation: str) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 10)

        def topic_configs(self, _topics: object) -> dict[str, Any]:
            return {"t": {"cleanup.policy": SimpleNamespace(value="compact,delete")}}

    flow, cluster = FlowSettings(A, B, A, B), cast(Cluster, Compacted())
    found = ScopeOffsets(cluster, cluster, flow, Scope(end=Bound(3), wait_s=0))
    t, u = (TopicPartition(name, 0) for name in "tu")
    assert (found.ends[t], found.later_ends[t], found.later_ends[u]) == (3, 10, 3)


def test_where_both_logs_begin_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moving(_Cluster):
        begin = 0

        def topics(self, _names: object = None) -> dict[str, Any]:
            one = SimpleNamespace(internal=False, partitions=1)
            return {"t": one, "A.t": one}

        def earliest_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, self.begin)

        def end_offsets(self, partitions: Any, _isolation: str) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, self.begin + 10)

        def committed_offsets(self, _group: str, partitions: Any) -> dict[TopicPartition, Any]:
            return {tp: SimpleNamespace(offset=self.begin + 10) for tp in partitions}

    source, target = Moving(), Moving()
    scope = Scope(topics=("t",), start=Bound(3), wait_s=0)
    flow = FlowSettings(A, B, A, B)
    found = ScopeOffsets(cast(Cluster, source), cast(Cluster, target), flow, scope)
    tp, copy = TopicPartition("t", 0), TopicPartition("A.t", 0)
    assert not found.renew(tp)
    source.begin, target.begin = 7, 2
    assert found.renew(tp)
    assert (found.earliest[tp], found.starts[tp], found.remote_starts[copy]) == (7, 7, 2)
    assert (found.ends[tp], found.later_ends[tp]) == (10, 17)
    assert (found.remote_ends[copy], found.positions[tp]) == (12, 12)
    assert not found.renew(tp)
    target.begin = 9
    with monkeypatch.context() as patch:
        patch.setattr(source, "end_offsets", lambda *_: {})
        assert not found.renew(tp), "of a source that does not tell its end, nothing is known"
    assert found.remote_ends[copy] == 12
    assert found.renew(tp)


def test_a_leader_that_is_elected_meanwhile() -> None:
    class Electing(_Cluster):
        def earliest_offsets(self, _partitions: Any) -> dict[TopicPartition, int]:
            return {}

    flow, cluster = FlowSettings(A, B, A, B), cast(Cluster, Electing())
    assert ScopeOffsets(cluster, cluster, flow, Scope(wait_s=0)).ends == {}


@pytest.mark.parametrize(("bound", "start", "end"), [("start", 4, 10), ("end", 0, 4)])
def test_a_partition_that_does_not_answer_for_a_bound_is_not_compared(
    bound: str, start: int, end: int
) -> None:
    """Else it would end where it begins, and be equal without a look."""

    class Partly(_Cluster):
        def end_offsets(self, partitions: Any, _isolation: str) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 10)

        def offsets_at(self, partitions: Any, time_ms: int) -> dict[TopicPartition, int]:
            at = 4 if time_ms == 5_000 else -1
            return {tp: at for tp in partitions if tp.topic == "t"}

    flow, cluster = FlowSettings(A, B, A, B), cast(Cluster, Partly())
    t, u = (TopicPartition(name, 0) for name in "tu")
    scope = Scope(wait_s=0, **{bound: Bound(time_ms=5_000)})  # type: ignore[arg-type]
    found = ScopeOffsets(cluster, cluster, flow, scope)
    assert (found.starts[t], found.ends) == (start, {t: end})
    assert (u in found.pairs, found.expected()) == (True, end - start)
    scope = Scope(wait_s=0, **{bound: Bound(time_ms=9_000)})  # type: ignore[arg-type]
    found = ScopeOffsets(cluster, cluster, flow, scope)
    assert found.starts[t] == (10 if bound == "start" else 0), "no record is so new"
    assert found.ends == {t: 10}


# --- partitions that only the target has --------------------------------------------------------


class _Sized(_Cluster):
    """Topic t, or its copy, with ``partitions``; ``ends``: of those that are not empty."""

    def __init__(self, partitions: int, ends: dict[int, int] | None = None) -> None:
        self.partitions, self.ends = partitions, ends or {}

    def topics(self, _names: object = None) -> dict[str, Any]:
        one = SimpleNamespace(internal=False, partitions=self.partitions)
        return {"t": one} if not self.ends else {"A.t": one}

    def end_offsets(self, partitions: Any, _isolation: str) -> dict[TopicPartition, int]:
        return {tp: self.ends.get(tp.partition, 0) for tp in partitions if tp.partition != 5}


_FLOW = FlowSettings(A, B, A, B, fetch=FetchSettings(isolation_level="read_uncommitted"))


def test_records_in_a_partition_that_the_source_does_not_have_are_too_much() -> None:
    """A partition without records is none that anything was mirrored to."""
    for number in range(6):
        Stream.logs["B", TopicPartition("A.t", number)] = log(range(3)) if number == 3 else []
        Stream.logs["A", TopicPartition("t", number)] = []
    source, target = (cast(Cluster, one) for one in (_Sized(3), _Sized(6, {3: 3, 4: 2})))
    progress = Progress()
    *equal, extra, unread = comparison.verify_flow(source, target, _FLOW, Scope(wait_s=0), progress)
    assert [(one.partition, one.equal) for one in equal] == [(0, True), (1, True), (2, True)]
    assert (extra.topic, extra.partition, extra.source) == ("t", 3, EMPTY)
    what = "the target has records in A.t-3, and the source has no such partition"
    assert told(extra) == ("extra", None, 0, what)
    assert extra.target is not None
    assert extra.target.records == 3
    assert (unread.partition, unread.unread) == (5, True)
    assert (progress.partitions, progress.done, Stream.open) == (6, 6, 0)


@pytest.mark.parametrize(
    ("scope", "flow"),
    [
        (Scope(partitions=(0,), wait_s=0), _FLOW),
        (Scope(start=Bound(0), wait_s=0), _FLOW),
        (Scope(end=Bound(0), wait_s=0), _FLOW),
        (Scope(wait_s=0), replace(_FLOW, records=RecordSettings(Partitioner.KEY))),
    ],
)
def test_of_a_part_or_of_other_partitions_what_the_target_has_on_top_says_nothing(
    scope: Scope, flow: FlowSettings
) -> None:
    source, target = (cast(Cluster, one) for one in (_Sized(3), _Sized(6, {3: 3})))
    assert ScopeOffsets(source, target, flow, scope).surplus == {}


def test_a_source_that_has_grown_meanwhile_has_the_partitions_of_its_copy() -> None:
    class Growing(_Sized):
        def topics(self, _names: object = None) -> dict[str, Any]:
            found = super().topics()
            self.partitions = 5
            return found

    source, target = (cast(Cluster, one) for one in (Growing(3), _Sized(6, {3: 3})))
    found = ScopeOffsets(source, target, _FLOW, Scope(wait_s=0))
    assert found.surplus == {TopicPartition("t", 5): TopicPartition("A.t", 5)}
    assert not found.renew(TopicPartition("t", 5))


def test_of_a_sample_no_more_is_read_of_them_either() -> None:
    more: dict[str, Any] = {"surplus": {TP: COPY}, "ends": {}, "there": set()}
    result = compared([], log(range(3 * STRETCH), 7), scope=Scope(sample=1), **more)
    assert told(result)[:3] == ("extra", None, 7)
    assert result.target is not None
    assert result.target.records == STRETCH


@pytest.mark.parametrize("end", [None, Bound(3)])
def test_a_partition_whose_present_end_is_not_known_is_not_compared(end: Bound | None) -> None:
    """What the mirror has copied since the freeze would look as if the source never had it."""

    class Losing(_Cluster):
        asked = 0

        def end_offsets(self, partitions: Any, _isolation: str) -> dict[TopicPartition, int]:
            self.asked += 1
            return {tp: 10 for tp in partitions if self.asked == 1 or tp.topic == "t"}

    flow, source, target = FlowSettings(A, B, A, B), Losing(), cast(Cluster, _Cluster())
    found = ScopeOffsets(cast(Cluster, source), target, flow, Scope(end=end, wait_s=0))
    t, u = (TopicPartition(name, 0) for name in "tu")
    assert set(found.ends) == ({t} if end is None else {t, u})
    assert found.later_ends == ({t: 10} if end is None else {t: 3, u: 3})


def test_configs_that_could_not_be_read_are_named() -> None:
    class Denying(_Cluster):
        def topic_configs(self, _topics: object) -> dict[str, Any]:
            return {"t": TopicError("it may not be described.")}

    flow, cluster = FlowSettings(A, B, A, B), cast(Cluster, Denying())
    assert ScopeOffsets(cluster, cluster, flow, Scope(wait_s=0)).unknown == {"t"}


def test_a_target_that_lost_a_key_in_the_middle_lacks_it() -> None:
    """Its log begins with a key that was written again later: only its first record tells where."""
    source = keyed((b"b", b"1"), (b"a", b"1"), (b"b", b"2"))
    target = keyed((b"b", b"1"), (b"b", b"2"), first=4)
    rows = [(4, source[0][1], source[0][2]), (5, source[2][1], source[2][2])]
    assert [row[2] for row in rows] == [row[2] for row in target]
    assert told(compared(source, rows, compacted=True))[:2] == ("missing", 1)


def test_a_target_with_foreign_keys_only_is_not_an_emptied_one() -> None:
    source = keyed((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    result = compared(
        source,
        keyed((b"x", b"1"), first=4),
        start=1,
        compacted=True,
        scope=Scope(start=Bound(1)),
        positions={TP: 3},
    )
    assert told(result)[:2] == ("missing", 1)


def test_up_to_a_bound_what_the_target_has_deleted_is_left_out() -> None:
    rows, kept = log(range(60)), log(range(50, 60), 50)
    scope = Scope(end=Bound(40))
    result = compared(rows, kept, end=40, later=40, remote_start=50, scope=scope)
    assert (result.difference, result.source.records) == (None, 0)


def test_a_record_that_is_not_mirrored_yet_is_not_one_that_the_target_has_deleted() -> None:
    """The source has deleted all that the target has, and its next record has an older time."""
    rows = [(37, 1_000, rest(37)), (38, 1_050, rest(38))]
    for start in (None, 37):
        scope = Scope(end=Bound(38)) if start is None else Scope(start=Bound(37), end=Bound(38))
        more: dict[str, Any] = {"end": 38, "later": 38, "earliest": 37, "positions": {TP: 30}}
        result = compared(rows, log(range(20, 30), 20), remote_start=20, scope=scope, **more)
        assert told(result)[:2] == ("behind", 37)


@pytest.mark.parametrize("start", [None, 1])
@pytest.mark.parametrize("stamped", [False, True])
def test_what_the_target_has_deleted_up_to_a_bound_does_not_go_by_times(
    start: int | None, stamped: bool
) -> None:
    """A producer's clock was ahead, or the target sets its own times."""
    rows = log(range(30))
    rows[2] = (2, 999_999, rest(2))
    scope = Scope(end=Bound(10)) if start is None else Scope(start=Bound(start), end=Bound(10))
    more: dict[str, Any] = {"start": start, "end": 10, "later": 10, "scope": scope}
    more |= {"stamped": stamped, "positions": {TP: 30}}
    result = compared(rows, rows[20:], remote_start=20, **more)
    assert (result.difference, result.source.records) == (None, 0)
    assert result.remark.endswith("the target has deleted the records before source offset 10")
    result = compared(rows, rows[8:], remote_start=8, **more)
    assert (result.difference, result.source.records) == (None, 2)
    lacks = compared(rows, [*rows[5:8], *rows[9:]], remote_start=5, **more)
    assert lacks.difference is not None
    foreign = log(range(50, 60), 20)
    assert compared(rows, foreign, remote_start=20, **more).difference is not None


def test_up_to_a_bound_equal_records_behind_it_are_not_taken_for_those_before_it() -> None:
    rows = [(n, 1_000, rest(min(n, 10))) for n in range(40)]
    more: dict[str, Any] = {"end": 20, "later": 20, "positions": {TP: 40}}
    result = compared(rows, rows[15:], remote_start=15, scope=Scope(end=Bound(20)), **more)
    assert (result.difference, result.source.records) == (None, 10)


def test_a_foreign_record_of_a_topic_of_which_a_filter_keeps_nothing_is_too_much() -> None:
    rows = log(range(11, 12), 10)  # the transform keeps even times only
    result = compared(rows, log([99], 5), earliest=10, transformed=Made(rows))
    assert told(result)[0] == "extra"


def test_a_broker_that_is_gone_does_not_take_half_a_minute_for_each_partition() -> None:
    unread = comparison.Unread()
    bad = PartitionResult("t", 0, EMPTY, EMPTY, Difference("unread", None, None, "it is gone"))
    for _ in range(11):
        unread.note(bad)
    unread.note(PartitionResult("t", 1, EMPTY, EMPTY))
    for _ in range(11):
        unread.note(bad)
    with pytest.raises(TopicError, match="12 partitions in a row cannot be read"):
        unread.note(bad)
