"""What a slot's source worker reports to its sink besides records, and its form in a row.

The first row of a task has a `SlotHello`; later rows report changes. The codec is JSON with a
version number: on a Spark cluster, the two workers may run different releases, and a sink that
misreads positions would write records twice or leave some out.

The other way, a sink tells its source which partitions it has given up, in a message in the memory
that both share (`encode_halted`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from sparkmirror.data.rows.ring import SharedRing
from sparkmirror.data.rows.shared_frames import MESSAGE_BYTES_MAX, SharedMemory
from sparkmirror.errors import MachineError
from sparkmirror.internal_topics.commands import member_row, read_member
from sparkmirror.internal_topics.epochs.record import EpochRecord
from sparkmirror.internal_topics.gaps import Gap, gap_document, read_document
from sparkmirror.internal_topics.position_metadata import Mark, TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, PartitionProgress, ThrottleUse
from sparkmirror.settings import Member
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords
from sparkmirror.wire.produce.partition_queue import Identity

__all__ = [
    "GapNote",
    "HaltNote",
    "LeftNote",
    "Owner",
    "PartitionHello",
    "RetryNote",
    "SlotHello",
    "SlotNotes",
    "Writer",
    "decode_halted",
    "decode_notes",
    "encode_halted",
    "encode_notes",
]

VERSION = 5
# A reason is for people; with this, a row always fits into a message.
_REASON_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True)
class PartitionHello:
    """One partition as the slot begins it; offsets are -1 if unknown.

    ``position``: the next source offset. ``committed``: the committed one. ``target_end``: where
    the target's log ends. ``written``: the newest committed records before the position
    (exactly-once only).
    """

    source: TopicPartition
    remote_topic: str
    position: int = -1
    committed: int = -1
    target_end: int = -1
    mark: Mark = Mark()  # noqa: RUF009  (frozen)
    log: TargetMark = TargetMark()  # noqa: RUF009  (frozen)
    written: CommittedRecords | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that mirrors the flow, for a sink that must check claims itself.

    ``control_offset``: offset in the control topic from which the slot reads.
    """

    run_id: str
    control_offset: int
    claim_term: int


@dataclass(frozen=True, slots=True)
class Writer:
    """The identity under which an exactly-once sink writes; None if its plan is outdated.

    ``version``: that of the plan's assignment. ``record``: that of the epoch.
    """

    identity: Identity | None
    run_id: str
    control_offset: int
    version: int = 0
    record: EpochRecord | None = None


@dataclass(frozen=True, slots=True)
class SlotHello:
    """Who a slot is. ``attempt``: Spark's number of the task's attempt.

    ``memory``: the memory that both workers share, None if there is none; ``ring``: the same for
    small rows.
    """

    slot: int
    epoch: int
    channel: str
    run_id: str
    attempt: int
    memory: SharedMemory | None = None
    partitions: tuple[PartitionHello, ...] = ()
    owner: Owner | None = None
    writer: Writer | None = None
    ring: SharedRing | None = None


@dataclass(frozen=True, slots=True)
class HaltNote:
    """A partition that the source no longer fetches; if ``halt`` is None, it fetches it again.

    `Halt.attempt` is not sent: the sink counts attempts by what it gave up itself.
    """

    source: TopicPartition
    halt: Halt | None


@dataclass(frozen=True, slots=True)
class GapNote:
    """A gap, and the source's log that the position is in after it.

    ``target``, ``target_end``: the target's log after it, and the end of that log, if they change.
    """

    gap: Gap
    mark: Mark
    target: TargetMark | None = None
    target_end: int = -1


@dataclass(frozen=True, slots=True)
class RetryNote:
    """A partition for which the source has gone back, to begin attempt number ``attempt``."""

    source: TopicPartition
    attempt: int


