"""The headers of many records as positions in their batches: found, dropped, inserted by name.

Nothing of a header is decoded but its sizes. `record_fields.header_columns` copies names and values
into columns; here they stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparkmirror.records.encode_columns import copy_items, varint_sizes, write_varints, zigzag
from sparkmirror.records.header_columns import Int64s, words_at
from sparkmirror.records.kept import Flags
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.record_fields import Fields, chosen, gather
from sparkmirror.records.record_offsets import IrregularRecordError, read_varints
from sparkmirror.records.records import encode_headers

__all__ = ["HeaderList"]

_HEADERS_MAX = 64
"""Records with more headers are rare; there is a step for each."""
_WORD_BYTES = 8


@dataclass(slots=True)
class _Step:
    """The headers with one number in their records. ``rows``: numbers of these records.

    ``begin``, ``end``: where the whole header is. ``alive``: which were not dropped; None for all.
    """

    rows: Int64s
    name_at: Int64s
    name_bytes: Int64s
    begin: Int64s
    end: Int64s
    alive: Flags | None = None


class HeaderList:
    """The headers of all records of a portion, and what is dropped and inserted.

    ``touched``: the records whose headers have changed; None for none.
    """

    def __init__(self, found: Scan, fields: Fields, steps: list[_Step]) -> None:
        self._found = found
        self._fields = fields
        self._steps = steps
        self._inserted: list[tuple[bytes, Flags]] = []
        self.touched: Flags | None = None

    @classmethod
    def read(cls, found: Scan, fields: Fields) -> HeaderList | None:
        """None: there is a record with headers that cannot be read, or with very many of them."""
        columns = found.columns
        flat, steps = columns.flat, list[_Step]()
        rest_end = columns.rest_at + columns.rest_bytes
        try:
            counts, at = read_varints(flat, fields.headers_at)
            if not len(counts) or int(counts.min()) < 0 or int(counts.max()) > _HEADERS_MAX:
                return None
            rows = np.arange(len(counts))
            for number in range(int(counts.max())):
                if number or int(counts.min()) == 0:
                    rows = rows[counts[rows] > number]
                begin, limit = at[rows], rest_end[rows]
                name_bytes, name_at = read_varints(flat, begin)
                # Before sizes are added: a hostile one is as large as an int64.
                if not _within(name_bytes, 0, len(flat)):
                    return None
                value_bytes, value_at = read_varints(flat, name_at + name_bytes)
                if not _within(value_bytes, -1, len(flat)):
                    return None
                end = value_at + np.maximum(value_bytes, 0)
                if bool((end > limit).any()):
                    return None
                at[rows] = end
                steps.append(_Step(rows, name_at, name_bytes, begin, end))
        except IrregularRecordError:
            return None
        return cls(found, fields, steps) if np.array_equal(at, rest_end) else None

    def ascii(self) -> bool:
        """Whether all names are ASCII."""
        flat = self._found.columns.flat
        return not any(
            (gather(flat, one.name_at, one.name_bytes).data > 0x7F).any() for one in self._steps
        )

    def has(self, name: bytes) -> Flags:
        """The records that have a header with this name."""
        found = np.zeros(len(self._found.columns.offset), np.bool_)
        for one in self._steps:
            match = self._named(one, name)
            if one.alive is not None:
                match &= one.alive
            found[one.rows[match]] = True
        for other, rows in self._inserted:
            if other == name:
                found |= rows
        return found

    def drop(self, names: list[bytes], rows: Flags) -> None:
        """Drop all headers with one of ``names`` from the records ``rows``."""
        touched = self._touched()
        for one in self._steps:
            match = np.zeros(len(one.rows), np.bool_)
            for name in names:
                match |= self._named(one, name)
            match &= rows[one.rows]
            one.alive = ~match if one.alive is None else one.alive & ~match
            touched[one.rows[match]] = True
        # A record whose inserted header is dropped again is written anew all the same.
        self._inserted = [
            (name, held & ~rows if name in names else held) for name, held in self._inserted
        ]

    def insert(self, name: bytes, rows: Flags) -> None:
        """Add a header without a value behind the others."""
        self._touched()[rows] = True
        self._inserted.append((name, rows.copy()))

    def _touched(self) -> Flags:
        if self.touched is None:
            self.touched = np.zeros(len(self._found.columns.offset), np.bool_)
        return self.touched

    def _named(self, one: _Step, name: bytes) -> Flags:
        """Which headers of a step have the name."""
        match: Flags = one.name_bytes == len(name)
        if not name or not match.any():
            return match
        every = bool(match.all())
        name_at = one.name_at if every else one.name_at[match]
        words = words_at(self._found.columns.flat)
        # Words that end with the name's parts: they begin within the record, which has at least
        # seven bytes before its first name, and never behind the last one.
        same = np.ones(len(name_at), np.bool_)
        ends = [*range(len(name), 0, -_WORD_BYTES)]
        for end in ends:
            size = min(end, _WORD_BYTES)
            wanted = int.from_bytes(name[end - size : end], "little")
            got = words[name_at + (end - _WORD_BYTES)] >> np.uint64(8 * (_WORD_BYTES - size))
            same &= got == np.uint64(wanted)
        if every:
            return same
        match[match] = same
        return match

    def written(self, kept: Flags) -> Scan:
        """The records ``kept`` with the new headers."""
        old = chosen(self._found, kept)
        count, flat = len(old.columns.offset), old.columns.flat
        numbers = np.cumsum(kept) - 1  # of each kept record
        rest_at, headers_at = old.columns.rest_at, self._fields.headers_at[kept]
        rows, begin, end = self._alive(kept, numbers)
        sizes = end - begin
        inserted = [
            (np.frombuffer(encode_headers([(name, None)])[1:], np.uint8), np.flatnonzero(held))
            for name, held in ((name, flags[kept]) for name, flags in self._inserted)
        ]
        front_bytes = headers_at - rest_at
        header_counts = np.bincount(rows, minlength=count)
        held_bytes = np.bincount(rows, sizes, count).astype(np.int64)
        for _, places in inserted:
            header_counts[places] += 1
        stated = zigzag(header_counts.astype(np.int64))
        stated_bytes = varint_sizes(stated) if count else front_bytes
        rest_bytes = front_bytes + stated_bytes + held_bytes
        for data, places in inserted:
            rest_bytes[places] += len(data)
        ends = np.cumsum(rest_bytes)
        out = np.empty(int(ends[-1]) if count else 0, np.uint8)
        if count:
            at = ends - rest_bytes
            copy_items(flat, rest_at, out, at, front_bytes)
            at += front_bytes
            write_varints(out, at, stated, stated_bytes)
            at += stated_bytes
            if len(rows):
                before = np.cumsum(sizes) - sizes
                first = np.cumsum(held_bytes) - held_bytes
                copy_items(flat, begin, out, at[rows] + before - first[rows], sizes)
            at += held_bytes
            for data, places in inserted:
                if len(places):
                    none = np.zeros(len(places), np.int64)
                    copy_items(data, none, out, at[places], none + len(data))
                    at[places] += len(data)
        columns = replace(old.columns, flat=out, rest_at=ends - rest_bytes, rest_bytes=rest_bytes)
        return replace(old, columns=columns, origin=None)

    def _alive(self, kept: Flags, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Number among the kept records, begin and end of each old header, in order."""
        rows, begin, end = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for one in self._steps:
            wanted = kept[one.rows] if one.alive is None else kept[one.rows] & one.alive
            rows.append(numbers[one.rows[wanted]])
            begin.append(one.begin[wanted])
            end.append(one.end[wanted])
        joined = np.concatenate(rows)
        order = np.argsort(joined, kind="stable")
        return joined[order], np.concatenate(begin)[order], np.concatenate(end)[order]


def _within(sizes: Int64s, least: int, most: int) -> bool:
    return int(sizes.min()) >= least and int(sizes.max()) <= most
