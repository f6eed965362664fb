"""Records of the reports of slots and planner in the control topic. Pure codecs.

A slot with at most `ROWS_MAX` partitions reports in one record. A larger one writes its partitions
in **pieces**, records of their own with at most `ROWS_MAX` rows each, and writes only those anew
that have changed (`data.write.progress`). Each piece is complete in itself, so a compacted topic
keeps all that belongs together. Readers join them with `ReportCollector`. Releases without pieces
skip them: they see the slot's totals, and no partitions.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from sparkmirror.internal_topics.codec import MALFORMED, inflated, pack, text, unpack
from sparkmirror.progress import (
    Halt,
    JoinCounts,
    PartitionProgress,
    SlotProgress,
    Spread,
    ThrottleUse,
    TransformCounts,
)

__all__ = [
    "ROWS_MAX",
    "Planned",
    "ReportCollector",
    "ReportPiece",
    "decode_halted",
    "decode_piece",
    "decode_planned",
    "decode_progress",
    "encode_piece",
    "encode_planned",
    "encode_progress",
    "record_names",
]

ROWS_MAX = 250
"""Partitions in one record of a report."""
# Reports are the traffic of the topic, and shrink to a third.
_COMPRESS_FROM_BYTES = 1024
# As many as keys can number; anybody who may write to the topic may write larger numbers.
_PIECES_MAX = 10_000
# Attempts of one slot whose pieces are kept: the newest, and zombies that still report.
_ATTEMPTS_MAX = 4
_PROGRESS_KEY = re.compile(r"(.+)/(\d{1,9})")
_PIECE_KEY = re.compile(r"(.+)/(\d{1,9})/rows/(\d{1,4})")
_HALT = b',["'
_PLANNER_KEY = re.compile(r"(.+)/planner")


@dataclass(frozen=True, slots=True)
class Planned:
    """The planner's report that no slot of an assignment older than ``version`` runs any more."""

    flow: str
    run_id: str
    version: int


@dataclass(frozen=True, slots=True)
class ReportPiece:
    """Piece ``number`` of the partitions of a slot, as an attempt of its task reports them."""

    flow: str
    slot: int
    run_id: str
    attempt: int
    number: int
    partitions: tuple[PartitionProgress, ...]


def encode_piece(piece: ReportPiece) -> tuple[bytes, bytes]:
    """Key and value of ``piece``, for partition ``PROGRESS_PARTITION``."""
    document: dict[str, object] = {
        "run_id": piece.run_id,  # first, as in `encode_progress`
        "attempt": piece.attempt,
        "partitions": _rows(piece.partitions),
    }
    key = f"{piece.flow}/{piece.slot}/rows/{piece.number}"
    return key.encode(), pack(document, _COMPRESS_FROM_BYTES)


def decode_piece(key: bytes | None, value: bytes | None) -> ReportPiece | None:
    """The piece in a record; None if it holds none."""
    match = _PIECE_KEY.fullmatch(text(key))
    document = None if match is None else unpack(value)
    if match is None or document is None:
        return None
    try:
        return ReportPiece(
            match[1],
            int(match[2]),
            str(document["run_id"]),
            int(document["attempt"]),
            int(match[3]),
            _read_rows(document["partitions"]),
        )
    except MALFORMED:
        return None


def record_names(progress: SlotProgress) -> list[str]:
    """The ends of the keys of all records that ``progress`` is in."""
    pieces = (f"{progress.slot}/rows/{number}" for number in range(progress.pieces))
    return [f"{progress.slot}", *pieces]


class ReportCollector:
    """Joins the pieces of reports as they are read from the topic.

    A slot writes the pieces before the record that counts them.
    """

    def __init__(self) -> None:
        self._pieces: dict[
            tuple[str, int], OrderedDict[tuple[str, int], dict[int, tuple[PartitionProgress, ...]]]
        ] = {}

    def add(self, piece: ReportPiece) -> None:
        """Keep ``piece`` for the reports of its attempt."""
        attempts = self._pieces.setdefault((piece.flow, piece.slot), OrderedDict())
        attempt = piece.run_id, piece.attempt
        attempts.setdefault(attempt, {})[piece.number] = piece.partitions
        attempts.move_to_end(attempt)
        while len(attempts) > _ATTEMPTS_MAX:
            attempts.popitem(last=False)

    def join(self, progress: SlotProgress) -> SlotProgress:
        """``progress`` with the partitions of its pieces, as far as these are known."""
        if not progress.pieces:
            return progress
        attempts = self._pieces.get((progress.flow, progress.slot), OrderedDict())
        known = attempts.get((progress.run_id, progress.attempt), {})
        for number in [number for number in known if number >= progress.pieces]:
            del known[number]
        rows = (row for number in sorted(known) for row in known[number])
        complete = len(known) == progress.pieces
        return replace(progress, partitions=(*progress.partitions, *rows), complete=complete)


def _rows(partitions: Iterable[PartitionProgress]) -> dict[str, list[list[object]]]:
    rows: dict[str, list[list[object]]] = {}
    for p in partitions:
        row: list[object] = [p.partition, p.position, p.timestamp_ms, p.records, p.bytes]
        halt = None
        if p.halt is not None:
            halt = [p.halt.code, p.halt.reason, p.halt.retriable, p.halt.attempt]
        tail = [halt, _spread_row(p.age_ms), _spread_row(p.latency_ms)]
        while tail and tail[-1] is None:
            tail.pop()
        row += tail
        rows.setdefault(p.topic, []).append(row)
    return rows


