"""Decides which batches of one Fetch response are mirrored, and which of them are re-encoded.

A batch is **plain** if it meets four conditions. A plain batch can be carried unchanged:

1. It has magic 2, and its CRC-32C matches (unless ``check_crcs`` is off).
2. It is not a control batch, it does not belong to an aborted transaction, and its timestamps are
   the producer's. (A target accepts no log append time, so the records must contain that time.)
3. It has one record at each of its offsets, as many as its header states, and the bytes for them.
4. It begins after the batch before it, at the fetch offset or later, and it ends before the end
   offset.

``BatchSelector.choose`` decides frame by frame. Only it drops, trims or refuses batches that are
not plain. Three shortcuts check the four conditions for many batches and leave the rest to it:
``BatchSelector._choose_untouched`` one header at a time, ``BatchSelector._plain`` as columns (long
runs of tiny batches), and `records.single_record_batches` for a few batches of one record. Nobody
checks the conditions again: the sink cuts by length (`records.header.batches`), and
`records.header.stamp` relies on them.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from sparkmirror.errors import BatchError
from sparkmirror.records.codecs import DECOMPRESSED_BYTES_MAX
from sparkmirror.records.header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME_BIT,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from sparkmirror.records.header_columns import Int64s, chain_holds, gather_heads, merge_runs
from sparkmirror.records.message_v0_v1 import legacy_codec
from sparkmirror.records.rebatch import BatchGroup
from sparkmirror.records.records import INT64_MAX, RECORD_BYTES_MIN, decode_records
from sparkmirror.records.walk import fault_at

__all__ = ["AbortedTransaction", "BatchSelector", "Raw", "SelectRules", "extend_runs"]

_ABORT_KEY = 0
_COLUMNS_FRAMES_MIN = 32
_COLUMNS_FRAME_BYTES_MAX = 2048
# Base offset, magic, CRC, attributes, last offset delta, max timestamp, record count.
_CHOOSING = struct.Struct(">q8xbIhi8xq14xi")
_MARKER_BYTES_MAX = 64 * 1024  # brokers write a few dozen
_CONTROL_KEY = struct.Struct(">hh")
# With fewer batches in a response, joining uncompressed batches of 4 KiB or more would save little
# and delay their records.
_UNCOMPRESSED_FRAMES_MIN = 8
_UNTOUCHED = 8
_SINGLY = 9


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a Fetch response's aborted transactions, as the broker sends it."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class SelectRules:
    """What ``select`` checks, drops and joins.

    ``join_bytes``: target size of a joined batch. ``join_below_bytes``: batches smaller than this
    are joined with their neighbours; 0 joins nothing. ``join_uncompressed_below_bytes``: the same
    for uncompressed batches, if the response has many batches: copying their records costs less
    than a request to the target with so little in it. ``decompressed_bytes_max``: a batch that
    decompresses to more is refused as damaged (`codecs.decompress_batch` has the exact rule).
    """

    check_crcs: bool = True
    read_committed: bool = True
    join_bytes: int = 256 * 1024
    join_below_bytes: int = 4 * 1024
    join_uncompressed_below_bytes: int = 32 * 1024
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX


@dataclass(slots=True)
class Raw:
    """Contiguous batches that are carried unchanged: bytes ``start`` to ``end`` of the buffer.

    ``runs``: ``(first source offset, record count)``, in order.
    """

    start: int
    end: int
    batch_count: int
    record_count: int
    timestamp_ms_max: int
    runs: list[tuple[int, int]]


class BatchSelector:
    """Decides what happens to each frame of one response, in order.

    ``items``: the decisions, in order: ``Raw`` ranges, and ``BatchGroup`` s to re-encode.
    ``behind_hole``: where the batch behind the end offset begins in the buffer, if no batch before
    reaches that offset; else -1.
    """

    def __init__(
        self,
        buffer: memoryview,
        starts: list[int],
        *,
        fetch_offset: int,
        end_offset: int,
        aborted: Sequence[AbortedTransaction],
        rules: SelectRules,
    ) -> None:
        self.buffer = buffer
        self.starts = starts
        self.fetch_offset = fetch_offset
        self.end_offset = end_offset
        self.rules = rules
        self.next_offset = fetch_offset
        self.behind_hole = -1
        self.items: list[Raw | BatchGroup] = []
        self._expected = -INT64_MAX
        self._join_below = self._uncompressed_below = min(rules.join_below_bytes, rules.join_bytes)
        if self._join_below and len(starts) > _UNCOMPRESSED_FRAMES_MIN:
            most = min(rules.join_uncompressed_below_bytes, rules.join_bytes)
            self._uncompressed_below = max(self._join_below, most)
        self._pending: BatchGroup | None = None
        self._to_abort: list[AbortedTransaction] = []
        if rules.read_committed and aborted:
            self._to_abort = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._drops_aborted = bool(self._to_abort)
        self._singly_bits = CONTROL_BIT | LOG_APPEND_TIME_BIT
        if self._drops_aborted:
            self._singly_bits |= TRANSACTIONAL_BIT
        self._aborting: set[int] = set()

    def run(self) -> BatchError | None:
        """Decide about all frames. Returns the fault at which it had to stop, if any."""
        count = len(self.starts) - 1
        try:
            if count >= _COLUMNS_FRAMES_MIN and self._columns_pay(count):
                self.choose_many(count)
            else:
                frame = self._choose_untouched(0, count)
                while frame < count and self.choose(frame):
                    frame = self._choose_untouched(frame + 1, count)
        except BatchError as fault:
            self._flush()
            return fault
        self._flush()
        return None

    def _columns_pay(self, count: int) -> bool:
        """Whether most frames are small, judged by their mean size and the first one's codec."""
        bytes_mean = self.starts[count] // count
        packed = self.buffer[self.starts[0] + ATTRIBUTES_AT + 1] & CODEC_MASK
        return bytes_mean < max(_COLUMNS_FRAME_BYTES_MAX, 0 if packed else self._uncompressed_below)

    def choose(self, frame: int) -> bool:
        """Decide about one frame; False when the end offset is reached. Raises BatchError."""
        start, end = self.starts[frame], self.starts[frame + 1]
        if self.buffer[start + MAGIC_AT] != 2:
            return self._choose_legacy(frame, start, end)
        if end - start < HEADER_BYTES:
            raise fault_at(self.buffer, start, f"is only {end - start} bytes long")
        (base, _, _, _, crc, bits, last_delta, _, _, producer_id, _, _, count) = HEADER.unpack_from(
            self.buffer, start
        )
        if self.rules.check_crcs and crc32c(self.buffer[start + ATTRIBUTES_AT : end]) != crc:
            raise fault_at(self.buffer, start, "does not match its CRC-32C")
        last = base + last_delta
        if base < max(self._expected, 0) or last >= INT64_MAX or last_delta < 0:
            raise fault_at(
                self.buffer, start, f"ends at {last}, the one before it at {self._before}"
            )
        if not 0 <= count <= last_delta + 1 or (
            not bits & CODEC_MASK and count * RECORD_BYTES_MIN > end - start - HEADER_BYTES
        ):
            raise fault_at(self.buffer, start, f"states {count} records in {end - start} bytes")
        if base >= self.end_offset:
            return self._stop(start)
        self._expected = last + 1
        if not self._drops(frame, bits, last, producer_id) and count and last >= self.fetch_offset:
            forced = (
                last_delta != count - 1
                or base < self.fetch_offset
                or last >= self.end_offset
                or bool(bits & LOG_APPEND_TIME_BIT)
            )
            self._carry(frame, bits & CODEC_MASK, forced)
        return self._advance(last)

    def _choose_untouched(self, frame: int, count: int) -> int:
        """Take plain batches that are large enough; returns the first frame that is not one.

        This is the usual case, so it is a loop of its own: one header unpack and one checksum for
        each batch.
        """
        first = frame
        buffer, starts, unpack = self.buffer, self.starts, _CHOOSING.unpack_from
        check_crcs, size_min = self.rules.check_crcs, max(self._join_below, HEADER_BYTES)
        uncompressed_min = self._uncompressed_below
        singly_bits = self._singly_bits
        floor = max(self._expected, self.fetch_offset, 0)
        ceiling = min(self.end_offset, INT64_MAX - 1)
        records = run_records = 0
        run_first = expected = floor
        latest = -1
        runs: list[tuple[int, int]] = []
        while frame < count:
            start, end = starts[frame], starts[frame + 1]
            if end - start < size_min:
                break
            base, magic, crc, bits, last_delta, time, number = unpack(buffer, start)
            if (
                magic != 2
                or bits & singly_bits
                or (end - start < uncompressed_min and not bits & CODEC_MASK)
                or base < expected
                or not 0 <= last_delta < ceiling - base
                or number != last_delta + 1
                or (not bits & CODEC_MASK and number * RECORD_BYTES_MIN > end - start)
                or (check_crcs and crc32c(buffer[start + ATTRIBUTES_AT : end]) != crc)
            ):
                break
            if base != expected:
                if run_records:
                    runs.append((run_first, run_records))
                run_first, run_records = base, 0
            run_records += number
            records += number
            expected = base + number
            latest = max(latest, time)
            frame += 1
        if frame > first:
            runs.append((run_first, run_records))
            self._carry_raw(Raw(starts[first], starts[frame], frame - first, records, latest, runs))
            self._expected = expected
            self._advance(expected - 1)
        return frame

    def _choose_legacy(self, frame: int, start: int, end: int) -> bool:
        """Messages of magic 0 and 1. They are always re-encoded, and checked when they are read."""
        magic = self.buffer[start + MAGIC_AT]
        last = int.from_bytes(self.buffer[start : start + LENGTH_AT], "big", signed=True)
        if magic > 2:
            raise fault_at(self.buffer, start, f"has the unknown magic {magic}")
        if last < max(self._expected, 0) or last >= INT64_MAX:
            raise fault_at(self.buffer, start, f"follows the one that ends at {self._before}")
        codec = legacy_codec(self.buffer[start:end])
        if not codec and last >= self.end_offset:
            return self._stop(start)
        self._expected = last + 1
        if last >= self.fetch_offset:
            self._carry(frame, codec, forced=True)
        return self._advance(last)

    @property
    def _before(self) -> str:
        return str(self._expected - 1) if self._expected >= 0 else "none"

    def _stop(self, start: int) -> bool:
        if self.next_offset < self.end_offset:
            self.behind_hole = start
            self.next_offset = self.end_offset
        return False

    def _advance(self, last: int) -> bool:
        self.next_offset = max(self.next_offset, min(last + 1, self.end_offset))
        return last + 1 < self.end_offset

    def _drops(self, frame: int, bits: int, last: int, producer_id: int) -> bool:
        """Whether to drop the batch: it is a control batch, or its transaction was aborted.

        Aborted transactions are found as a Java consumer finds them.
        """
        if not bits & (CONTROL_BIT | TRANSACTIONAL_BIT):
            return False
        control = bool(bits & CONTROL_BIT)
        if not self._drops_aborted:
            return control
        while self._to_abort and self._to_abort[-1].first_offset <= last:
            self._aborting.add(self._to_abort.pop().producer_id)
        if control:
            if producer_id in self._aborting and self._is_abort_marker(frame):
                self._aborting.discard(producer_id)
            return True
        return producer_id in self._aborting

    def _is_abort_marker(self, frame: int) -> bool:
        batch = self.buffer[self.starts[frame] : self.starts[frame + 1]]
        for record in decode_records(batch, _MARKER_BYTES_MAX):
            if record.key is None or len(record.key) < _CONTROL_KEY.size:
                raise fault_at(batch, 0, "is a control batch without a type")
            return bool(_CONTROL_KEY.unpack_from(record.key)[1] == _ABORT_KEY)
        return False

    # Many at once ------------------------------------------------------------------------

    def choose_many(self, count: int) -> None:
        """The same as ``choose`` for all frames, but faster for plain ones."""
        starts = np.fromiter(self.starts, np.int64, count + 1)
        plain = self._plain(starts)
        codes = np.full(count, _SINGLY) if plain is None else plain.codes
        edges = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), count]
        for first, end in pairwise(edges):
            code = int(codes[first])
            if code == _SINGLY or plain is None:
                for frame in range(first, end):
                    if not self.choose(frame):
                        return
                continue
            if code == _UNTOUCHED:
                self._carry_raw(plain.raw(self.starts, first, end))
            else:
                self._carry_small(first, end, code)
            last = int(plain.lasts[end - 1])
            self._expected = last + 1
            self._advance(last)

    def _plain(self, starts: Int64s) -> _Plain | None:
        """Sort frames into small plain ones (by codec), other plain ones, and those for ``choose``.

        None if a frame is not a whole magic 2 batch, or a checksum does not match.
        """
        sizes = starts[1:] - starts[:-1]
        magics = np.frombuffer(self.buffer, np.uint8)[starts[:-1] + MAGIC_AT]
        if bool((magics != 2).any() or (sizes < HEADER_BYTES).any()):
            return None
        heads = gather_heads(self.buffer, starts[:-1])
        if self.rules.check_crcs and not chain_holds(
            self.buffer, starts[:-1], int(starts[-1]), heads["crc"].astype(np.uint32)
        ):
            return None
        bits = heads["attributes"].astype(np.int64)
        counts = heads["count"].astype(np.int64)
        bases = heads["base_offset"].astype(np.int64)
        lasts = bases + heads["last_offset_delta"]
        codecs = bits & CODEC_MASK
        small = sizes < np.where(codecs == 0, self._uncompressed_below, self._join_below)
        # A small batch is re-encoded anyway, and this writes its log append time into the records.
        small_bits = self._singly_bits & ~LOG_APPEND_TIME_BIT
        singly = (
            ((bits & np.where(small, small_bits, self._singly_bits)) != 0)
            | (lasts - bases != counts - 1)
            | (counts < 1)
            | (counts * RECORD_BYTES_MIN > sizes - HEADER_BYTES) & (codecs == 0)
            | (bases < max(self.fetch_offset, 0))
            | (lasts < bases)
            | (lasts >= min(self.end_offset, INT64_MAX - 1))
        )
        singly[1:] |= bases[1:] <= lasts[:-1]
        codes = np.where(singly, _SINGLY, np.where(small, codecs, _UNTOUCHED))
        return _Plain(codes, bases, lasts, counts, heads["max_timestamp"])

    # Decisions ---------------------------------------------------------------------------

    def _carry(self, frame: int, codec: int, forced: bool) -> None:
        size = self.starts[frame + 1] - self.starts[frame]
        if size < (self._join_below if codec else self._uncompressed_below):
            self._carry_small(frame, frame + 1, codec, forced)
        elif forced:
            self._flush()
            self.items.append(BatchGroup(codec, [(frame, frame + 1)], size, forced=True))
        else:
            self._carry_raw(self._raw(frame))

    def _carry_small(self, first: int, end: int, codec: int, forced: bool = False) -> None:
        """Add the frames to the pending group; close groups that are full."""
        starts = self.starts
        while first < end:
            group = self._pending
            if group is None or group.codec != codec:
                self._flush()
                self._pending = group = BatchGroup(codec, [])
            room = self.rules.join_bytes - group.size
            fits = bisect_right(starts, starts[first] + room, first, end + 1) - 1
            if fits == first:
                if group.ranges:
                    self._flush()
                    continue
                fits = first + 1
            group.size += starts[fits] - starts[first]
            group.forced |= forced
            if group.ranges and group.ranges[-1][1] == first:
                group.ranges[-1] = (group.ranges[-1][0], fits)
            else:
                group.ranges.append((first, fits))
            first = fits

    def _carry_raw(self, raw: Raw) -> None:
        if self._pending is not None:
            self._flush()
        last = self.items[-1] if self.items else None
        if not isinstance(last, Raw) or last.end != raw.start:
            self.items.append(raw)
            return
        last.end = raw.end
        last.batch_count += raw.batch_count
        last.record_count += raw.record_count
        last.timestamp_ms_max = max(last.timestamp_ms_max, raw.timestamp_ms_max)
        extend_runs(last.runs, raw.runs)

    def _flush(self) -> None:
        """Close the pending group. A single batch that needs no change is carried unchanged."""
        group, self._pending = self._pending, None
        if group is None:
            return
        frame = group.ranges[0][0]
        if group.frame_count > 1 or group.forced or self._appended(frame):
            self.items.append(group)
        else:
            self._carry_raw(self._raw(frame))

    def _appended(self, frame: int) -> bool:
        return bool(self.buffer[self.starts[frame] + ATTRIBUTES_AT + 1] & LOG_APPEND_TIME_BIT)

    def _raw(self, frame: int) -> Raw:
        start = self.starts[frame]
        head = HEADER.unpack_from(self.buffer, start)
        base, latest, count = head[0], head[8], head[12]
        return Raw(start, self.starts[frame + 1], 1, count, latest, [(base, count)])


@dataclass(slots=True)
class _Plain:
    """Columns of many frames.

    ``codes``: the codec number of a small plain batch, else ``_UNTOUCHED`` or ``_SINGLY``.
    """

    codes: npt.NDArray[np.int64]
    bases: Int64s
    lasts: Int64s
    counts: Int64s
    latest: npt.NDArray[Any]

    def raw(self, starts: Sequence[int], first: int, end: int) -> Raw:
        """The frames ``first`` to ``end`` as one range that is carried unchanged."""
        counts = self.counts[first:end]
        return Raw(
            starts[first],
            starts[end],
            end - first,
            int(counts.sum()),
            int(self.latest[first:end].max()),
            merge_runs(self.bases[first:end], counts),
        )


def extend_runs(runs: list[tuple[int, int]], more: Sequence[tuple[int, int]]) -> None:
    """Append ``more`` to ``runs``; runs that adjoin become one."""
    for first, count in more:
        if runs and runs[-1][0] + runs[-1][1] == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((first, count))
