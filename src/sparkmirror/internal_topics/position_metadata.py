"""The metadata of a committed offset: identifies the logs that a position belongs to.

An offset has a meaning only within one log. So each position has the source's cluster id, the topic
id, and the leader epoch of the last record before it (`Mark`). They distinguish a log that was
replaced, recreated or truncated from the one that was mirrored. MirrorMaker 1's group has no
metadata, because Java writes none: there the leader epoch is in the field of OffsetCommit that
consumers use for it.

The same data about the target (`TargetMark`) distinguish a remote topic that was deleted, recreated
or truncated from the one that was written. `PositionMetadata` is all of this, as a JSON object.
Unknown fields are left out. Malformed or foreign metadata is read as unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "LEADER_EPOCH_LOST",
    "Mark",
    "PositionMetadata",
    "TargetMark",
    "decode_metadata",
    "encode_metadata",
]

LEADER_EPOCH_LOST = -2
"""Of a chunk that passes records unread, or ends in a compaction hole: there, another leader epoch
may have begun than the known one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The log that an offset belongs to; empty or -1 where unknown."""

    cluster_id: str = ""
    topic_id: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TargetMark:
    """The target log that has the records before a position; empty or -1 where unknown.

    ``leader_epoch``: epoch of the leader when the log last reached ``epoch_offset`` (target
    offset). ``begin``: source offset from which the log holds the partition's records. ``seeded``:
    the position is from Connect's offset storage, which says nothing about the target. ``cut``:
    target offset from which the log was found to have lost records; the records from source offset
    ``there_first`` to ``there_end`` (exclusive) have been written since.
    """

    cluster_id: str = ""
    topic_id: str = ""
    leader_epoch: int = -1
    epoch_offset: int = -1
    begin: int = -1
    seeded: bool = False
    cut: int = -1
    there_first: int = -1
    there_end: int = -1


@dataclass(frozen=True, slots=True)
class PositionMetadata:
    """The metadata of one position; -1 where unknown.

    ``target_end``: end offset of the target's log after the last record before the position.
    ``producer_id``: with at-least-once, the producer that writes the next records. With
    exactly-once, the producer that wrote the newest committed records, with ``producer_epoch`` and
    their number ``producer_records``.
    """

    source: Mark = Mark()
    target: TargetMark = TargetMark()
    target_end: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    producer_records: int = -1

    @property
    def written(self) -> tuple[int, int, int] | None:
        """Producer id, epoch and number of the newest committed records; None if unknown."""
        known = self.producer_id, self.producer_epoch, self.producer_records
        return known if min(known) >= 0 else None


def encode_metadata(metadata: PositionMetadata) -> str:
    """The metadata string of a committed offset; empty if nothing is known."""
    document: dict[str, object] = {}
    end = {"target_offset": metadata.target_end} if metadata.target_end >= 0 else {}
    if metadata.written is not None:
        document["producer_id"] = metadata.producer_id
        document["producer_epoch"] = metadata.producer_epoch
        document["producer_records"] = metadata.producer_records
        document |= _target_fields(metadata.target) | end
    else:
        document |= end
        if end and metadata.producer_id >= 0:
            document["producer_id"] = metadata.producer_id
        document |= _target_fields(metadata.target)
    source = metadata.source
    if source.topic_id:
        document["source_topic_id"] = source.topic_id
    if source.cluster_id:
        document["source_cluster_id"] = source.cluster_id
    if source.leader_epoch >= 0:
        document["source_leader_epoch"] = source.leader_epoch
    return json.dumps(document) if document else ""


def decode_metadata(text: str) -> PositionMetadata:
    """The metadata in a committed offset's metadata string. Never raises."""
    document = _document(text)
    if not document:
        return PositionMetadata()
    return PositionMetadata(
        Mark(
            _text(document, "source_cluster_id"),
            _text(document, "source_topic_id"),
            _number(document, "source_leader_epoch"),
        ),
        _target(document),
        _number(document, "target_offset"),
        _number(document, "producer_id"),
        _number(document, "producer_epoch"),
        _number(document, "producer_records"),
    )


def _target_fields(mark: TargetMark) -> dict[str, object]:
    document: dict[str, object] = {}
    if mark.cluster_id:
        document["target_cluster_id"] = mark.cluster_id
    if mark.topic_id:
        document["target_topic_id"] = mark.topic_id
    if mark.leader_epoch >= 0 and mark.epoch_offset >= 0:
        document["target_leader_epoch"] = mark.leader_epoch
        document["target_epoch_offset"] = mark.epoch_offset
    if mark.begin >= 0:
        document["source_begin"] = mark.begin
    if mark.seeded:
        document["seeded"] = True
    if mark.cut >= 0:
        document["target_cut"] = mark.cut
    if 0 <= mark.there_first < mark.there_end:
        document["target_has"] = [mark.there_first, mark.there_end]
    return document


def _target(document: Mapping[str, object]) -> TargetMark:
    epoch, reached = (
        _number(document, "target_leader_epoch"),
        _number(document, "target_epoch_offset"),
    )
    known = epoch >= 0 and reached >= 0
    return TargetMark(
        _text(document, "target_cluster_id"),
        _text(document, "target_topic_id"),
        epoch if known else -1,
        reached if known else -1,
        _number(document, "source_begin"),
        document.get("seeded") is True,
        _number(document, "target_cut"),
        *_span(document.get("target_has")),
    )


def _span(value: object) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:
        first, end = (one if type(one) is int else -1 for one in value)
        if 0 <= first < end:
            return first, end
    return -1, -1


def _document(text: str) -> dict[str, object]:
    try:
        document = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(document: Mapping[str, object], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _number(document: Mapping[str, object], name: str) -> int:
    value = document.get(name)
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if usable else -1  # type: ignore[return-value]