@dataclass(frozen=True, slots=True)
class LeftNote:
    """A partition that the slot has no more.

    ``order``: the version of the move that takes it away (`internal_topics.epochs.shares`); the
    sink releases it. 0: the assignment no longer has it.
    """

    source: TopicPartition
    order: int = 0


@dataclass(frozen=True, slots=True)
class SlotNotes:
    """The notes of one row. ``paused``, ``errors`` (count by code): None if nothing has changed.

    ``throttles``: the same; what the limits have done. ``rehearsal``: the task has no work at all.
    ``unpacked``: the same; seconds of processor time that reading records took, by transform.
    ``added``: partitions that the slot begins now, ``left``: those of which no more rows come.
    ``released``: those that this attempt of the task has not begun, and that nobody writes.
    """

    hello: SlotHello | None = None
    member: Member | None = None
    paused: bool | None = None
    errors: Mapping[str, int] | None = None
    halts: tuple[HaltNote, ...] = ()
    gaps: tuple[GapNote, ...] = ()
    tried: tuple[RetryNote, ...] = ()
    rehearsal: bool = False
    throttles: tuple[ThrottleUse, ...] | None = None
    unpacked: Mapping[str, float] | None = None
    added: tuple[PartitionHello, ...] = ()
    left: tuple[LeftNote, ...] = ()
    released: tuple[LeftNote, ...] = ()


def encode_notes(notes: SlotNotes) -> dict[str, Any]:
    """``notes`` as a JSON object."""
    document: dict[str, Any] = {"version": VERSION}
    if notes.hello is not None:
        document["hello"] = _hello_document(notes.hello)
    if notes.member is not None:
        document["member"] = member_row(notes.member)
    if notes.paused is not None:
        document["paused"] = notes.paused
    if notes.errors is not None:
        document["errors"] = dict(notes.errors)
    if notes.halts:
        document["halts"] = [
            [
                *one.source,
                None if one.halt is None else (one.halt.code, one.halt.reason, one.halt.retriable),
            ]
            for one in notes.halts
        ]
    if notes.gaps:
        document["gaps"] = [
            [
                gap_document(one.gap),
                astuple(one.mark),
                None if one.target is None else astuple(one.target),
                one.target_end,
            ]
            for one in notes.gaps
        ]
    if notes.tried:
        document["tried"] = [[*one.source, one.attempt] for one in notes.tried]
    if notes.rehearsal:
        document["rehearsal"] = True
    if notes.throttles is not None:
        document["throttles"] = [astuple(one) for one in notes.throttles]
    if notes.unpacked is not None:
        document["unpacked"] = dict(notes.unpacked)
    if notes.added:
        document["added"] = list(map(_partition_row, notes.added))
    for name, ones in (("left", notes.left), ("released", notes.released)):
        if ones:
            document[name] = [[*one.source, one.order] for one in ones]
    return document


def decode_notes(document: Mapping[str, Any]) -> SlotNotes:
    """The notes in a document of `encode_notes`. Raises `MachineError` for another version."""
    _check_version(document, "source worker", "sink")
    hello = document.get("hello")
    return SlotNotes(
        None if hello is None else _read_hello(hello),
        read_member(document.get("member")),
        document.get("paused"),
        document.get("errors"),
        tuple(
            HaltNote(TopicPartition(topic, partition), None if halt is None else Halt(*halt))
            for topic, partition, halt in document.get("halts", ())
        ),
        tuple(
            GapNote(
                read_document(gap),
                Mark(*mark),
                None if target is None else TargetMark(*target),
                target_end,
            )
            for gap, mark, target, target_end in document.get("gaps", ())
        ),
        tuple(
            RetryNote(TopicPartition(topic, partition), attempt)
            for topic, partition, attempt in document.get("tried", ())
        ),
        document.get("rehearsal", False),
        None
        if document.get("throttles") is None
        else tuple(ThrottleUse(*row) for row in document["throttles"]),
        document.get("unpacked"),
        tuple(map(_read_partition, document.get("added", ()))),
        *(
            tuple(
                LeftNote(TopicPartition(topic, partition), order)
                for topic, partition, order in document.get(name, ())
            )
            for name in ("left", "released")
        ),
    )


