"""Records which source topic each remote topic comes from, if a map gives the names.

The target has one compacted topic with one partition, ``mm2-sparkmirror-topics.internal``, for all
mirrors that write there. It exists if a file has a map of topic names for that target: then names
do not show where a remote topic comes from. `MirrorClient` reads it, and so do other flows that
would give one of their topics the same name.

======  ==============================================================================
key     JSON: ``[remote topic, mirror]``; for mirror see `FlowSettings.mirror`
value   JSON: ``{"v": 1, "cluster": alias, "topic": source topic}``, with ``"past": true`` if the
        mirror no longer writes there; null deletes the row
======  ==============================================================================

A mirror writes only its own rows. If several mirrors have a row of one remote topic that is not
past, the topic belongs to the mirror whose row came first: all read the log in the same order. Rows
of unknown versions are ignored. Pure: no sockets here.
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
    """``mirror`` writes ``topic`` of ``cluster`` to the remote topic ``remote``.

    ``past``: the mirror wrote it in the past and no longer does.
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
    """The row in a record; None if it holds none."""
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
    """The newest rows of ``records`` (key and value, oldest first), in log order.

    Malformed records are ignored and do not replace earlier rows of the same key: a malformed
    record must not make a mirror forget its names.
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
    """The row of each remote topic: the first one that is not past, else the last one."""
    found: dict[str, RemoteName] = {}
    for name in names:
        known = found.get(name.remote)
        if known is None or known.past:
            found[name.remote] = name
    return found


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
