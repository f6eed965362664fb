"""Compares two logs of a compacted topic by the last value of each key. Pure: it gets `Side`.

Each side compacts at its own time, so only what a key says in the end is comparable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from sparkmirror.control.verify.lockstep import SIZES, Side
from sparkmirror.observe.figures.comparison_result import Difference
from sparkmirror.records.header import Buffer
from sparkmirror.records.records import Record, decode_rest

Key = bytes | None
Values = dict[Key, tuple[int, bytes]]
"""Offset and digest of the last record of each key, without keys that end with a tombstone."""
LastOffsets = dict[Key, int]
"""The last offset of every key."""
_FIRST = 5_000


@dataclass
class Begin:
    """Where the target's log begins, as an offset of the source. Before that, it deleted records.

    ``found``: by the digests of its first records, in order, the first source offsets of such
    records; None if there is none. Its very first records may be old values of keys, which the
    source has cleaned up: then the next one tells where it begins.
    """

    found: dict[bytes, int | None]

    @classmethod
    def of(cls, target: Side) -> Begin:
        """That of ``target``, of which the first records are taken."""
        digests = (digest for _, digest in _records(target))
        return cls(dict.fromkeys(islice(digests, _FIRST)))

    def note(self, digest: bytes, offset: int) -> None:
        """A record of the source, in the order of offsets."""
        if digest in self.found and self.found[digest] is None:
            self.found[digest] = offset

    @property
    def known(self) -> bool:
        """Whether any of its records was found."""
        return any(at is not None for at in self.found.values())

    def source_offset(self, position: int) -> int:
        """The source offset; 0 if it is not known. ``position``: the flow's, for an empty log."""
        if not self.found:
            return position
        return next((at for at in self.found.values() if at is not None), 0)


def last_values(side: Side, seen: LastOffsets | None = None, begin: Begin | None = None) -> Values:
    """The last values in ``side``, of which all records are taken.

    ``seen`` gets the last offsets, also of keys that end with a tombstone. ``begin`` learns where
    its records are.
    """
    found: Values = {}
    for record, digest in _records(side):
        if seen is not None:
            seen[record.key] = record.offset
        if begin is not None:
            begin.note(digest, record.offset)
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
            yield decode_rest(offset, time_ms, memoryview(rest)), _record_digest(time_ms, rest)
        side.take(count)


def _record_digest(time_ms: int, rest: Buffer) -> bytes:
    return hashlib.blake2b(SIZES.pack(time_ms, len(rest)) + rest, digest_size=16).digest()


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


def drop_deleted(ours: Values, theirs: Values, first: int) -> bool:
    """Leave out of ``ours`` what the target has deleted with its oldest records.

    It has the order of the source, and begins with the record at source offset ``first``: what
    comes behind that is not deleted. Returns whether anything was left out.
    """
    deleted = [key for key, (at, _) in ours.items() if at < first and key not in theirs]
    for key in deleted:
        del ours[key]
    return bool(deleted)


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