def encode_halted(halted: Sequence[PartitionProgress]) -> tuple[bytes, int]:
    """A message to the source: as many of ``halted`` as fit, and how many these are.

    Each has a position and a halt with its attempt.
    """
    begin, end = f'{{"version":{VERSION},"halted":[', "]}"
    rows: list[str] = []
    size = len(begin) + len(end)
    for one in halted:
        if one.halt is None:
            continue
        code, reason, retriable, attempt = astuple(one.halt)
        values = one.topic, one.partition, one.position, code, reason[:_REASON_CHARS_MAX]
        row = json.dumps([*values, retriable, attempt], separators=(",", ":"))
        size += len(row) + 1
        if size > MESSAGE_BYTES_MAX:
            break
        rows.append(row)
    return f"{begin}{','.join(rows)}{end}".encode(), len(rows)


def decode_halted(message: bytes) -> list[PartitionProgress]:
    """The partitions in a message of `encode_halted`. Raises `MachineError`, as `decode_notes`."""
    document = json.loads(message)
    _check_version(document, "sink", "source worker")
    return [
        PartitionProgress(topic, partition, position, halt=Halt(*halt))
        for topic, partition, position, *halt in document["halted"]
    ]


def _check_version(document: Mapping[str, Any], writer: str, reader: str) -> None:
    version = document.get("version")
    if version != VERSION:
        raise MachineError(
            f"the {writer} of this slot writes version {version} of the slot's notes, but this"
            f" {reader} reads version {VERSION}.",
            do="Install the same release of sparkmirror on the driver and on all Spark workers.",
        )


def _hello_document(hello: SlotHello) -> dict[str, Any]:
    return {
        "slot": hello.slot,
        "epoch": hello.epoch,
        "channel": hello.channel,
        "run_id": hello.run_id,
        "attempt": hello.attempt,
        "memory": hello.memory,
        "ring": hello.ring,
        "owner": None if hello.owner is None else astuple(hello.owner),
        "writer": None if hello.writer is None else astuple(hello.writer),
        "partitions": list(map(_partition_row, hello.partitions)),
    }


def _partition_row(one: PartitionHello) -> list[Any]:
    return [
        *(*one.source, one.remote_topic, one.position, one.committed, one.target_end),
        *(astuple(one.mark), astuple(one.log), one.written),
    ]


def _read_hello(document: Mapping[str, Any]) -> SlotHello:
    memory, owner, writer = (document[name] for name in ("memory", "owner", "writer"))
    ring = document["ring"]
    return SlotHello(
        document["slot"],
        document["epoch"],
        document["channel"],
        document["run_id"],
        document["attempt"],
        None if memory is None else SharedMemory(*memory),
        tuple(map(_read_partition, document["partitions"])),
        None if owner is None else Owner(*owner),
        None if writer is None else _read_writer(*writer),
        None if ring is None else SharedRing(*ring),
    )


def _read_partition(row: Sequence[Any]) -> PartitionHello:
    topic, partition, remote_topic, position, committed, end, mark, log, written = row
    return PartitionHello(
        TopicPartition(topic, partition),
        remote_topic,
        position,
        committed,
        end,
        Mark(*mark),
        TargetMark(*log),
        None if written is None else CommittedRecords(*written),
    )


def _read_writer(
    identity: Sequence[int] | None,
    run_id: str,
    control_offset: int,
    version: int,
    record: Sequence[Any] | None,
) -> Writer:
    epoch = None if record is None else EpochRecord(*record)
    return Writer(_read_identity(identity), run_id, control_offset, version, epoch)


def _read_identity(row: Sequence[int] | None) -> Identity | None:
    return None if row is None else (row[0], row[1])
