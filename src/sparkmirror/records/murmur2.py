"""Kafka's murmur2 of many keys at once, and the partitions that Java's producer derives from it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparkmirror.records.header_columns import Int64s

__all__ = ["key_partitions", "murmur2"]

Uint32s = npt.NDArray[np.uint32]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)
_13, _15, _24 = map(np.uint32, (13, 15, 24))


def murmur2(flat: npt.NDArray[np.uint8], at: Int64s, sizes: Int64s) -> Uint32s:
    """``org.apache.kafka.common.utils.Utils.murmur2`` of each ``flat[at : at + size]``."""
    hashes = _SEED ^ sizes.astype(np.uint32)
    if not len(hashes):
        return hashes
    least, most = int(sizes.min()), int(sizes.max())
    words = np.ndarray((max(len(flat) - 3, 0),), "<u4", flat.data, strides=(1,))
    step = 0
    while step + 4 <= most:
        if step + 4 <= least:
            hashes = _mixed(hashes, words[at + step])
        else:
            rows = np.flatnonzero(sizes >= step + 4)
            hashes[rows] = _mixed(hashes[rows], words[at[rows] + step])
        step += 4
    tails = sizes & 3
    if tails.any():
        end = at + (sizes & ~3)
        for index in (2, 1, 0):
            rows = np.flatnonzero(tails > index)
            if len(rows):
                byte = flat[end[rows] + index].astype(np.uint32)
                hashes[rows] ^= byte << np.uint32(8 * index)
        rows = np.flatnonzero(tails)
        hashes[rows] *= _M
    hashes ^= hashes >> _13
    hashes *= _M
    hashes ^= hashes >> _15
    return hashes


def _mixed(hashes: Uint32s, words: npt.NDArray[np.uint32]) -> Uint32s:
    mixed = words * _M
    mixed ^= mixed >> _24
    mixed *= _M
    hashes = hashes * _M
    hashes ^= mixed
    return hashes


def key_partitions(
    flat: npt.NDArray[np.uint8], at: Int64s, sizes: Int64s, partitions: int
) -> Int64s:
    """The partition of each key, as Java's producer chooses it (``BuiltInPartitioner``)."""
    positive = murmur2(flat, at, sizes) & _POSITIVE
    return positive.astype(np.int64) % partitions
