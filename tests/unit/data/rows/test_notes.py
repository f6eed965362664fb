"""What crosses from a slot's source worker to its sink arrives as it was said, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparkmirror.data.rows.notes import (
    GapNote,
    HaltNote,
    LeftNote,
    Owner,
    PartitionHello,
    RetryNote,
    SlotHello,
    SlotNotes,
    Writer,
    decode_notes,
    encode_notes,
)
from sparkmirror.data.rows.rows import build_row, read_row
from sparkmirror.data.rows.shared_frames import SharedMemory
from sparkmirror.errors import MachineError
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind
from sparkmirror.internal_topics.position_metadata import Mark, TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, ThrottleUse
from sparkmirror.settings import Member
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GAP = Gap(
    "A->B", T0, "A.t", GapKind.DELETED, GapAction.CONTINUED, 1, None, None, 5,
    "OFFSETS_DELETED", "too late", 5,
)  # fmt: skip
HELLO = SlotHello(
    3, 7, "A->B", "run", 12,
    SharedMemory(1, 2, "00ff", 4096, 2),
    (
        PartitionHello(T0, "A.t"),
        PartitionHello(
            T1, "A.t", 5, 4, 90, Mark("c", "id", 3), TargetMark("d", "r", 1, 80, 0, True, 7, 2, 4),
            CommittedRecords(7, 1, 12),
        ),
    ),
    Owner("run", 40, 2),
    Writer((7, 1), "run", 40),
)  # fmt: skip
SAID = [
    SlotNotes(),
    SlotNotes(HELLO),
    SlotNotes(replace(HELLO, memory=None, owner=None, writer=None, partitions=())),
    SlotNotes(replace(HELLO, writer=Writer(None, "run", 40, 5))),
    SlotNotes(rehearsal=True),
    SlotNotes(unpacked={"clean": 0.5}),
    SlotNotes(added=HELLO.partitions, left=(LeftNote(T1), LeftNote(T0, 7))),
    SlotNotes(HELLO, released=(LeftNote(T0, 7),)),
    SlotNotes(throttles=()),
    SlotNotes(throttles=(ThrottleUse("", 1, 2, 3, 4), ThrottleUse("t.*", 5, 6, 7, 8))),
    SlotNotes(
        None, Member("m", 3, "i", True), False, {"NOT_LEADER_OR_FOLLOWER": 2},
        (HaltNote(T0, Halt("CODE", "why", True)), HaltNote(T1, None)),
        (GapNote(GAP, Mark("c")), GapNote(GAP, Mark(), TargetMark(cut=3), 9)),
        (RetryNote(T1, 4),),
    ),
]  # fmt: skip


@pytest.mark.parametrize("notes", SAID)
def test_notes_arrive_as_they_were_said(notes: SlotNotes) -> None:
    assert read_row(build_row([], memoryview(b""), [], notes), 0)[2] == notes


def test_a_halt_leaves_its_attempt_behind() -> None:
    """The sink counts attempts by what it gave up itself."""
    notes = SlotNotes(halts=(HaltNote(T0, Halt("CODE", "why", attempt=3)),))
    (found,) = decode_notes(json.loads(json.dumps(encode_notes(notes)))).halts
    assert found.halt == Halt("CODE", "why")


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 6, None, "5"])
def test_notes_of_another_release_are_refused(version: object) -> None:
    document = encode_notes(SlotNotes(HELLO)) | {"version": version}
    with pytest.raises(MachineError, match=r"Install the same release .* on all Spark workers"):
        decode_notes(document)
