"""Tries transforms on a sample of records: what becomes of each, and what it costs."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sparkmirror.data.rows.rows import build_row, read_row
from sparkmirror.data.transform.pack import Packed
from sparkmirror.data.transform.portions import portions
from sparkmirror.data.transform.replay import GROUP_BYTES, Part, Replay, grouped, groups
from sparkmirror.data.transform.results import records_of
from sparkmirror.errors import Defect
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import base_offset, batches, record_count, split
from sparkmirror.records.records import Record, decode_records
from sparkmirror.records.selection import SelectRules, select

__all__ = ["Cost", "Tried", "measure", "tried"]

_REASONS_MAX = 1_000
_COST_RECORDS = 20_000
_COST_BYTES_MAX = 32 << 20
_ROW_BYTES = 1 << 20
_OFFSET = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Tried:
    """One record of the sample. ``after``: None if it is left out, or if the SQL ``failed``.

    ``reason``: why the SQL failed. ``target``: where a routed record goes.
    """

    topic: str
    partition: int
    before: Record
    after: Record | None = None
    failed: bool = False
    reason: str = ""
    target: TopicPartition | None = None

    @property
    def outcome(self) -> str:
        """``kept``, ``filtered`` or ``failed``."""
        if self.failed:
            return "failed"
        return "filtered" if self.after is None else "kept"


@dataclass(frozen=True, slots=True)
class Cost:
    """Records per second on one core, without any network.

    ``records``: how many were measured: the sample, ``repeats`` times. ``raw_records_s``: their
    batches checked, put into a row, taken from it and cut. ``transform_records_s``: the same work
    with the transform, Spark included.
    """

    records: int
    repeats: int
    raw_records_s: float
    transform_records_s: float


def tried(replay: Replay, parts: Sequence[Part]) -> list[Tried]:
    """What becomes of each record of ``parts``, in their order. Raises `MirrorError`."""
    made: dict[tuple[str, int, int], Record] = {}
    targets: dict[tuple[str, int, int], TopicPartition] = {}
    failed: dict[tuple[str, int, int], str] = {}
    for group in groups(parts, GROUP_BYTES):
        for packed in replay.packed(group, reasons=_REASONS_MAX):
            at = packed.chunk.topic, packed.chunk.partition
            new = new_records(packed)
            made |= {(*at, offset): one for offset, one in new}
            for (offset, _), target in zip(new, _places(packed), strict=False):
                targets[*at, offset] = target
            for each in packed.failed:
                failed |= {(*at, one.offset): each.said(one.offset) for one in each.records}
    found = []
    for chunk, data in parts:
        for portion in portions(chunk, memoryview(data)):
            for record in records_of(portion):
                key = chunk.topic, chunk.partition, record.offset
                found.append(
                    Tried(
                        *(*key[:2], record, made.get(key), key in failed, failed.get(key, "")),
                        targets.get(key),
                    )
                )
    return found


def new_records(packed: Packed) -> list[tuple[int, Record]]:
    """The records that a transform has made, each with its source offset."""
    offsets = [] if packed.sources is None else packed.sources.tolist()
    data = packed.records
    records = [one for start, end in split(data) for one in decode_records(data[start:end])]
    return list(zip(offsets, records, strict=True))


def _places(packed: Packed) -> list[TopicPartition]:
    """Where each of `new_records` goes; empty if they are not routed."""
    data = packed.records
    return [
        TopicPartition(*target)
        for (start, end), target in zip(split(data), packed.chunk.targets or (), strict=False)
        for _ in range(record_count(data[start:end]))
    ]


def measure(replay: Replay, parts: Sequence[Part]) -> Cost:
    """Measure the costs of ``parts``, which have records: of the first of them, if they are large.

    Raises `MirrorError`.
    """
    parts = next(grouped(parts, _records_bytes, _COST_BYTES_MAX))
    records = sum(chunk.record_count for chunk, _ in parts)
    size = sum(map(_records_bytes, parts))
    repeats = max(1, min(-(-_COST_RECORDS // records), _COST_BYTES_MAX // size))
    many = [row for part in parts for row in _repeated(part, repeats)]
    replay.packed(many)  # compiles the SQL
    began = time.perf_counter()
    replay.packed(many)
    transformed_s = time.perf_counter() - began
    began = time.perf_counter()
    for part in many:
        _pass(part)
    raw_s = time.perf_counter() - began
    count = records * repeats
    return Cost(count, repeats, count / raw_s, count / transformed_s)


def _records_bytes(part: Part) -> int:
    """The size of its records, which Spark gets without compression."""
    chunk, data = part
    found = portions(chunk, memoryview(data))
    return sum(int(portion.columns.rest_bytes.sum()) for portion in found)


def _repeated(part: Part, repeats: int) -> Iterator[Part]:
    """``part`` several times, in rows as large as those of a mirror that has much to read.

    Each copy has offsets of its own, which no checksum covers.
    """
    chunk, data = part
    view = memoryview(data)
    heads = [(start, base_offset(view[start:end])) for start, end in split(view)]
    span = chunk.next_offset - chunk.base_offset
    while repeats:
        times = max(1, min(repeats, _ROW_BYTES // len(data)))
        repeats -= times
        copies = bytearray(data * times)
        for copy in range(times):
            for start, offset in heads:
                _OFFSET.pack_into(copies, copy * len(data) + start, offset + copy * span)
        made = replace(
            chunk,
            next_offset=chunk.base_offset + times * span,
            record_count=chunk.record_count * times,
            size=len(copies),
            runs=[
                (first + copy * span, count)
                for copy in range(times)
                for first, count in chunk.source_runs
            ],
        )
        yield made, bytes(copies)


def _pass(part: Part) -> None:
    """What both ends of a slot do with batches that pass as they are."""
    chunk, data = part
    view = memoryview(data)
    rules = SelectRules(check_crcs=True, read_committed=False, join_bytes=0, join_below_bytes=0)
    chosen = select(view, base_offset(view), (), rules)
    if chosen.record_count != chunk.record_count:
        raise Defect("a row of the sample is not read as a whole")
    row = build_row([chunk], view, [chosen.pieces])
    (found,), records, _, _ = read_row(row, 0)
    batches(records[found.start : found.start + found.size])
