r"""The control topic: how the driver speaks to the planner and the slots, and hears of them.

One compacted topic per source on the target, ``mm2-sparkmirror.<source>.internal`` (for
MirrorMaker 1's files one per group and source, see `control_topic`); the name falls under
MirrorMaker 2's own ``mm2.*\.internal`` exclude, so no mirror ever carries it on.

=========  =======================  ==========================================================
partition  key                      value (JSON; from 16 KiB up zlib-compressed)
=========  =======================  ==========================================================
0          ``<flow>``               command: run, drain, replan
0          ``<flow>/pause``         command: pause, resume; it outlives runs
0          ``<flow>/assignment``    what to mirror; ``<flow>/assignment/<i>`` when in pieces
0          ``<flow>/claim``         exactly-once: which run writes the flow (`wire.claims`)
1          ``<flow>/<slot>``        progress of one slot, about once a second
1          ``<flow>/planner``       the assignment that all slots of the flow obey by now
1          ``<flow>/driver``        the driver's report, every ten seconds
=========  =======================  ==========================================================

The codecs are pure. They take unknown fields in their stride and return None for what is no valid
record, so that a reader can skip it and count it: whoever may write to the topic must not be able
to stop a mirror by a line of garbage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from sparkmirror.model import (
    FlowSettings,
    Halt,
    Member,
    MirrorMode,
    PartitionProgress,
    SlotProgress,
    Spread,
    TopicPartition,
)
from sparkmirror.wire.claims import decode_claim
from sparkmirror.wire.driver_report import (
    DriverReport,
    decode_driver_report,
    encode_driver_report,
)
from sparkmirror.wire.packing import pack, text, unpack

if TYPE_CHECKING:  # the executor workers import these codecs and must not pay for the client
    from sparkmirror.wire.client import Cluster
    from sparkmirror.wire.tail import TopicTail

__all__ = [
    "ASSIGNMENT_PIECE_BYTES_MAX",
    "COMMAND_PARTITION",
    "CONTROL_PARTITIONS",
    "PROGRESS_PARTITION",
    "AssignmentCollector",
    "AssignmentDocument",
    "Command",
    "CommandKind",
    "ControlSignals",
    "ControlTopicReader",
    "ControlTopicWriter",
    "Planned",
    "SourcePartition",
    "channel",
    "control_topic",
    "decode_command",
    "decode_planned",
    "decode_progress",
    "encode_assignment",
    "encode_command",
    "encode_planned",
    "encode_progress",
    "member_row",
    "read_member",
    "run_of",
]

COMMAND_PARTITION = 0
PROGRESS_PARTITION = 1
CONTROL_PARTITIONS = 2

# Below the broker's default max.message.bytes (1,048,588) with room for the batch around it.
ASSIGNMENT_PIECE_BYTES_MAX = 900_000

# What reading fields of the wrong shape can raise (OverflowError: JSON's Infinity as a number).
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
_ASSIGNMENT_KEY = re.compile(r"(.+)/assignment(?:/(\d{1,6}))?")
_PAUSE_KEY = re.compile(r"(.+)/pause")
_PROGRESS_KEY = re.compile(r"(.+)/(\d{1,9})")
_PLANNER_KEY = re.compile(r"(.+)/planner")


class CommandKind(Enum):
    """What a flow's slots are asked to do.

    ``RUN``: go on with the epochs of ``run_id``. ``DRAIN``: write what was read, commit, end the
    query. ``REPLAN``: end the epoch early, the next one is planned from the new assignment.
    ``PAUSE``: keep the positions and fetch nothing. ``RESUME``: undo a pause. These two stand
    under a key of their own, so that neither a later run nor a new assignment undoes a pause.
    """

    RUN = "run"
    DRAIN = "drain"
    REPLAN = "replan"
    PAUSE = "pause"
    RESUME = "resume"

    @property
    def pauses(self) -> bool:
        """Whether it is about pausing: pause or resume."""
        return self in (CommandKind.PAUSE, CommandKind.RESUME)


@dataclass(frozen=True, slots=True)
class Command:
    """The newest order to one flow; ``version`` names the assignment it goes with (0 = none)."""

    flow: str
    kind: CommandKind
    run_id: str
    time_ms: int
    epoch: int | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, order=True)
class SourcePartition:
    """One source partition and where it goes.

    The remote partition has the same number. ``topic_id`` is the source topic's UUID in its
    36-character form, empty when the source broker gives none.
    """

    topic: str
    partition: int
    remote_topic: str
    topic_id: str = ""

    @property
    def source(self) -> TopicPartition:
        """The partition on the source cluster."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The partition on the target cluster."""
        return TopicPartition(self.remote_topic, self.partition)


