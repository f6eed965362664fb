"""What a position says beside its offset: the identity of the log that the offset is in.

An offset means something only within one log. So each position carries, in the committed offset's
metadata, the source's cluster id, the topic's id, and the leader epoch of the last record before
it. With them a later look tells a log that was replaced, made anew or truncated from the one that
was mirrored. MirrorMaker 1's group has no metadata, as Java writes none: there the leader epoch
stands in the committed offset's own field, as consumers keep it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Mark", "decode_mark", "encode_mark"]


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
    try:
        document = json.loads(metadata) if metadata else {}
    except (ValueError, RecursionError):
        return Mark()
    if not isinstance(document, dict):
        return Mark()
    cluster_id, topic_id = (document.get(name) for name in ("source_cluster_id", "source_topic_id"))
    epoch = document.get("source_leader_epoch")
    return Mark(
        cluster_id if isinstance(cluster_id, str) else "",
        topic_id if isinstance(topic_id, str) else "",
        epoch if isinstance(epoch, int) and not isinstance(epoch, bool) and epoch >= 0 else -1,
    )
