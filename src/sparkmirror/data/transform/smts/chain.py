"""The single message transforms (SMTs) that apply to a topic, on the bytes of its records.

They see the headers, whether there is a value, and nothing else of a record (`names.smts`). What
they do is what their SQL does (`config.mm2.smt_sql`), which such topics need no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparkmirror.data.transform.smts.header_list import HeaderList
from sparkmirror.errors import Defect
from sparkmirror.names.smts import FILTER, by_topic
from sparkmirror.records.kept import Flags
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.record_fields import (
    Fields,
    Headers,
    chosen,
    read_headers,
    record_fields,
    taken,
    with_fields,
)
from sparkmirror.records.records import encode_headers
from sparkmirror.transform_settings import SmtSettings

__all__ = ["Chain", "Outcome"]

_Pairs = list[tuple[bytes, bytes | None]]
_UNREADABLE = "\ufffd"
# Read headers take many times the memory of their bytes.
_ROWS_READ = 256


@dataclass(slots=True)
class Outcome:
    """What a chain does to the records of a portion.

    ``kept``: those that it does not leave out. ``touched``: those whose headers it changed; None:
    it changed none. ``headers``: the new ones, as a list, or encoded for each record.
    """

    found: Scan
    kept: Flags
    touched: Flags | None = None
    headers: HeaderList | list[bytes] | None = None

    def written(self) -> Scan:
        """The kept records, with their new headers."""
        if self.touched is None or self.headers is None or not (self.touched & self.kept).any():
            return taken(self.found, self.kept)
        if isinstance(self.headers, HeaderList):
            return self.headers.written(self.kept)
        headers = [self.headers[row] for row in np.flatnonzero(self.kept).tolist()]
        return with_fields(chosen(self.found, self.kept), headers=headers)


class Chain:
    """``smts``: those that apply to a topic's records, in order, as `Passage.steps` has them."""

    def __init__(self, smts: Sequence[SmtSettings]) -> None:
        self._smts = tuple(smts)
        self._changes = any(one.kind != FILTER for one in smts)
        by_header = [one for one in smts if one.predicate == "HasHeaderKey"]
        self._reads = self._changes or bool(by_header)
        # Bytes that are no UTF-8 become this character, in Java too, and then names can be equal.
        self._decodes = any(_UNREADABLE in one.argument for one in by_header)

    def outcome(self, found: Scan) -> Outcome:
        """What becomes of the records. Raises CorruptBatch."""
        fields = record_fields(found)
        headers = None
        if self._reads:
            headers = None if self._decodes else HeaderList.read(found, fields)
            if headers is None or (self._changes and not headers.ascii()):
                return self._one_by_one(found, fields)
        tombstones: Flags = fields.value_bytes < 0
        kept = np.ones(len(found.columns.offset), np.bool_)
        for one in self._smts:
            if by_topic(one):
                applies = np.ones(len(kept), np.bool_)
            elif one.predicate == "RecordIsTombstone":
                applies = tombstones ^ one.negate
            elif headers is not None:
                applies = headers.has(one.argument.encode()) ^ one.negate
            else:
                raise Defect(f"the headers for {one.name} were not read")
            if one.kind == FILTER:
                kept &= ~applies
            elif headers is None:
                raise Defect(f"the headers for {one.name} were not read")
            elif one.kind == "DropHeaders":
                headers.drop([name.encode() for name in one.headers], applies)
            elif one.kind == "InsertHeader":
                headers.insert(one.headers[0].encode(), applies)
            else:
                raise Defect(f"{one.kind} needs SQL")
        touched = None if headers is None else headers.touched
        return Outcome(found, kept, touched, None if touched is None else headers)

    def _one_by_one(self, found: Scan, fields: Fields) -> Outcome:
        """For records with unusual headers. Headers that cannot be read count as none.

        Names go through text, as in Java: bytes that are no UTF-8 are not kept.
        """
        count = len(found.columns.offset)
        tombstones = (fields.value_bytes < 0).tolist()
        kept, encoded = np.ones(count, np.bool_), []
        for row, read in enumerate(_headers(found, fields)):
            headers: _Pairs = [
                (name.decode("utf-8", "replace").encode(), value) for name, value in read or ()
            ]
            for one in self._smts:
                if not by_topic(one):
                    if one.predicate == "RecordIsTombstone":
                        true = tombstones[row]
                    else:
                        true = any(name == one.argument.encode() for name, _ in headers)
                    if true is one.negate:
                        continue
                if one.kind == FILTER:
                    kept[row] = False
                elif one.kind == "DropHeaders":
                    names = [name.encode() for name in one.headers]
                    headers = [pair for pair in headers if pair[0] not in names]
                elif one.kind == "InsertHeader":
                    headers.append((one.headers[0].encode(), None))
                else:
                    raise Defect(f"{one.kind} needs SQL")
            encoded.append(encode_headers(headers))
        if not self._changes:
            return Outcome(found, kept)
        return Outcome(found, kept, np.ones(count, np.bool_), encoded)


def _headers(found: Scan, fields: Fields) -> Iterator[Headers | None]:
    """As `read_headers`, for all records, few of them at a time."""
    count = len(found.columns.offset)
    for first in range(0, count, _ROWS_READ):
        yield from read_headers(found, fields, first, min(first + _ROWS_READ, count))
