"""What a position says beside its offset: the identity of the logs on both sides of it.

An offset means something only within one log. So each position carries, in the committed offset's
metadata, the source's cluster id, the topic's id, and the leader epoch of the last record before
it. With them a later look tells a log that was replaced, made anew or truncated from the one that
was mirrored. MirrorMaker 1's group has no metadata, as Java writes none: there the leader epoch
stands in the committed offset's own field, as consumers keep it.

The same is kept of the target (`TargetMark`), so that a remote topic that was deleted, made anew or
truncated is told from the one that was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Mark", "TargetMark", "decode_mark", "decode_target", "encode_mark", "target_fields"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Which log an offset is in; an empty text or -1 where that is not known."""

    cluster_id: str = ""
    topic_id: str = ""
    leader_epoch: int = -1


def encode_mark(mark: Mark, more: Mapping[str, object] | None = None) -> str:
    """``mark`` as a committed offset's metadata, empty when nothing is known; with ``more``."""
    document: dict[str, object] = dict(more or {})
    if mark.topic_id:
        document["source_topic_id"] = mark.topic_id
    if mark.cluster_id:
        document["source_cluster_id"] = mark.cluster_id
    if mark.leader_epoch >= 0:
        document["source_leader_epoch"] = mark.leader_epoch
    return json.dumps(document) if document else ""


def decode_mark(metadata: str) -> Mark:
    """What a committed offset's metadata says; nothing where it is not ours or damaged."""
    document = _document(metadata)
    return Mark(
        _text(document, "source_cluster_id"),
        _text(document, "source_topic_id"),
        _number(document, "source_leader_epoch"),
    )


@dataclass(frozen=True, slots=True)
class TargetMark:
    """Which log of the target the records before a position are in; "" or -1 where not known.

    ``leader_epoch``: the leader's when the log was last seen to reach ``epoch_offset`` (target
    offset). ``begin``: the source offset from which on that log holds the partition's records.
    ``seeded``: the position is Connect's, which says nothing about the target. ``cut``: the log was
    seen to have lost what stood from that target offset on; ``there_first`` to ``there_end``
    (source offsets, exclusive) were written to it since.
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


def target_fields(mark: TargetMark) -> dict[str, object]:
    """What the metadata holds of ``mark``; unknown things are left out."""
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


def decode_target(metadata: str) -> TargetMark:
    """What a committed offset's metadata says of the target; nothing where it is not ours."""
    document = _document(metadata)
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


def _document(metadata: str) -> dict[str, object]:
    try:
        document = json.loads(metadata) if metadata else {}
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
