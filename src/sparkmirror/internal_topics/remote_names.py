"""Which remote topic comes from which topic of which cluster, where a map gives topics their names.

One compacted topic on the target with one partition, ``mm2-sparkmirror-topics.internal``, for all
mirrors that write there; it exists once a file has a map of topic names for that target. Names do
not tell then what a topic is a copy of. It says so to `MirrorClient`, and to other flows that would
give one of their topics the same name.

======  ==============================================================================
key     JSON: ``[remote topic, mirror]``; the mirror is what its own topics are named after
value   JSON: ``{"v": 1, "cluster": alias, "topic": source topic}``, with ``"past": true`` when the
        mirror no longer writes there; null forgets the row
======  ==============================================================================

A mirror writes rows of its own only. Where several have a row of one remote topic that is not past,
it belongs to the one whose row came first: the order of the log is the same for all. Versions that
do not exist yet are no rows. Pure: no sockets here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from sparkmirror.internal_topics.codec import unpack

__all__ = [
    "REMOTE_NAMES_TOPIC",
    "RemoteName",
    "collect_remote_names",
    "decode_remote_name",
    "encode_remote_name",
    "origins",
]

REMOTE_NAMES_TOPIC = "mm2-sparkmirror-topics.internal"

_VERSION = 1


@dataclass(frozen=True, slots=True)
class RemoteName:
    """``remote``, a topic of the target, is what ``mirror`` makes of ``topic`` of ``cluster``.

    ``past``: it did so once; nothing is written there any more.
    """

    remote: str
    mirror: str
    cluster: str
    topic: str
    past: bool = False


def encode_remote_name(name: RemoteName) -> tuple[bytes, bytes]:
    """Key and value of one row."""
    document: dict[str, object] = {"v": _VERSION, "cluster": name.cluster, "topic": name.topic}
    if name.past:
        document["past"] = True
    return _json([name.remote, name.mirror]), _json(document)


def decode_remote_name(key: bytes | None, value: bytes | None) -> RemoteName | None:
    """The row in a record, None when it holds none."""
    try:
        remote, mirror = json.loads(key or b"")
    except (ValueError, TypeError, RecursionError):
        return None
    document = unpack(value)
    if document is None or document.get("v") != _VERSION:
        return None
    cluster, topic = document.get("cluster"), document.get("topic")
    if not all(isinstance(one, str) and one for one in (remote, mirror, cluster, topic)):
        return None
    return RemoteName(remote, mirror, str(cluster), str(topic), document.get("past") is True)


def collect_remote_names(
    records: Iterable[tuple[bytes | None, bytes | None]],
) -> tuple[RemoteName, ...]:
    """The rows that ``records`` (key and value, oldest first) leave, in the order of the log.

    Records that are no rows are passed over, also by those before them of the same key: whoever may
    write there must not make a mirror forget its names with a line of garbage.
    """
    found: dict[bytes | None, RemoteName] = {}
    for key, value in records:
        name = decode_remote_name(key, value)
        if name is not None:
            found.pop(key, None)
            found[key] = name
        elif value is None:
            found.pop(key, None)
    return tuple(found.values())


def origins(names: Iterable[RemoteName]) -> dict[str, RemoteName]:
    """What each remote topic is a copy of: of several rows the first that is not past, else the
    last one.
    """
    found: dict[str, RemoteName] = {}
    for name in names:
        known = found.get(name.remote)
        if known is None or known.past:
            found[name.remote] = name
    return found


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
