"""Compares two logs of a compacted topic by the last value of each key. Pure: it gets `Side`.

Each side compacts at its own time, so only what a key says in the end is comparable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from sparkmirror.control.verify.lockstep import SIZES, Side
from sparkmirror.observe.figures.comparison_result import Difference
from sparkmirror.records.records import Record, decode_rest

__all__ = [
    "LastOffsets",
    "Values",
    "differing",
    "drop_deleted",
    "drop_unseen",
    "last_values",
    "newer_keys",
    "other_value",
    "value_digests",
]

Key = bytes | None
Values = dict[Key, tuple[int, bytes]]
"""Offset and digest of the last record of each key, without keys that end with a tombstone."""
LastOffsets = dict[Key, int]
"""The last offset of every key."""


def last_values(side: Side, seen: LastOffsets | None = None) -> Values:
    """The last values in ``side``, of which all records are taken.

    ``seen`` gets the last offsets, also of keys that end with a tombstone.
    """
    found: Values = {}
    for record, digest in _records(side):
        if seen is not None:
            seen[record.key] = record.offset
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = (record.offset, digest)
    return found


def value_digests(side: Side, keys: AbstractSet[Key]) -> dict[Key, set[bytes]]:
    """Digests of all records with one of ``keys``, by key; a tombstone's digest is empty.

    Takes all records of ``side``.
    """
    found: dict[Key, set[bytes]] = {}
    for record, digest in _records(side):
        if record.key in keys:
            found.setdefault(record.key, set()).add(b"" if record.value is None else digest)
    return found


def _records(side: Side) -> Iterator[tuple[Record, bytes]]:
    """Every record, decoded, with a digest of 16 bytes."""
    while count := side.fill():
        for offset, time_ms, rest in zip(side.offsets, side.times, side.rests, strict=True):
            whole = SIZES.pack(time_ms, len(rest)) + rest
            digest = hashlib.blake2b(whole, digest_size=16).digest()
            yield decode_rest(offset, time_ms, memoryview(rest)), digest
        side.take(count)


def _digest(values: Values, key: Key) -> bytes:
    return values[key][1] if key in values else b""


def differing(ours: Values, theirs: Values) -> set[Key]:
    """The keys that have different last values at source and target."""
    return {
        key for key in ours.keys() | theirs.keys() if _digest(ours, key) != _digest(theirs, key)
    }


def drop_unseen(theirs: Values, seen: LastOffsets) -> bool:
    """Leave out of ``theirs`` what the source had only before: it is gone, or not asked for.

    Returns whether there was any.
    """
    unseen = theirs.keys() - seen.keys()
    for key in unseen:
        del theirs[key]
    return bool(unseen)


def drop_deleted(ours: Values, theirs: Values, position: int) -> int | None:
    """Leave out of ``ours`` what the target has deleted with its oldest records.

    It has the order of the source: what comes behind a record that it has is not deleted. If it has
    none, all before the flow's ``position`` is. Returns the source offset before which keys were
    left out; None if none were.
    """
    both = [
        (theirs[key][0], ours[key][0])
        for key in ours.keys() & theirs.keys()
        if ours[key][1] == theirs[key][1]
    ]
    first = min(both)[1] if both else 0
    if not theirs:
        first = position
    deleted = [key for key, (at, _) in ours.items() if at < first and key not in theirs]
    for key in deleted:
        del ours[key]
    return first if deleted else None


def newer_keys(
    keys: set[Key], seen: LastOffsets, theirs: Values, later: dict[Key, set[bytes]]
) -> set[Key]:
    """Those of ``keys`` of which the target has a value from behind the end.

    The same for keys that the source has only there: compaction has removed what was before. They
    leave ``theirs``. ``later``: `value_digests` of the source behind the end.
    """
    newer = {
        key
        for key in keys
        if key in later and (key not in seen or _digest(theirs, key) in later[key])
    }
    for key in newer - seen.keys():
        theirs.pop(key, None)
    return newer


def other_value(
    keys: set[Key], seen: LastOffsets, ours: Values, theirs: Values, position: int | None
) -> Difference:
    """The first difference at the source, of ``keys`` that differ. ``position``: the flow's."""
    known = sorted((seen[key], key) for key in keys if key in seen)
    if not known:
        at = min(theirs[key][0] for key in keys)
        what = f"the target has a key at its offset {at} that the source does not have"
        return Difference("extra", None, at, what)
    offset, key = known[0]
    if position is not None and position <= offset:
        return Difference("behind", offset, None, f"source offset {offset} is not mirrored yet")
    if key not in theirs:
        what = f"the target lacks the key of source offset {offset}"
        return Difference("missing", offset, None, what)
    there = theirs[key][0]
    if key not in ours:
        what = f"the target still has the key that source offset {offset} deletes"
        return Difference("extra", offset, there, what)
    what = f"source offset {offset} and target offset {there} have one key and differ"
    return Difference("differs", offset, there, what)
