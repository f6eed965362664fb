"""Source side: selects what is mirrored of one partition's part of a Fetch response.

Sans-IO: bytes in, a ``Selection`` out, in three steps: cut into frames (`walk`), decide what
happens to each (`batch_decisions`), re-encode where needed (`rebatch`). Most responses are runs of
well-filled batches. They stay one unchanged memoryview; each batch costs a header unpack and a
checksum. A few batches of one record each take a shortcut (`single_record_batches`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkmirror.errors import BatchError
from sparkmirror.records.batch_decisions import (
    AbortedTransaction,
    BatchSelector,
    Raw,
    SelectRules,
    extend_runs,
)
from sparkmirror.records.rebatch import (
    BatchGroup,
    BatchGroupError,
    EncodedBatch,
    one_batch,
    write_groups,
)
from sparkmirror.records.records import INT64_MAX, Limits
from sparkmirror.records.single_record_batches import SINGLES_MAX, read_singles
from sparkmirror.records.walk import walk_batches

__all__ = ["AbortedTransaction", "SelectRules", "Selection", "leader_epoch", "select"]

_EPOCH = struct.Struct(">q4xib")  # base offset, leader epoch, magic
_MAGIC = 2


@dataclass(slots=True)
class Selection:
    """What is mirrored of one partition's part of one Fetch response.

    ``pieces``: in order; a memoryview is an unchanged range of the receive buffer (one or more
    contiguous batches), bytes are re-encoded batches. ``runs``: exact source offsets of the carried
    records in order as ``(first source offset, record count)``; contiguous ones are merged.
    ``next_offset``: next source offset to fetch, past everything that is complete in the response,
    including dropped batches. ``timestamp_ms_max``: largest record timestamp carried, -1 for none.
    ``joined``: source batches that were joined with others. ``reencoded``: new batches that were
    written (including joined ones). ``cut_bytes_needed``: a fetch limit in bytes with which the
    batch that the response cuts would fit; 0 unless the response ends before anything that could be
    mirrored or skipped. ``leader_epoch``: that of the last batch before ``next_offset``, -1 if
    unknown. ``epoch_behind``: that of the batch behind it, if ``next_offset`` is an end offset in a
    compaction hole: in the hole, another leader epoch may have begun. Else None.
    """

    pieces: list[memoryview | bytes] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    next_offset: int = 0
    record_count: int = 0
    batch_count: int = 0
    byte_count: int = 0
    timestamp_ms_max: int = -1
    joined: int = 0
    reencoded: int = 0
    cut_bytes_needed: int = 0
    leader_epoch: int = -1
    epoch_behind: int | None = None


def select(
    buffer: memoryview,
    fetch_offset: int,
    aborted: Sequence[AbortedTransaction],
    rules: SelectRules,
    *,
    end_offset: int | None = None,
) -> Selection:
    """Choose what is mirrored of ``buffer``, the records field of one partition's response.

    ``fetch_offset``: the offset of the request; earlier records are left out. ``aborted``: the
    response's aborted transactions. ``end_offset``: records from there on are left out, and
    ``next_offset`` does not pass it.

    Raises CorruptBatch or UnknownCodec if the first batch to be mirrored is damaged. If valid
    batches precede the damage, these are returned, and the next call starts at the damage.
    """
    frames = walk_batches(buffer)
    end = INT64_MAX if end_offset is None else end_offset
    limits = Limits(fetch_offset, end, rules.check_crcs, rules.decompressed_bytes_max)
    starts = frames.starts
    fault: BatchError | None = frames.fault
    if fault is None and not aborted and 1 < len(starts) - 1 <= SINGLES_MAX:
        joined = _joined_singles(buffer, starts, limits, rules)
        if joined is not None:
            return joined
    while True:
        chooser = BatchSelector(
            buffer,
            starts,
            fetch_offset=fetch_offset,
            end_offset=end,
            aborted=aborted,
            rules=rules,
        )
        fault = chooser.run() or fault
        if fault is not None and chooser.next_offset <= fetch_offset:
            raise fault
        try:
            selection = _build(buffer, starts, chooser, limits)
        except BatchGroupError as bad:
            # Decide again about the frames before the bad one, so that they are mirrored. The
            # traceback goes, because it would keep decompressed data in memory.
            starts, fault = starts[: bad.frame + 1], bad.error.with_traceback(None)
            continue
        if frames.cut_bytes and chooser.next_offset <= fetch_offset:
            selection.cut_bytes_needed = frames.starts[-1] + frames.cut_bytes
        selection.leader_epoch = leader_epoch(buffer, starts, selection.next_offset)
        if chooser.behind_hole >= 0:
            _, selection.epoch_behind = _head(buffer, chooser.behind_hole)
        return selection


def _joined_singles(
    buffer: memoryview, starts: Sequence[int], limits: Limits, rules: SelectRules
) -> Selection | None:
    """The selection if all batches have one record each and become one batch; else None."""
    if starts[-1] > rules.join_bytes:
        return None
    carried = read_singles(
        buffer,
        starts,
        first_offset=limits.first_offset,
        end_offset=limits.end_offset,
        size_max=rules.join_below_bytes,
        check_crcs=limits.check_crcs,
    )
    if carried is None:
        return None
    batch = one_batch(carried, codec=0)
    next_offset = carried.offsets[-1] + 1
    return Selection(
        pieces=[batch.data],
        runs=batch.runs,
        next_offset=next_offset,
        record_count=batch.record_count,
        batch_count=1,
        byte_count=len(batch.data),
        timestamp_ms_max=batch.timestamp_ms_max,
        joined=len(starts) - 1,
        reencoded=1,
        leader_epoch=leader_epoch(buffer, starts, next_offset),
    )


def leader_epoch(buffer: memoryview, starts: Sequence[int], next_offset: int) -> int:
    """Leader epoch of the last batch of ``starts`` (whole frames, then an end) that begins before
    ``next_offset``; -1 if unknown.
    """
    for start in reversed(starts[:-1]):
        offset, epoch = _head(buffer, start)
        if offset < next_offset:
            return epoch
    return -1


def _head(buffer: memoryview, start: int) -> tuple[int, int]:
    """Base offset and leader epoch of the batch at ``start``."""
    offset, epoch, magic = _EPOCH.unpack_from(buffer, start)
    # The old message formats have their CRC at this place.
    return int(offset), int(epoch) if magic == _MAGIC else -1


def _build(
    buffer: memoryview, starts: Sequence[int], chooser: BatchSelector, limits: Limits
) -> Selection:
    """Carry out the decisions of ``chooser``. Raises GroupError."""
    selection = Selection(next_offset=chooser.next_offset)
    groups = [item for item in chooser.items if isinstance(item, BatchGroup)]
    anew = iter(write_groups(buffer, starts, groups, limits) if groups else ())
    for item in chooser.items:
        if isinstance(item, BatchGroup):
            batch = next(anew)
            if not batch.record_count:
                continue
            piece: memoryview | bytes = batch.data
            done: EncodedBatch | Raw = batch
            selection.batch_count += 1
            selection.reencoded += 1
            if item.frame_count > 1:
                selection.joined += item.frame_count
        else:
            piece, done = buffer[item.start : item.end], item
            selection.batch_count += item.batch_count
        selection.pieces.append(piece)
        selection.byte_count += len(piece)
        selection.record_count += done.record_count
        selection.timestamp_ms_max = max(selection.timestamp_ms_max, done.timestamp_ms_max)
        extend_runs(selection.runs, done.runs)
    return selection