@dataclass(frozen=True, slots=True)
class AssignmentDocument:
    """What one flow mirrors, as the planner worker learns it.

    ``version`` grows within a ``run_id``. ``ends``: the frozen source end offsets of a ``--once``
    run (exclusive), None in continuous mode. ``member``: MirrorMaker 1: the group membership with
    which positions are committed from this version on.
    """

    flow: str
    run_id: str
    version: int
    partitions: tuple[SourcePartition, ...]
    ends: Mapping[TopicPartition, int] | None = None
    member: Member | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The planner's word that no slot of an assignment older than ``version`` runs any more."""

    flow: str
    run_id: str
    version: int


def control_topic(flow: FlowSettings) -> str:
    """Name of the control topic of ``flow``, on its target cluster.

    MirrorMaker 1's files have no aliases, so several mirrors that write to one target would all
    be called the same: there the group and the source's addresses tell them apart.
    """
    name = flow.source.alias
    if flow.mode is MirrorMode.MM1:
        told = "\0".join((flow.group_id, *sorted(flow.source.bootstrap_servers)))
        name = f"mm1-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    return f"mm2-sparkmirror.{name}.internal"


def channel(flow: FlowSettings, run_id: str) -> str:
    """What stands for ``<flow>`` in the keys of the signals of one run.

    The members of one MirrorMaker 1 group use one control topic at the same time, each for its own
    part of the partitions: there every run has keys of its own.
    """
    return f"{flow.name}#{run_id}" if flow.mode is MirrorMode.MM1 else flow.name


def run_of(key: str, flow: str) -> str:
    """The run whose `channel` ``key`` is, if it is one of ``flow``'s; else empty."""
    name, _, run_id = key.partition("#")
    return run_id if name == flow else ""


# --- commands -----------------------------------------------------------------------------------


def encode_command(command: Command) -> tuple[bytes, bytes]:
    """Key and value of ``command``, for partition ``COMMAND_PARTITION``."""
    document: dict[str, object] = {
        "command": command.kind.value,
        "run_id": command.run_id,
        "time_ms": command.time_ms,
    }
    if command.epoch is not None:
        document["epoch"] = command.epoch
    if command.version:
        document["version"] = command.version
    key = f"{command.flow}/pause" if command.kind.pauses else command.flow
    return key.encode(), pack(document)


def decode_command(key: bytes | None, value: bytes | None) -> Command | None:
    """The command in a record, None when it holds none."""
    flow = text(key)
    document = unpack(value)
    if not flow or document is None or _ASSIGNMENT_KEY.fullmatch(flow):
        return None
    try:
        kind = CommandKind(document["command"])
        if kind.pauses:
            match = _PAUSE_KEY.fullmatch(flow)
            if match is None:
                return None
            flow = match[1]
        return Command(
            flow=flow,
            kind=kind,
            run_id=str(document.get("run_id", "")),
            time_ms=int(document.get("time_ms", 0)),
            epoch=None if document.get("epoch") is None else int(document["epoch"]),
            version=int(document.get("version", 0)),
        )
    except _MALFORMED:
        return None


# --- assignments --------------------------------------------------------------------------------


