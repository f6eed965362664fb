r"""The topic of runs: the exact mapping of source offsets to target offsets.

``mm2-sparkmirror-runs.<source>.internal`` on the target, compacted, one partition. MirrorMaker 2's
offset syncs are single points, too few to translate every offset; the rows of this topic are the
whole mapping. It is a separate topic because Java reads every record of an offset-syncs or
checkpoints topic as its own, and a malformed record ends its translation. MirrorMaker 2's exclude
``mm2.*\.internal`` matches the name, so no mirror replicates it and no client takes it for data.

===============================================  ==================================================
key (JSON)                                       value (JSON)
===============================================  ==================================================
``[topic, partition, source offset, topic id]``  ``[target offset, records]``; null deletes the row
===============================================  ==================================================

The topic id is that of the source topic; it is left out if the brokers have none. It is needed
because a recreated topic has the same offsets for other records.

If a map named the topic, the key has a fifth element: the name on the target. A copy under another
name has other offsets. The topic id is then empty if the brokers have none.

The value of a row that is not merged may have two more elements: 0, and the id of the remote topic.

A run that grows is written again under its key. Where two rows overlap, the later one takes
precedence (`sparkmirror.internal_topics.run_map`). The driver replaces several old rows by one with
the third element 1: a *merged* row. It counts as older than any row that is not merged, wherever it
is in the log. Pure: no sockets here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sparkmirror.internal_topics.run_map import Run
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings

__all__ = ["RunRow", "decode_run", "encode_forgotten_run", "encode_run", "runs_topic"]

_OFFSET_MAX = 2**63 - 1


def runs_topic(flow: FlowSettings) -> str:
    """Name of the topic of runs, on the target of ``flow``; it has dots, as the control topic's."""
    return f"mm2-sparkmirror-runs.{flow.source.alias}.internal"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row. ``start``: source offset in its key. ``run`` None: the row is deleted.

    ``topic_id``: id of the source topic. ``target_id``: id of the remote topic. Both are empty if
    unknown. ``remote``: the name that a map gave the topic; empty if the policy named it.
    """

    source: TopicPartition
    start: int
    run: Run | None
    merged: bool = False
    topic_id: str = ""
    target_id: str = ""
    remote: str = ""


def encode_run(
    source: TopicPartition,
    run: Run,
    *,
    merged: bool = False,
    topic_id: str = "",
    target_id: str = "",
    remote: str = "",
) -> tuple[bytes, bytes]:
    """Key and value of one run."""
    value: list[object] = [run.target, run.length]
    if merged:
        value.append(1)
    elif target_id:
        value += [0, target_id]
    return _key(source, run.source, topic_id, remote), _pack(value)


def encode_forgotten_run(
    source: TopicPartition, start: int, *, topic_id: str = "", remote: str = ""
) -> tuple[bytes, None]:
    """Key and tombstone that delete the row of source offset ``start``."""
    return _key(source, start, topic_id, remote), None


def decode_run(key: bytes | None, value: bytes | None) -> RunRow | None:
    """The row in a record; None if it holds none."""
    try:
        topic, partition, start, *rest = json.loads(key or b"")
        topic_id, remote = "".join(rest[:1]), "".join(rest[1:2])
        if len(rest) > 2:
            return None
        if not isinstance(topic, str) or not (_is_offset(partition) and _is_offset(start)):
            return None
        source = TopicPartition(topic, partition)
        if value is None:
            return RunRow(source, start, None, topic_id=topic_id, remote=remote)
        target, length, *rest = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return None
    if not (_is_offset(target) and _is_offset(length)) or not length:
        return None
    target_id = rest[1] if len(rest) > 1 and isinstance(rest[1], str) else ""
    run = Run(start, target, length)
    return RunRow(source, start, run, rest[:1] == [1], topic_id, target_id, remote)


def _key(source: TopicPartition, start: int, topic_id: str, remote: str) -> bytes:
    key: list[object] = [source.topic, source.partition, start]
    if remote:
        return _pack([*key, topic_id, remote])
    return _pack([*key, topic_id] if topic_id else key)


def _pack(document: Sequence[object]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _OFFSET_MAX
