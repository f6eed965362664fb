"""Writing batches anew: neighbours joined into one, holes closed, log append time made real.

A group is what becomes one batch. There are two engines with one result: ``_write_group`` walks
record by record and finds every fault; ``_write_columns`` handles the records of many groups as
columns, and leaves whatever looks odd to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import BatchError, CorruptBatch
from sparkmirror.wire.batch import MAGIC_AT
from sparkmirror.wire.columns import OddError, TooMuchError, read_columns
from sparkmirror.wire.heads import Int64s, gather_heads
from sparkmirror.wire.legacy import carry_legacy
from sparkmirror.wire.records import Carried, Limits, carry, write_carried
from sparkmirror.wire.rewrite import Written, encode_columns

__all__ = ["Group", "GroupError", "Written", "write_groups"]

_COLUMNS_BATCHES_MIN = 24
"""Below, walking record by record is quicker than setting up columns."""
_COLUMNS_SHARE_MIN = 12
"""Records per step (the k-th records of all batches are one step) that make columns pay."""


@dataclass(slots=True)
class Group:
    """Source batches that become one: frame index ranges ``[i, j)``, all of one codec."""

    codec: int
    ranges: list[tuple[int, int]]
    size: int = 0
    forced: bool = False

    def frames(self) -> Iterator[int]:
        """Frame indices in order."""
        for first, end in self.ranges:
            yield from range(first, end)

    @property
    def frame_count(self) -> int:
        """Number of source batches."""
        return sum(end - first for first, end in self.ranges)


class GroupError(Exception):
    """Internal: frame ``frame`` of a group cannot be read, because of ``error``."""

    def __init__(self, frame: int, error: BatchError) -> None:
        super().__init__(frame, error)
        self.frame = frame
        self.error = error


def write_groups(
    buffer: memoryview, starts: Sequence[int], groups: Sequence[Group], limits: Limits
) -> list[Written]:
    """One new batch for each group, in order.

    ``starts``: first byte of every frame in ``buffer``, and as last entry the end of the last one.
    Raises GroupError for the first frame that cannot be read.
    """
    written: list[Written | None] = [None] * len(groups)
    if sum(group.frame_count for group in groups) >= _COLUMNS_BATCHES_MIN:
        positions = np.fromiter(starts, np.int64, len(starts))
        for packed in (False, True):
            chosen = [n for n, group in enumerate(groups) if (group.codec != 0) == packed]
            if chosen:
                _write_columns(
                    buffer, positions, groups=groups, chosen=chosen, limits=limits, written=written
                )
    unpacked_bytes = 0
    results: list[Written] = []
    for group, done in zip(groups, written, strict=True):
        if done is None:
            if unpacked_bytes > limits.together_bytes_max:
                raise _too_much(group.ranges[0][0], unpacked_bytes)
            done, more = _write_group(buffer, starts, group, limits)  # noqa: PLW2901
            unpacked_bytes += more
        results.append(done)
    return results


def _too_much(frame: int, unpacked_bytes: int) -> GroupError:
    """Batches that unpack to a lot are taken a few at a time.

    Those before ``frame`` now, the others from the next answer: so memory and the time until the
    next sign of life have a bound whatever a producer packs.
    """
    return GroupError(
        frame, CorruptBatch(f"{unpacked_bytes} bytes are too many to unpack at once.")
    )


# One group, record by record -----------------------------------------------------------------


def _write_group(
    buffer: memoryview, starts: Sequence[int], group: Group, limits: Limits
) -> tuple[Written, int]:
    """The new batch, and how many bytes were unpacked for it."""
    carried = Carried()
    frame = first = group.ranges[0][0]
    try:
        for frame in group.frames():
            batch = buffer[starts[frame] : starts[frame + 1]]
            if batch[MAGIC_AT] < 2:
                carry_legacy(batch, carried, limits)
            else:
                carry(batch, carried, limits)
            if carried.unpacked_bytes > limits.joined_bytes_max and frame != first:
                raise _too_much(frame, carried.unpacked_bytes)
    except BatchError as error:
        raise GroupError(frame, error) from error
    if not carried.offsets:
        return Written(b"", [], 0, -1), carried.unpacked_bytes
    runs = _runs(carried.offsets)
    data = write_carried(carried, group.codec)
    written = Written(data, runs, len(carried.offsets), max(carried.timestamps))
    return written, carried.unpacked_bytes


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return [(offsets[0], len(offsets))]
    runs: list[tuple[int, int]] = []
    first = expected = offsets[0]
    for offset in offsets:
        if offset != expected:
            runs.append((first, expected - first))
            first = offset
        expected = offset + 1
    runs.append((first, expected - first))
    return runs


# Many groups, as columns ---------------------------------------------------------------------


def _write_columns(
    buffer: memoryview,
    positions: Int64s,
    *,
    groups: Sequence[Group],
    chosen: Sequence[int],
    limits: Limits,
    written: list[Written | None],
) -> None:
    """Fill ``written`` for those of the chosen groups for which columns pay and nothing is odd."""
    frames = [
        np.concatenate([np.arange(first, end) for first, end in groups[n].ranges]) for n in chosen
    ]
    first_bytes = positions[np.concatenate(frames)]
    if bool((np.frombuffer(buffer, np.uint8)[first_bytes + MAGIC_AT] != 2).any()):
        return
    heads = gather_heads(buffer, first_bytes)
    members = np.array([len(part) for part in frames])
    pays = _paying(heads["count"].astype(np.int64), members)
    if not pays.any():
        return
    if not pays.all():
        some = [n for n, good in zip(chosen, pays.tolist(), strict=True) if good]
        _write_columns(
            buffer, positions, groups=groups, chosen=some, limits=limits, written=written
        )
        return
    try:
        columns = read_columns(buffer, first_bytes, heads, members, limits)
    except (OddError, BatchError):
        return  # the record-by-record engine names the frame and the fault
    except TooMuchError as error:
        frame = groups[chosen[error.group]].ranges[0][0]
        raise _too_much(frame, limits.together_bytes_max) from error
    codecs = [groups[n].codec for n in chosen]
    for n, result in zip(chosen, encode_columns(columns, codecs), strict=True):
        written[n] = result


def _paying(counts: Int64s, members: Int64s) -> npt.NDArray[np.bool_]:
    """Which groups to handle as columns: as many as share each step with enough others.

    ``counts``: records of each batch; ``members``: batches of each group. A step costs about as
    much as a dozen records that are walked singly, and there are as many as the fullest batch has
    records; so groups with fuller batches join only while the records per step stay worth it.
    """
    if int(counts.sum()) >= _COLUMNS_SHARE_MIN * int(counts.max()):
        return np.ones(len(members), np.bool_)
    cuts = np.cumsum(members) - members
    steps = np.maximum.reduceat(counts, cuts)
    order = np.argsort(steps, kind="stable")
    worth = np.cumsum(np.add.reduceat(counts, cuts)[order]) >= _COLUMNS_SHARE_MIN * steps[order]
    good = np.flatnonzero(worth)
    pays = np.zeros(len(members), np.bool_)
    if len(good):
        pays[order[: good[-1] + 1]] = True
    return pays
