r"""The topic of exact runs: where source offsets went, record by record.

``mm2-sparkmirror-runs.<source>.internal`` on the target, compacted, one partition. MirrorMaker 2's
offset syncs hold single points, too few to translate every offset; these rows hold the whole
mapping. They have a topic of their own because Java's readers take every record of an offset-syncs
or checkpoints topic for one of theirs, and a bad one ends their translation; the name falls under
MirrorMaker 2's ``mm2.*\.internal``, so no mirror carries it on and no client takes it for data.

===============================================  ==================================================
key (JSON)                                       value (JSON)
===============================================  ==================================================
``[topic, partition, source offset, topic id]``  ``[target offset, records]``; null forgets the row
===============================================  ==================================================

A topic that a map of topic names has named has a fifth element, its name at the target: under
another name it is another copy, with offsets of its own. The topic id is empty there where brokers
have none.

The topic id is the source topic's, and is left out where brokers have none: a topic that is deleted
and made anew has the same offsets again, and they mean other records.

A run that is not merged may tell in which log of the target it is: a third element 0 and a fourth
one, the id of the remote topic.

A run that grows is written again under its key, and a later row takes precedence where two overlap
(`sparkmirror.internal_topics.run_map`). The driver writes several old rows anew as one, with a
third element 1: such a row is *merged* and stands for knowledge older than any other row's,
wherever it is in the log. Pure: no sockets here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sparkmirror.internal_topics.run_map import Run
from sparkmirror.model import FlowSettings, TopicPartition

__all__ = ["RunRow", "decode_run", "encode_forgotten_run", "encode_run", "runs_topic"]

_OFFSET_MAX = 2**63 - 1


def runs_topic(flow: FlowSettings) -> str:
    """Name of the topic, on the target of ``flow``; always with dots, like the control topic's."""
    return f"mm2-sparkmirror-runs.{flow.source.alias}.internal"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row; ``run`` None forgets what was written under its key.

    ``topic_id``: which topic of that name it is about; ``target_id``: which remote topic it is in.
    Both are empty where that is not known. ``remote``: the name that a map gave the topic, empty
    where the policy named it.
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
    """Key and value that forget the run from source offset ``start``."""
    return _key(source, start, topic_id, remote), None


def decode_run(key: bytes | None, value: bytes | None) -> RunRow | None:
    """The row in a record, None when it holds none."""
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
