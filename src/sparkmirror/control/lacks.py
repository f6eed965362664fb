"""Permissions that a flow would miss late or in silence, told when it starts.

What a run asks for at once is refused at once, by name. These are the others: the topic of gap
records is written only when something was lost, the offset storage read only while there are no
positions, the names of configs have defaults, and a topic that may not be seen is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from sparkmirror.control.internal import offset_storage_topic
from sparkmirror.control.permissions import EVERY, Permission, needed_permissions, source_patterns
from sparkmirror.errors import Denied
from sparkmirror.model import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.gaps import gaps_topic
from sparkmirror.wire.grants import Right, grant, spelled
from sparkmirror.wire.signals import control_topic

__all__ = ["lacking", "tell_lacks", "tell_unseen"]

_OPERATIONS = ("READ", "WRITE", "DESCRIBE_CONFIGS")


def tell_lacks(
    flow: FlowSettings, target: Cluster, target_admin: Cluster, say: Callable[[str], None]
) -> None:
    """Say which permissions on the mirror's own topics lack. Raises `MirrorError`."""
    names = [control_topic(flow), gaps_topic(flow), offset_storage_topic(flow)]
    asked = [(target, flow.target)]
    if flow.target_admin != flow.target:
        asked.append((target_admin, flow.target_admin))
    for cluster, client in asked:
        needed = list(_needed(flow, client, names))
        held = cluster.topic_rights(sorted({one.binding.name for one in needed}))
        for one in lacking(needed, held):
            right = Right(spelled(one.binding.operation), "Topic", one.binding.name)
            say(f"{flow.name}: a permission is missing ({one.why}). {grant(client, right)}")


def _needed(
    flow: FlowSettings, client: ClusterClient, names: Iterable[str]
) -> Iterator[Permission]:
    for one in needed_permissions(MirrorSettings((flow,), ()), lambda each: each.client_id):
        binding = one.binding
        mine = one.client == client and binding.resource_type == "TOPIC"
        if mine and binding.name in names and binding.operation in _OPERATIONS:
            yield one


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
