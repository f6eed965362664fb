"""Assignments are signed with the run's key: nobody else's are obeyed, and none is changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.sealed_options import KEY_VARIABLE, new_key
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.errors import MachineError
from sparkmirror.internal_topics.assignments import AssignmentCollector
from sparkmirror.internal_topics.codec import pack, unpack
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    SourcePartition,
    encode_assignment,
)
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.settings import ClusterClient, FlowSettings, Member

A, B = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
FLOW = FlowSettings(A, B, A, B)
KEY = new_key()
PARTITIONS = tuple(SourcePartition(f"töpic-{n}", n, f"A.töpic-{n}", "id") for n in range(40))
ENDS = {p.source: 2**62 for p in PARTITIONS}
MINE = AssignmentDocument("A->B", "run", 3, PARTITIONS, ENDS, Member("m\ud83d", 1, "i", True))
FEW = AssignmentDocument("A->B", "run", 4, PARTITIONS[:1])


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlWatch]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    made = ControlWatch(replace(FLOW, signed=True), "run", offset=0)
    yield made
    made.close()


def hear(watch: ControlWatch, document: AssignmentDocument, signer: Signer | None) -> None:
    for key, value in encode_assignment(document, signer=signer):
        watch._apply(watch._commands, key, value)


@pytest.mark.parametrize("piece_bytes_max", [900_000, 900])
def test_what_was_signed_comes_back(piece_bytes_max: int) -> None:
    signer = Signer(KEY)
    records = encode_assignment(MINE, piece_bytes_max=piece_bytes_max, signer=signer)
    assert (len(records) > 1) == (piece_bytes_max == 900)
    for reader in (AssignmentCollector("A->B", signer), AssignmentCollector("A->B")):
        found = [reader.feed(key, value) for key, value in records]
        assert found[-1] == MINE
        assert not any(found[:-1])


def test_no_other_assignment_is_obeyed(
    watch: ControlWatch, caplog: pytest.LogCaptureFixture
) -> None:
    hear(watch, MINE, Signer(KEY))
    assert watch.assignment == MINE
    with caplog.at_level(logging.WARNING):
        # Another run's key is no news: its assignment stands in the topic from before.
        hear(watch, replace(FEW, run_id="before"), Signer(new_key()))
        assert not caplog.records
        hear(watch, FEW, None)
        hear(watch, FEW, Signer(new_key()))
    assert watch.assignment == MINE
    (line,) = (record.getMessage() for record in caplog.records)
    assert "names this run (run) and is not signed by it" in line


def test_an_old_assignment_that_is_written_again_changes_nothing(watch: ControlWatch) -> None:
    hear(watch, FEW, Signer(KEY))
    hear(watch, MINE, Signer(KEY))
    assert watch.assignment == FEW


def changed(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def apply(value: bytes) -> bytes:
        document = unpack(value)
        assert document is not None
        change(document)
        return pack(document)

    return apply


@pytest.mark.parametrize(
    "change",
    [
        changed(lambda d: d["partitions"].append(["payroll", 0, "A.payroll", ""])),  # type: ignore[attr-defined]
        changed(lambda d: d.update(version=5)),
        changed(lambda d: d.update(run_id="other")),
        changed(lambda d: d.update(ends=None)),
        changed(lambda d: d.update(more=1)),
        changed(lambda d: d.update(mac="0" * 64)),
        changed(lambda d: d.update(mac=None)),
        changed(lambda d: d.update(mac="ö")),
        changed(lambda d: d.pop("mac")),
    ],
)
def test_a_document_that_was_changed_is_none(change: Callable[[bytes], bytes]) -> None:
    signer = Signer(KEY)
    ((key, value),) = encode_assignment(MINE, signer=signer)
    assert AssignmentCollector("A->B", signer).feed(key, change(value)) is None


def test_a_signed_document_of_one_flow_is_none_of_another() -> None:
    signer = Signer(KEY)
    ((_, value),) = encode_assignment(MINE, signer=signer)
    assert AssignmentCollector("A->C", signer).feed(b"A->C/assignment", value) is None
    assert AssignmentCollector("A->B", signer).feed(b"A->B/assignment/0", value) is None


def test_what_stands_in_spark_does_not_tell_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    text = encode_flow(replace(FLOW, signed=True), KEY)
    assert KEY not in text
    assert decode_flow(text).signed
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(MachineError, match=KEY_VARIABLE):
        ControlWatch(decode_flow(text), "run", offset=0)


def test_a_run_that_does_not_sign_is_obeyed_as_before() -> None:
    watch = ControlWatch(FLOW, "run", offset=0)
    hear(watch, MINE, None)
    assert watch.assignment == MINE
    watch.close()