def _read_rows(document: Any) -> tuple[PartitionProgress, ...]:
    """The partitions in ``document``. Raises an error of `MALFORMED`."""
    return tuple(
        _partition_progress(topic, row) for topic, rows in document.items() for row in rows
    )


def encode_progress(progress: SlotProgress) -> tuple[bytes, bytes]:
    """Key and value of ``progress``, for partition ``PROGRESS_PARTITION``."""
    document: dict[str, object] = {
        # First, so that a reader finds them without decoding the rest (`decode_halted`).
        "run_id": progress.run_id,
        "attempt": progress.attempt,
        "worker": progress.worker,
        "epoch": progress.epoch,
        "time_ms": progress.time_ms,
        "records": progress.records,
        "bytes": progress.bytes,
        "batches": progress.batches,
        "latency_counts": list(progress.latency_counts),
        "latency_ms_sum": progress.latency_ms_sum,
        "errors": dict(progress.errors),
        "partitions": _rows(progress.partitions),
    }
    if progress.pieces:
        document["pieces"] = progress.pieces
    if progress.began_ms:
        document["times"] = [progress.began_ms, progress.ended_ms]
    if progress.paused:
        document["paused"] = True
    if progress.joined.batches:
        joined = progress.joined
        cpu_s = round(joined.cpu_s, 3)
        document["joined"] = [joined.batches, joined.bytes_in, joined.bytes_out, cpu_s]
    if progress.throttles:
        # No list that begins with text: only a halt has one (`decode_halted`).
        document["throttles"] = {one.topics: astuple(one)[1:] for one in progress.throttles}
    if progress.transforms:
        document["transforms"] = {
            one.transform: [
                *(one.records_in, one.records_out, one.filtered, one.failed),
                *(round(seconds, 6) for seconds in (one.unpack_s, one.sql_s, one.pack_s)),
            ]
            for one in progress.transforms
        }
    key = _progress_key(progress.flow, progress.slot)
    return key, pack(document, _COMPRESS_FROM_BYTES)


def _teller(run_id: str, attempt: int) -> bytes:
    """The first bytes of a progress record of this attempt."""
    said = json.dumps({"run_id": run_id, "attempt": attempt}, separators=(",", ":"))
    return f"{said[:-1]},".encode()


def _progress_key(flow: str, slot: int) -> bytes:
    return f"{flow}/{slot}".encode()


def decode_progress(key: bytes | None, value: bytes | None) -> SlotProgress | None:
    """The slot progress in a record; None if it holds none."""
    match = _PROGRESS_KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        began_ms, ended_ms = map(int, document.get("times", (0, 0)))
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
            run_id=str(document.get("run_id", "")),
            attempt=int(document.get("attempt", -1)),
            joined=_joined(document.get("joined", ())),
            throttles=tuple(
                ThrottleUse(str(topics), *(int(count) for count in counts[:4]))
                for topics, counts in document.get("throttles", {}).items()
            ),
            transforms=tuple(
                # Older releases report no times.
                TransformCounts(str(name), *map(int, counts[:4]), *map(float, counts[4:7]))
                for name, counts in document.get("transforms", {}).items()
            ),
            errors={str(code): int(n) for code, n in document.get("errors", {}).items()},
            partitions=_read_rows(document.get("partitions", {})),
            pieces=min(int(document.get("pieces", 0)), _PIECES_MAX),
            began_ms=began_ms,
            ended_ms=ended_ms,
        )
    except MALFORMED:
        return None


def decode_halted(
    flow: str, slot: int, attempt: tuple[str, int], key: bytes | None, value: bytes | None
) -> tuple[PartitionProgress, ...] | None:
    """The halted partitions in a record of a slot's report; None if the record is another one.

    ``attempt``: run id and number of the attempt that must have written the record. The positions
    of another attempt, or of an unknown one, are not those of this slot.

    A slot that cannot share memory with its sink reads the progress of all slots, thousands of
    partitions per second. So the record is fully decoded only if it contains a halt: the only list
    in a partition's row that begins with text.
    """
    head = _progress_key(flow, slot)
    if key != head and not (key or b"").startswith(head + b"/rows/"):
        return None
    data = inflated(value)
    if data is None or not data.startswith(_teller(*attempt)):
        return None
    if _HALT not in data:
        return ()
    progress = decode_progress(key, data) or decode_piece(key, data)
    if progress is None:
        return None
    return tuple(one for one in progress.partitions if one.halt is not None)


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


def _joined(row: Sequence[Any]) -> JoinCounts:
    if not row:
        return JoinCounts()
    batches, bytes_in, bytes_out, cpu_s = row[:4]
    return JoinCounts(int(batches), int(bytes_in), int(bytes_out), float(cpu_s))


def _spread_row(spread: Spread | None) -> list[float] | None:
    """Last, lowest, mean and highest value in ms; only the last if there are no others."""
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
    """The planner's report in a record; None for any other record."""
    match = _PLANNER_KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        return Planned(match[1], str(document["run_id"]), int(document["version"]))
    except MALFORMED:
        return None
