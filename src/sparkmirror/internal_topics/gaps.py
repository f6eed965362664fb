"""Gap records: source offsets that did not reach the target unchanged. They are kept for good.

The target has one compacted topic per source, ``mm2-sparkmirror-gaps.<source>.internal``, with one
partition. Each gap has one key, however often it is found, so a restart adds no second record.

======  ==============================================================================
key     JSON: ``[flow, topic, partition, kind, first offset]``; if a map named the remote topic,
        also the name of the remote topic
value   JSON: the fields of `Gap`; ``null`` for an unknown offset or number
======  ==============================================================================

The codecs are pure, and return None for any other record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparkmirror.internal_topics.commands import topic_beside
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings

__all__ = [
    "DEAD_LETTERED",
    "GAPS_PARTITIONS",
    "GAP_CODES",
    "LOSS_CODES",
    "SKIPPED",
    "TARGET_LOSS_CODES",
    "Gap",
    "GapAction",
    "GapKind",
    "collect_gaps",
    "decode_gap",
    "encode_gap",
    "gap_document",
    "gaps_topic",
    "read_document",
]

GAPS_PARTITIONS = 1

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


class GapKind(StrEnum):
    """Cause of a gap.

    ``DELETED``: retention or DeleteRecords deleted records at the position. ``RECREATED``: the
    topic was deleted and recreated. ``TRUNCATED``: an unclean leader election truncated records
    that had been mirrored. ``REPLACED``: another cluster is at the source's addresses, or a
    backup of it was restored. ``REFUSED``: the target rejects the record. ``TARGET_…``: the same at
    the target, for records that it had acknowledged.
    """

    DELETED = "deleted"
    RECREATED = "recreated"
    TRUNCATED = "truncated"
    REPLACED = "cluster-replaced"
    REFUSED = "refused"
    TARGET_TRUNCATED = "target-truncated"
    TARGET_RECREATED = "target-recreated"
    TARGET_REPLACED = "target-replaced"


LOSS_CODES = {
    GapKind.DELETED: "OFFSETS_DELETED",
    GapKind.RECREATED: "TOPIC_RECREATED",
    GapKind.TRUNCATED: "LOG_TRUNCATED",
    GapKind.REPLACED: "CLUSTER_REPLACED",
}
"""Codes of losses at the source, in metrics, errors and halts."""
TARGET_LOSS_CODES = {
    GapKind.TARGET_TRUNCATED: "TARGET_TRUNCATED",
    GapKind.TARGET_RECREATED: "TARGET_RECREATED",
    GapKind.TARGET_REPLACED: "TARGET_REPLACED",
}
"""Codes of losses at the target."""
SKIPPED, DEAD_LETTERED = "RECORD_SKIPPED", "RECORD_DEAD_LETTERED"
GAP_CODES = frozenset({*LOSS_CODES.values(), *TARGET_LOSS_CODES.values(), SKIPPED, DEAD_LETTERED})


class GapAction(StrEnum):
    """What the mirror did. ``REPAIRED``: it mirrors the records again, from ``resumed_at`` on."""

    STOPPED = "stopped"
    CONTINUED = "continued"
    SKIPPED = "skipped"
    DEAD_LETTER = "dead-letter"
    REPAIRED = "repaired"


@dataclass(frozen=True, slots=True)
class Gap:
    """Source offsets ``first`` to ``last`` (inclusive) of one partition, ``count`` in number.

    ``resumed_at``: source offset at which the mirror continued; None if it did not. ``last`` and
    ``count`` are None if unknown. ``code``: as in errors and metrics. ``time_ms``: epoch ms.
    """

    flow: str
    source: TopicPartition
    remote_topic: str
    kind: GapKind
    action: GapAction
    first: int
    last: int | None
    count: int | None
    resumed_at: int | None
    code: str
    reason: str
    time_ms: int


def gaps_topic(flow: FlowSettings) -> str:
    """Name of the topic of gap records of ``flow``, on its target cluster."""
    return topic_beside(flow, "gaps")


def gap_document(gap: Gap) -> dict[str, Any]:
    """``gap`` as a JSON object."""
    return {
        "flow": gap.flow,
        "topic": gap.source.topic,
        "partition": gap.source.partition,
        "remote_topic": gap.remote_topic,
        "kind": gap.kind.value,
        "action": gap.action.value,
        "first_offset": gap.first,
        "last_offset": gap.last,
        "count": gap.count,
        "resumed_at": gap.resumed_at,
        "code": gap.code,
        "reason": gap.reason,
        "time_ms": gap.time_ms,
    }


def read_document(document: Mapping[str, Any]) -> Gap:
    """The gap in a `gap_document`. Raises ``KeyError``, ``ValueError`` or similar for others."""
    return Gap(
        flow=str(document["flow"]),
        source=TopicPartition(str(document["topic"]), int(document["partition"])),
        remote_topic=str(document["remote_topic"]),
        kind=GapKind(document["kind"]),
        action=GapAction(document["action"]),
        first=int(document["first_offset"]),
        last=_number(document["last_offset"]),
        count=_number(document["count"]),
        resumed_at=_number(document["resumed_at"]),
        code=str(document["code"]),
        reason=str(document["reason"]),
        time_ms=int(document["time_ms"]),
    )


def encode_gap(gap: Gap, *, mapped: bool = False) -> tuple[bytes, bytes]:
    """Key and value of ``gap``.

    ``mapped``: a map of topic names named the remote topic. A copy of the topic under another name
    may have the same gap.
    """
    key = [gap.flow, gap.source.topic, gap.source.partition, gap.kind.value, gap.first]
    return _json([*key, gap.remote_topic] if mapped else key), _json(gap_document(gap))


def decode_gap(value: bytes | None) -> Gap | None:
    """The gap in a record's value; None if it holds none."""
    try:
        return read_document(json.loads(value or b""))
    except (*_MALFORMED, RecursionError):
        return None


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def collect_gaps(records: Iterable[tuple[bytes | None, bytes | None]]) -> list[Gap]:
    """The newest gap of each key in ``records`` (key and value, oldest first), by time.

    Keys whose last record is a tombstone are left out.
    """
    newest: dict[bytes | None, Gap] = {}
    for key, value in records:
        gap = decode_gap(value)
        if gap is not None:
            newest[key] = gap
        elif value is None:
            newest.pop(key, None)
    return sorted(
        newest.values(), key=lambda gap: (gap.time_ms, gap.flow, gap.source, gap.kind, gap.first)
    )