def encode_assignment(
    document: AssignmentDocument, *, piece_bytes_max: int = ASSIGNMENT_PIECE_BYTES_MAX
) -> list[tuple[bytes, bytes]]:
    """Keys and values that carry ``document``, for partition ``COMMAND_PARTITION``, in order.

    One record when it fits into ``piece_bytes_max`` bytes, else as many as it takes; every piece
    names the run, the version and the number of pieces, so old and new ones never mix.
    """
    ends = document.ends
    pieces = 1
    while True:
        size = -(-len(document.partitions) // pieces) or 1
        groups = [document.partitions[i * size : (i + 1) * size] for i in range(pieces)]
        values = [
            pack(_assignment_piece(document, ends, group, index, pieces))
            for index, group in enumerate(groups)
        ]
        if max(map(len, values)) <= piece_bytes_max or size == 1:
            break
        pieces *= 2
    base = f"{document.flow}/assignment"
    keys = [base] if pieces == 1 else [f"{base}/{index}" for index in range(pieces)]
    return [(key.encode(), value) for key, value in zip(keys, values, strict=True)]


def _assignment_piece(
    document: AssignmentDocument,
    ends: Mapping[TopicPartition, int] | None,
    group: Sequence[SourcePartition],
    index: int,
    pieces: int,
) -> dict[str, object]:
    piece_ends: dict[str, dict[str, int]] | None = None
    if ends is not None:
        piece_ends = {}
        for p in group:
            if p.source in ends:
                piece_ends.setdefault(p.topic, {})[str(p.partition)] = ends[p.source]
    piece: dict[str, object] = {
        "run_id": document.run_id,
        "version": document.version,
        "piece": index,
        "pieces": pieces,
        "partitions": [[p.topic, p.partition, p.remote_topic, p.topic_id] for p in group],
        "ends": piece_ends,
    }
    if document.member is not None:
        piece["member"] = member_row(document.member)
    return piece


def member_row(member: Member) -> list[object]:
    """``member`` as JSON has it."""
    return [member.member_id, member.generation, member.instance_id, member.cooperative]


def read_member(row: Sequence[Any] | None) -> Member | None:
    """What `member_row` made."""
    if row is None:
        return None
    member_id, generation, instance_id, cooperative = row[:4]
    return Member(str(member_id), int(generation), str(instance_id), bool(cooperative))


class AssignmentCollector:
    """Puts the pieces of one flow's assignment together as they come from the topic.

    Invariant: a document is returned only when all pieces of one ``(run_id, version)`` are there.
    """

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._identity: tuple[str, int, int] | None = None
        self._pieces: dict[int, dict[str, Any]] = {}

    def feed(self, key: bytes | None, value: bytes | None) -> AssignmentDocument | None:
        """Take one record of the command partition; the document when this completes it.

        Records of other flows, commands and garbage change nothing and give None.
        """
        match = _ASSIGNMENT_KEY.fullmatch(text(key))
        if match is None or match[1] != self._flow:
            return None
        piece = unpack(value)
        try:
            if piece is None:
                return None
            identity = (str(piece["run_id"]), int(piece["version"]), int(piece["pieces"]))
            index = int(piece["piece"])
            partitions, ends = _read_piece(piece)
            member = read_member(piece.get("member"))
        except _MALFORMED:
            return None
        if not 0 <= index < identity[2]:
            return None
        if identity != self._identity:
            self._identity, self._pieces = identity, {}
        self._pieces[index] = {"partitions": partitions, "ends": ends, "member": member}
        return self._document() if len(self._pieces) == identity[2] else None

    def _document(self) -> AssignmentDocument:
        assert self._identity is not None
        ordered = [self._pieces[index] for index in sorted(self._pieces)]
        ends: dict[TopicPartition, int] | None = None
        if any(piece["ends"] is not None for piece in ordered):
            ends = {}
            for piece in ordered:
                ends.update(piece["ends"] or {})
        return AssignmentDocument(
            flow=self._flow,
            run_id=self._identity[0],
            version=self._identity[1],
            partitions=tuple(p for piece in ordered for p in piece["partitions"]),
            ends=ends,
            member=ordered[0]["member"],
        )


def _read_piece(
    piece: dict[str, Any],
) -> tuple[list[SourcePartition], dict[TopicPartition, int] | None]:
    partitions = [
        SourcePartition(str(topic), int(partition), str(remote), str(topic_id))
        for topic, partition, remote, topic_id in piece["partitions"]
    ]
    raw = piece.get("ends")
    if raw is None:
        return partitions, None
    ends = {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in raw.items()
        for partition, offset in offsets.items()
    }
    return partitions, ends


# --- progress -----------------------------------------------------------------------------------


def encode_progress(progress: SlotProgress) -> tuple[bytes, bytes]:
    """Key and value of ``progress``, for partition ``PROGRESS_PARTITION``."""
    partitions: dict[str, list[list[object]]] = {}
    for p in progress.partitions:
        row: list[object] = [p.partition, p.position, p.timestamp_ms, p.records, p.bytes]
        halt = None
        if p.halt is not None:
            halt = [p.halt.code, p.halt.reason, p.halt.retriable, p.halt.attempt]
        tail = [halt, _spread_row(p.age_ms), _spread_row(p.latency_ms)]
        while tail and tail[-1] is None:
            tail.pop()
        row += tail
        partitions.setdefault(p.topic, []).append(row)
    document: dict[str, object] = {
        "worker": progress.worker,
        "epoch": progress.epoch,
        "time_ms": progress.time_ms,
        "records": progress.records,
        "bytes": progress.bytes,
        "batches": progress.batches,
        "latency_counts": list(progress.latency_counts),
        "latency_ms_sum": progress.latency_ms_sum,
        "errors": dict(progress.errors),
        "partitions": partitions,
    }
    if progress.paused:
        document["paused"] = True
    return f"{progress.flow}/{progress.slot}".encode(), pack(document)


def decode_progress(key: bytes | None, value: bytes | None) -> SlotProgress | None:
    """The slot progress in a record, None when it holds none."""
    match = _PROGRESS_KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        return SlotProgress(
            flow=match[1],
            slot=int(match[2]),
            worker=str(document["worker"]),
            epoch=int(document["epoch"]),
            time_ms=int(document["time_ms"]),
            records=int(document["records"]),
            bytes=int(document["bytes"]),
            batches=int(document["batches"]),
            latency_counts=tuple(int(n) for n in document.get("latency_counts", ())),
            latency_ms_sum=int(document.get("latency_ms_sum", 0)),
            paused=bool(document.get("paused", False)),
            errors={str(code): int(n) for code, n in document.get("errors", {}).items()},
            partitions=tuple(
                _partition_progress(topic, row)
                for topic, rows in document.get("partitions", {}).items()
                for row in rows
            ),
        )
    except _MALFORMED:
        return None


def _partition_progress(topic: str, row: Sequence[Any]) -> PartitionProgress:
    partition, position, timestamp_ms, records, size = (int(n) for n in row[:5])
    halt = None
    if len(row) > 5 and row[5] is not None:
        code, reason, retriable, *attempt = row[5][:4]
        halt = Halt(str(code), str(reason), bool(retriable), int(attempt[0]) if attempt else -1)
    age_ms, latency_ms = (_spread(row[n]) if len(row) > n else None for n in (6, 7))
    return PartitionProgress(
        topic, partition, position, timestamp_ms, records, size, halt, age_ms, latency_ms
    )


def _spread_row(spread: Spread | None) -> list[float] | None:
    """Last, lowest, mean and highest value in ms; the last alone when there are no others."""
    if spread is None:
        return None
    values = (spread.last, spread.low, spread.mean, spread.high)
    return [round(value, 1) for value in values if value is not None]


def _spread(row: Sequence[Any] | None) -> Spread | None:
    if row is None:
        return None
    return Spread(*(float(value) for value in row[:4]))


def encode_planned(planned: Planned) -> tuple[bytes, bytes]:
    """Key and value of ``planned``, for partition ``PROGRESS_PARTITION``."""
    document = {"run_id": planned.run_id, "version": planned.version}
    return f"{planned.flow}/planner".encode(), pack(document)


def decode_planned(key: bytes | None, value: bytes | None) -> Planned | None:
    """What `encode_planned` made; None for any other record."""
    match = _PLANNER_KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        return Planned(match[1], str(document["run_id"]), int(document["version"]))
    except _MALFORMED:
        return None


# --- the topic, from the driver -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlSignals:
    """What one poll of the control topic brought. ``skipped``: records that are no signal."""

    commands: tuple[Command, ...] = ()
    assignments: tuple[AssignmentDocument, ...] = ()
    progress: tuple[SlotProgress, ...] = ()
    drivers: tuple[DriverReport, ...] = ()
    skipped: int = 0
    planned: tuple[Planned, ...] = ()


class ControlTopicReader:
    """Follows one control topic in the driver, without a group; one owner thread.

    Reads from the beginning of what compaction has left; with ``only_new``, of the reports only
    what is written from now on. ``topic`` must exist.
    """

    def __init__(self, cluster: Cluster, topic: str, *, only_new: bool = False) -> None:
        only_from_now = (PROGRESS_PARTITION,) if only_new else ()
        self._tail: TopicTail = cluster.tail(topic, only_new=only_from_now)
        self._collectors: dict[str, AssignmentCollector] = {}

    def poll(self, timeout_ms: int = 500) -> ControlSignals:
        """What has come since the last call. Raises `MirrorError` when the cluster is away."""
        return self._read(self._tail.poll(timeout_ms))

    def read_to_end(self) -> ControlSignals:
        """All up to the end that was seen when this reader was made. Raises `MirrorError`."""
        return self._read(self._tail.read_to_end())

    def _read(self, records: Iterable[tuple[int, bytes | None, bytes | None]]) -> ControlSignals:
        commands: list[Command] = []
        assignments: list[AssignmentDocument] = []
        progress: list[SlotProgress] = []
        planned: list[Planned] = []
        drivers: list[DriverReport] = []
        skipped = 0
        for partition, key, value in records:
            if partition == PROGRESS_PARTITION:
                report = decode_progress(key, value)
                driver = decode_driver_report(key, value) if report is None else None
                word = decode_planned(key, value) if report is None and driver is None else None
                if report is not None:
                    progress.append(report)
                elif driver is not None:
                    drivers.append(driver)
                elif word is not None:
                    planned.append(word)
                else:
                    skipped += value is not None
                continue
            match = _ASSIGNMENT_KEY.fullmatch(text(key))
            if match is not None:
                collector = self._collectors.setdefault(match[1], AssignmentCollector(match[1]))
                document = collector.feed(key, value)
                if document is not None:
                    assignments.append(document)
                continue
            command = decode_command(key, value)
            if command is not None:
                commands.append(command)
            skipped += command is None and value is not None and decode_claim(key, value) is None
        return ControlSignals(
            tuple(commands),
            tuple(assignments),
            tuple(progress),
            tuple(drivers),
            skipped,
            tuple(planned),
        )

    def close(self) -> None:
        """Close the connection."""
        self._tail.close()


class ControlTopicWriter:
    """Writes commands and assignments to one control topic; thread-safe as `Cluster` is."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic

    def command(self, *commands: Command) -> None:
        """Write ``commands``, acknowledged when this returns. Raises `MirrorError`."""
        records = [(COMMAND_PARTITION, *encode_command(command)) for command in commands]
        self._cluster.produce_many(self._topic, records)

    def forget(self, flow: str, slots: Iterable[int]) -> None:
        """Delete all signals of ``flow`` (a `channel` that no run will use again)."""
        reports = (f"{flow}/{name}" for name in ("planner", "driver", *slots))
        keys = [flow, f"{flow}/assignment", *reports]
        self._cluster.produce_many(
            self._topic,
            [
                (PROGRESS_PARTITION if index >= 2 else COMMAND_PARTITION, key.encode(), None)
                for index, key in enumerate(keys)
            ],
        )

    def report(self, report: DriverReport) -> None:
        """Write the driver's report. Raises `MirrorError`."""
        key, value = encode_driver_report(report)
        self._cluster.produce_many(self._topic, [(PROGRESS_PARTITION, key, value)])

    def assign(self, document: AssignmentDocument, command: Command) -> None:
        """Write ``document`` and then ``command``, so that whoever obeys finds the assignment."""
        records = [(COMMAND_PARTITION, *piece) for piece in encode_assignment(document)]
        records.append((COMMAND_PARTITION, *encode_command(command)))
        self._cluster.produce_many(self._topic, records)
