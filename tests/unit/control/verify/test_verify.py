"""Comparing two logs: every planted difference is found at its offset, however the logs are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.cli.main import main
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.verbs.verify import bound, progress_line, report
from sparkmirror.control.verify import comparison
from sparkmirror.control.verify.by_key import last_values, value_digests
from sparkmirror.control.verify.lockstep import Side, align, lockstep
from sparkmirror.control.verify.scope import Bound, NothingToCompare, Progress
from sparkmirror.errors import ConfigError, PartitionError
from sparkmirror.observe.figures.comparison_result import (
    EMPTY,
    Difference,
    PartitionResult,
    Reading,
)
from sparkmirror.records.records import Carried, encode_rest
from tests.unit.config_files import BASE, write

Row = tuple[int, int, bytes]


def runs(rows: Sequence[Row], size: int) -> list[Carried]:
    """``(offset, timestamp, rest)`` rows in runs of ``size``."""
    cut = [rows[at : at + size] for at in range(0, len(rows), size)]
    return [
        Carried([r[0] for r in one], [r[1] for r in one], [0] * len(one), [r[2] for r in one])
        for one in cut
    ]


def log(contents: Sequence[tuple[int, bytes]], first: int = 0, gap: int = 1) -> list[Row]:
    return [(first + gap * n, time_ms, rest) for n, (time_ms, rest) in enumerate(contents)]


def plain(values: Sequence[bytes | None]) -> list[tuple[int, bytes]]:
    return [(n, encode_rest(b"k", value)) for n, value in enumerate(values)]


CONTENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([encode_rest(b"k", b"%d" % n) for n in range(3)])),
    min_size=1,
    max_size=40,
)
SIZES = st.integers(1, 50)


@given(CONTENTS, SIZES, SIZES, st.integers(0, 9))
def test_equal_logs_are_equal_however_they_are_cut(
    contents: list[tuple[int, bytes]], one: int, other: int, first: int
) -> None:
    source, target = Side(runs(log(contents), one)), Side(runs(log(contents, first, 2), other))
    assert lockstep(source, target) == (None, False)
    assert source.reading == target.reading
    assert source.reading.records == len(contents)


@given(CONTENTS, SIZES, SIZES, st.data())
def test_the_first_change_is_found_at_its_offset(
    contents: list[tuple[int, bytes]], one: int, other: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(contents) - 1))
    changed = list(contents)
    changed[place] = (contents[place][0], encode_rest(b"k", b"changed"))
    source, target = Side(runs(log(contents), one)), Side(runs(log(changed, 100), other))
    difference, _ = lockstep(source, target)
    assert difference is not None
    assert difference.kind == "differs"
    assert (difference.source_offset, difference.target_offset) == (place, 100 + place)
    assert difference.what.endswith("differ in value")


@given(st.integers(1, 60), SIZES, SIZES, st.data())
def test_lost_and_repeated_records_are_told_as_such(
    count: int, one: int, other: int, data: st.DataObject
) -> None:
    contents = plain([b"%d" % n for n in range(count)])
    place = data.draw(st.integers(0, count - 1))
    source = Side(runs(log(contents), one))
    difference, _ = lockstep(
        source, Side(runs(log(contents[:place] + contents[place + 1 :]), other))
    )
    if place == count - 1:  # the target just ends
        assert difference is None
        assert source.fill() == 1
        assert source.offsets[0] == place
    else:
        assert difference == Difference(
            "missing", place, place, f"the target lacks 1 record from source offset {place} on"
        )
    again = contents[: place + 1] + contents[place:]
    target = Side(runs(log(again), other))
    difference, _ = lockstep(Side(runs(log(contents), one)), target)
    if place == count - 1:
        assert difference is None
        assert target.fill() == 1
        assert target.offsets[0] == count
    else:
        assert difference is not None
        assert difference.kind == "extra"
        assert f"repeats source offset {place}" in difference.what


@given(CONTENTS, CONTENTS, SIZES)
def test_align_finds_the_window_where_it_stands(
    before: list[tuple[int, bytes]], contents: list[tuple[int, bytes]], size: int
) -> None:
    window = Side(runs(log(contents), size)).window()
    side = Side(runs(log(before + contents), size))
    dropped = align(side, window)
    assert dropped is not None
    assert dropped <= len(before)
    whole = before + contents
    assert (
        whole[dropped : dropped + len(window.times)]
        == list(zip(window.times, window.rests, strict=True))[: len(whole) - dropped]
    )
    absent = Side(runs(log([(9, b"other")]), 1)).window()
    assert align(Side(runs(log(whole), size)), absent) is None


def test_lengths_that_are_written_longer_are_no_difference() -> None:
    # A key length of 1 as two bytes of varint: legal, and not what encoders write.
    longer = bytes([0x82, 0x00]) + b"k" + encode_rest(None, b"v")[1:]
    assert longer != encode_rest(b"k", b"v")
    source, target = (
        Side(runs([(0, 5, longer)], 1)),
        Side(runs([(7, 5, encode_rest(b"k", b"v"))], 1)),
    )
    assert lockstep(source, target) == (None, True)


def test_timestamps_count_unless_they_are_left_out() -> None:
    rest = encode_rest(b"k", b"v")
    rows = [(0, 5, rest)], [(0, 6, rest)]
    difference, _ = lockstep(*(Side(runs(one, 1)) for one in rows))
    assert difference is not None
    assert difference.what.endswith("differ in timestamp")
    assert lockstep(*(Side(runs(one, 1), times=False) for one in rows)) == (None, False)


def test_last_values_of_a_compacted_log() -> None:
    def of(key: bytes, value: bytes | None, offset: int) -> Row:
        return offset, 0, encode_rest(key, value)

    ours = last_values(Side(runs([of(b"a", b"1", 0), of(b"b", b"1", 1), of(b"a", b"2", 2)], 2)))
    theirs = last_values(Side(runs([of(b"b", b"1", 7), of(b"a", b"2", 9), of(b"c", None, 10)], 3)))
    assert {key: one[1] for key, one in ours.items()} == {
        key: one[1] for key, one in theirs.items()
    }
    assert ours[b"a"][0] == 2
    later = value_digests(Side(runs([of(b"a", None, 3), of(b"x", b"1", 4)], 1)), {b"a"})
    assert later == {b"a": {b""}}


# -- what is printed -------------------------------------------------------------------------------


def test_results_as_a_table_and_as_json() -> None:
    two = Reading(2, "ab" * 32)
    rows = [
        PartitionResult("t", 0, two, two),
        PartitionResult("t", 1, two, EMPTY, Difference("missing", 5, None, "the target lacks 5")),
        PartitionResult("t", 2, two, None, Difference("no partition", 0, None, "none")),
    ]
    found = report({"A->B": rows})
    shown = "\n".join(found.lines())
    assert "equal" in shown.splitlines()[2]
    assert "MISSING: the target lacks 5" in shown
    assert "3 partitions, 6 records: 2 of them differ" in shown
    (flow,) = json.loads(json.dumps(found.document))["flows"]
    assert not flow["equal"]
    assert flow["partitions"][1]["difference"]["source_offset"] == 5
    assert flow["partitions"][2]["target"] is None
    assert progress_line(Progress(4, 2, 3, 1)) == "2 of about 4 records, 1 of 3 partitions"


def test_bounds() -> None:
    assert bound("17", "--from") == Bound(offset=17)
    assert bound("1970-01-01T00:00:01Z", "--from") == Bound(time_ms=1000)
    with pytest.raises(ConfigError) as caught:
        bound("yesterday", "--to")
    assert caught.value.where == "--to"


def test_clusters_that_are_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BASE.replace("a:9092", "127.0.0.1:1") + "request.timeout.ms=1000\n"
    path = write(tmp_path, text)
    assert main(["verify", str(path), "--format", "json"]) == 3
    told = capsys.readouterr()
    assert json.loads(told.out) == {"flows": []}
    assert "Traceback" not in told.err


@pytest.mark.parametrize("others", [True, False])
def test_a_flow_without_topics_takes_no_result_from_the_others(
    others: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in active/passive, where one cluster has copies only."""
    monkeypatch.setattr(Connections, "expect", lambda *_: None)
    monkeypatch.setattr(Connections, "cluster", lambda _, client: client.alias)

    def compare(source: str, *_: object) -> list[PartitionResult]:
        if source == "B" or not others:
            raise NothingToCompare("no topic of the flow has such a name.", where=f"flow {source}")
        return [PartitionResult("t", 0, EMPTY, EMPTY)]

    monkeypatch.setattr(comparison, "verify_flow", compare)
    path = write(tmp_path, BASE + "B->A.enabled=true\n")
    code = main(["verify", str(path), "--format", "json"])
    told = capsys.readouterr()
    assert code == (0 if others else 2)
    if others:
        assert [one["flow"] for one in json.loads(told.out)["flows"]] == ["A->B"]
        assert "flow B: nothing is compared: no topic of the flow has such a name." in told.err


