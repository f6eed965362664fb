"""Reads one partition from one offset to another, record by record but undecoded.

It uses the mirror's Fetch path and selection: aborted and control batches are left out, checksums
are checked, old formats are converted. It serves comparisons only; the mirror itself carries
whole batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import chain, islice
from threading import Event

from sparkmirror.errors import CorruptBatch, PartitionError, TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC_AT,
    base_offset,
    split,
)
from sparkmirror.records.records import Carried, carry
from sparkmirror.records.selection import Selection, SelectRules, select
from sparkmirror.records.walk import append_time_runs, walk_batches
from sparkmirror.settings import ClusterClient, FetchSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import FetchedPartition, Fetcher

__all__ = ["RecordStream"]

_STALLED_S = 30.0
_TICK_S = 0.5
_DAMAGED_TRIES = 3
_UNPACKED_BYTES_MAX = 64 << 20
_MAGIC = 2


class RecordStream:
    """Records of ``tp`` with ``start <= offset < end``. One owner; close it when done.

    ``settings``: its ``isolation.level`` decides whether only committed records are read.
    ``connections``: of the cluster, if the caller has some for this topic; closed with the stream.

    ``markers``: the offsets of the transaction markers that were read so far, if ``note_markers``.
    ``appended``: of the newest selection, as in `records.walk.append_time_runs`, if
    ``note_appended``.
    ``over``: another thread sets it to give up; CancelledError is raised with the next response.

    Iterating yields runs of records as `Carried`; the caller may keep their rests. Raises
    `MirrorError` when the partition cannot be read or makes no progress for 30 s.
    """

    def __init__(
        self,
        client: ClusterClient,
        settings: FetchSettings,
        tp: TopicPartition,
        start: int,
        end: int,
        connections: ClusterConnections | None = None,
        *,
        note_markers: bool = False,
        note_appended: bool = False,
        over: Event | None = None,
    ) -> None:
        self.tp = tp
        self._over = over or Event()
        self.end = end
        self.markers: set[int] = set()
        self.appended: list[tuple[int, int]] = []
        self._note_markers = note_markers
        self._note_appended = note_appended
        self._connections = connections or ClusterConnections(client, {tp.topic})
        self._fetcher = Fetcher(self._connections, replace(settings, fetch_max_wait_ms=100))
        self._fetcher.assign(tp, start)
        self._rules = SelectRules(
            check_crcs=settings.check_crcs,
            read_committed=settings.isolation_level == "read_committed",
            join_bytes=0,
            join_below_bytes=0,
        )
        self._damaged = 0

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def __iter__(self) -> Iterator[Carried]:
        for chosen in self.selections():
            yield from _carried(chosen)

    def selections(self) -> Iterator[Selection]:
        """The selection of each response, valid until the next one. Raises as iterating does."""
        stalled_at = time.monotonic() + _STALLED_S
        while self._fetcher.position(self.tp) < self.end:
            if self._over.is_set():
                raise CancelledError
            before = self._fetcher.position(self.tp)
            yield from self._round()
            if self._fetcher.position(self.tp) != before:
                stalled_at = time.monotonic() + _STALLED_S
                continue
            halt = self._fetcher.halts.get(self.tp)
            if halt is not None:
                where = f"cluster {self._connections.client.alias}"
                raise PartitionError(f"{halt.reason} ({halt.code}).", where=where)
            if time.monotonic() > stalled_at:
                raise TopicError(
                    f"reading {self.tp} at offset {before} makes no progress.",
                    where=f"cluster {self._connections.client.alias}",
                    do="Check that the brokers of this cluster are healthy.",
                )

    def _round(self) -> Iterator[Selection]:
        self._fetcher.send()
        if not self._fetcher.waiting:
            time.sleep(min(_TICK_S, max(0.01, self._fetcher.next_due_s())))
            return
        for connection in self._fetcher.ready(_TICK_S):
            for part in self._fetcher.receive(connection):
                chosen = self._select(part) if len(part.records) else None
                # A batch that was cut is fetched again, with the limit that it needs.
                if chosen is None or chosen.next_offset <= part.fetch_offset:
                    continue
                if self._note_markers:
                    self.markers.update(_markers(part.records))
                if self._note_appended:
                    self.appended = append_time_runs(part.records)
                self._fetcher.advance(part.tp, chosen.next_offset)
                yield chosen

    def _select(self, part: FetchedPartition) -> Selection | None:
        try:
            chosen = select(
                part.records, part.fetch_offset, part.aborted, self._rules, end_offset=self.end
            )
        except CorruptBatch:
            # Fetching again repairs damage that happened on the network.
            self._damaged += 1
            if self._damaged >= _DAMAGED_TRIES:
                raise
            return None
        if chosen.cut_bytes_needed:
            self._fetcher.need_bytes(part.tp, chosen.cut_bytes_needed)
        return chosen


def _markers(records: memoryview) -> Iterator[int]:
    """Offsets of the control batches; each of them has one record."""
    for start in walk_batches(records).starts[:-1]:
        if records[start + MAGIC_AT] == _MAGIC and records[start + ATTRIBUTES_AT + 1] & CONTROL_BIT:
            yield base_offset(records[start : start + HEADER_BYTES])


def _carried(chosen: Selection) -> Iterator[Carried]:
    """The selection's records with the offsets that they have in the log.

    Yields portions, because nothing else limits the unpacked size of one response.
    """
    # Re-encoded batches have consecutive offsets; the runs have those of the log.
    offsets = chain.from_iterable(range(first, first + count) for first, count in chosen.runs)
    carried = Carried()
    for piece in chosen.pieces:
        view = memoryview(piece)
        for start, end in split(view):
            if carried.unpacked_bytes > _UNPACKED_BYTES_MAX:
                yield _own(carried, offsets)
                carried = Carried()
            carry(view[start:end], carried)
    if carried.offsets:
        yield _own(carried, offsets)


def _own(carried: Carried, offsets: Iterator[int]) -> Carried:
    """Set the log's offsets and copy the rests, because the receive buffer is reused."""
    carried.offsets = list(islice(offsets, len(carried.rests)))
    carried.rests = [bytes(rest) for rest in carried.rests]
    return carried
