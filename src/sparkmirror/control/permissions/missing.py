"""Reports missing permissions at start that would otherwise only fail later, or silently.

Most missing permissions fail at once. These do not: gap records and dead letters are written only
when a record is lost or refused; the offset storage topic is read only for partitions without a
position; config names fall back to defaults; failures of offset syncs and checkpoints do not stop
the records; and a topic or group that may not be described looks as if it did not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from sparkmirror.control.permissions.needed import (
    EVERY,
    Permission,
    group_patterns,
    needed_permissions,
    source_patterns,
)
from sparkmirror.control.topics.internal_topics import internal_names
from sparkmirror.errors import Denied
from sparkmirror.internal_topics.mm2_records import offset_syncs_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.acl_advice import Right, grant, spelled

_ATTEMPTS, _RETRY_PAUSE_S = 4, 0.2
_OPERATIONS = ("READ", "WRITE", "DESCRIBE_CONFIGS")


def own_topics(flow: FlowSettings) -> list[str]:
    """The internal topics that exist before the first record is mirrored. Pure."""
    return [
        *internal_names(flow),
        *(offset_syncs_topic(flow), runs_topic(flow)),
    ]


def report_missing_permissions(
    flow: FlowSettings,
    names: Iterable[str],
    cluster_of: Callable[[ClusterClient], Cluster],
    notify: Callable[[str], None],
) -> None:
    """Report missing permissions on those of the topics ``names`` that exist.

    ``cluster_of`` returns the `Cluster` of a client. Raises `MirrorError`.
    """
    wanted = set(names)
    needed = [
        one
        for one in needed_permissions(MirrorSettings((flow,), ()), lambda each: each.client_id)
        if one.binding.resource_type == "TOPIC"
        and one.binding.name in wanted
        and one.binding.operation in _OPERATIONS
    ]
    clients: list[ClusterClient] = []
    for one in needed:
        if one.client not in clients:
            clients.append(one.client)
    for client in clients:
        mine = [one for one in needed if one.client == client]
        held = _rights(cluster_of(client), {one.binding.name for one in mine})
        for one in missing_permissions(mine, held):
            right = Right(spelled(one.binding.operation), "Topic", one.binding.name)
            notify(f"{flow.name}: a permission is missing ({one.why}). {grant(client, right)}")


def _rights(cluster: Cluster, names: set[str]) -> dict[str, frozenset[str] | None]:
    """`Cluster.topic_rights`, with retries: a topic that was just created may be unknown yet."""
    held = cluster.topic_rights(sorted(names))
    for _ in range(_ATTEMPTS - 1):
        unknown = names - held.keys()
        if not unknown:
            break
        time.sleep(_RETRY_PAUSE_S)
        held |= cluster.topic_rights(sorted(unknown))
    return held


def missing_permissions(
    needed: Iterable[Permission], held: Mapping[str, frozenset[str] | None]
) -> list[Permission]:
    """Those of ``needed``, each on one topic, that are not in ``held``. Pure.

    ``held``: permitted operations by topic. None: the broker does not list them; then none is
    reported as missing.
    """
    found = []
    for one in needed:
        rights = held.get(one.binding.name)
        if rights is not None and spelled(one.binding.operation) not in rights:
            found.append(one)
    return found


def report_hidden_topics(
    flow: FlowSettings, source: Cluster, seen: Iterable[str], notify: Callable[[str], None]
) -> None:
    """Report topics that the include list names in full, but that may not be described.

    ``seen``: the topics that were found. Raises `MirrorError`.
    """
    named = {one.name for one in source_patterns(flow) if one.kind == "LITERAL" and one != EVERY}
    # The heartbeats topic counts only if the user has listed it.
    missing = named - set(seen) - ({"heartbeats"} - set(flow.topics.include))
    for error in source.literal_errors(sorted(missing), operation="Read").values():
        if isinstance(error, Denied):
            notify(f"{flow.name}: {error}")


def report_hidden_groups(
    flow: FlowSettings, source: Cluster, seen: Iterable[str], notify: Callable[[str], None]
) -> None:
    """`report_hidden_topics` for consumer groups. Raises `MirrorError`."""
    named = {one.name for one in group_patterns(flow) if one.kind == "LITERAL" and one != EVERY}
    for error in source.committed_by_group(sorted(named - set(seen))).values():
        if isinstance(error, Denied):
            notify(f"{flow.name}: no checkpoints: {error}")
