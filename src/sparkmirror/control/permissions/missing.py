"""Permissions that a flow would miss late or in silence, told when it starts.

What a run asks for at once is refused at once, by name. These are the others: the topics of gap
records and of dead letters are written only when something was lost, the offset storage read only
while there are no positions, the names of configs have defaults, offset syncs and checkpoints must
not hold the records up, and a topic or a group that may not be seen is none.
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
from sparkmirror.model import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.acl_advice import Right, grant, spelled

_LOOKS, _LOOK_S = 4, 0.2
_OPERATIONS = ("READ", "WRITE", "DESCRIBE_CONFIGS")


def own_topics(flow: FlowSettings) -> list[str]:
    """The topics of the mirror's own that there are before the first record. Pure."""
    return [
        *internal_names(flow),
        *(offset_syncs_topic(flow), runs_topic(flow)),
    ]


def tell_lacks(
    flow: FlowSettings,
    names: Iterable[str],
    cluster_of: Callable[[ClusterClient], Cluster],
    say: Callable[[str], None],
) -> None:
    """Say which permissions on topics ``names`` lack, of those that exist. Raises `MirrorError`.

    ``cluster_of``: the connection of a client that needs some.
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
        for one in lacking(mine, held):
            right = Right(spelled(one.binding.operation), "Topic", one.binding.name)
            say(f"{flow.name}: a permission is missing ({one.why}). {grant(client, right)}")


def _rights(cluster: Cluster, names: set[str]) -> dict[str, frozenset[str] | None]:
    """`Cluster.topic_rights`; brokers take a moment to know a topic that was just made."""
    held = cluster.topic_rights(sorted(names))
    for _ in range(_LOOKS - 1):
        unknown = names - held.keys()
        if not unknown:
            break
        time.sleep(_LOOK_S)
        held |= cluster.topic_rights(sorted(unknown))
    return held


def lacking(
    needed: Iterable[Permission], held: Mapping[str, frozenset[str] | None]
) -> list[Permission]:
    """Those of ``needed``, on single topics, that ``held`` lacks. Pure.

    ``held``: operations by topic; None where the broker does not tell, then nothing lacks.
    """
    found = []
    for one in needed:
        rights = held.get(one.binding.name)
        if rights is not None and spelled(one.binding.operation) not in rights:
            found.append(one)
    return found


def tell_unseen(
    flow: FlowSettings, source: Cluster, seen: Iterable[str], say: Callable[[str], None]
) -> None:
    """Say which topics of the list, of those given by name, may not be seen. Raises `MirrorError`.

    ``seen``: the topics that were found.
    """
    named = {one.name for one in source_patterns(flow) if one.kind == "LITERAL" and one != EVERY}
    # Heartbeats are no business of who never listed them.
    missing = named - set(seen) - ({"heartbeats"} - set(flow.topics.include))
    for error in source.literal_errors(sorted(missing), operation="Read").values():
        if isinstance(error, Denied):
            say(f"{flow.name}: {error}")


def tell_unseen_groups(
    flow: FlowSettings, source: Cluster, seen: Iterable[str], say: Callable[[str], None]
) -> None:
    """The same of consumer groups. Raises `MirrorError`."""
    named = {one.name for one in group_patterns(flow) if one.kind == "LITERAL" and one != EVERY}
    for error in source.committed_by_group(sorted(named - set(seen))).values():
        if isinstance(error, Denied):
            say(f"{flow.name}: no checkpoints: {error}")