def test_a_partition_that_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Connections, "expect", lambda *_: None)
    monkeypatch.setattr(Connections, "cluster", lambda _, client: client.alias)
    rows = [
        PartitionResult("t", 0, EMPTY, EMPTY),
        PartitionResult("t", 1, EMPTY, EMPTY, Difference("unread", None, None, "it is gone")),
    ]
    monkeypatch.setattr(comparison, "verify_flow", lambda *_: rows)
    assert main(["verify", str(write(tmp_path, BASE))]) == 3
    shown = capsys.readouterr().out
    assert "UNREAD: it is gone" in shown
    assert "2 partitions, 0 records: 1 could not be read" in shown


def test_bounds_that_mean_something_else_to_a_broker_or_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bound("1969-12-31T23:59:59.999Z", "--from") == Bound(time_ms=0)
    with pytest.raises(ConfigError, match="neither an offset nor a time"):
        bound("0001-01-01", "--from")
    assert bound(str(2**63 - 1), "--to") == Bound(offset=2**63 - 1)
    for digits in (str(2**63), "9" * 5000):
        with pytest.raises(ConfigError, match="it does not fit in 64 bits"):
            bound(digits, "--to")
    path = str(write(tmp_path, BASE))
    assert main(["verify", path, "--from", "100", "--to", "50"]) == 2
    assert "nothing to compare" in capsys.readouterr().err
    for endless in ("nan", "inf"):
        assert main(["verify", path, "--wait", endless]) == 2
        assert "--wait" in capsys.readouterr().err


def test_an_error_comes_after_the_records_before_it() -> None:
    def failing() -> Iterator[Carried]:
        yield runs([(0, 1, encode_rest(b"k", b"1")), (1, 2, encode_rest(b"k", b"2"))], 2)[0]
        raise PartitionError("it is gone.")

    side = Side(failing())
    assert side.fill(5) == 2
    side.take(2)
    with pytest.raises(PartitionError):
        side.fill()
