"""What a flow's principals must be allowed to do, and nothing beyond. Pure.

`needed_permissions` goes through the requests of a flow in the mode and with the features that its
file asks for. Where one operation implies another (READ, WRITE, DELETE and ALTER imply DESCRIBE;
ALTER_CONFIGS implies DESCRIBE_CONFIGS) only the stronger one is listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from sparkmirror.control.internal import offset_storage_topic
from sparkmirror.model import ClusterClient, FlowSettings, MirrorMode
from sparkmirror.policy import FlowTopics
from sparkmirror.wire.claims import transactional_id_prefix
from sparkmirror.wire.signals import control_topic
from sparkmirror.wire.views import AclBinding

__all__ = [
    "EVERY",
    "Pattern",
    "Permission",
    "needed_permissions",
    "remote_patterns",
    "source_patterns",
]

_IMPLIES = {
    ("READ", "DESCRIBE"), ("WRITE", "DESCRIBE"), ("DELETE", "DESCRIBE"), ("ALTER", "DESCRIBE"),
    ("ALTER_CONFIGS", "DESCRIBE_CONFIGS"),
}  # fmt: skip
# A whole name: letters as they are, dots escaped or not (who writes a.b means that topic).
_NAME = re.compile(r"(?:[A-Za-z0-9_-]|\\[._-]|\.(?![*+?{]))*")
_CLUSTER_NAME = "kafka-cluster"


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """Names that an ACL covers. ``kind``: ``LITERAL`` (``*`` stands for all) or ``PREFIXED``."""

    name: str
    kind: str = "LITERAL"

    def covers(self, other: Pattern) -> bool:
        """Whether every name of ``other`` is one of these."""
        if self.kind == "LITERAL":
            return self == other or self.name == "*"
        return other != EVERY and other.name.startswith(self.name)

    def meets(self, other: Pattern) -> bool:
        """Whether any name is in both."""
        return self.covers(other) or other.covers(self)


EVERY = Pattern("*")


@dataclass(frozen=True, slots=True)
class Permission:
    """One thing that ``principal`` must be allowed to do on cluster ``client.alias``, and why."""

    client: ClusterClient = field(repr=False)
    binding: AclBinding
    why: str


# --- names --------------------------------------------------------------------------------------


def source_patterns(flow: FlowSettings) -> tuple[Pattern, ...]:
    """The topics that the include list asks for, as narrow as ACLs can say it.

    ``name`` and ``prefix.*`` translate; for any other regex it is all topics.
    """
    found = {
        _pattern(part)
        for regex in flow.topics.include
        for part in ([regex] if set(regex) & set("([") else regex.split("|"))
        if part
    }
    if flow.mode is MirrorMode.MM2 and flow.topics.heartbeats_replication_enabled:
        found.add(Pattern("heartbeats"))
    return tuple(
        each for each in sorted(found) if not any(one != each and one.covers(each) for one in found)
    )


def _pattern(regex: str) -> Pattern:
    name = _NAME.match(regex)
    assert name is not None, "it also matches nothing"
    plain = name.group().replace("\\", "")
    rest = regex[name.end() :]
    if not rest:
        return Pattern(plain)
    return Pattern(plain, "PREFIXED") if rest in (".*", ".+") and plain else EVERY


def remote_patterns(flow: FlowSettings) -> tuple[Pattern, ...]:
    """The remote topics of `source_patterns`."""
    topics = FlowTopics(flow)
    renamed = topics.remote("") != ""
    found = []
    for pattern in source_patterns(flow):
        if pattern == EVERY:
            found.append(Pattern(topics.remote(""), "PREFIXED") if renamed else EVERY)
        elif pattern.kind == "PREFIXED":
            found.append(Pattern(topics.remote(pattern.name), "PREFIXED"))
        else:
            found.append(Pattern(topics.remote(pattern.name)))
    return tuple(found)


# --- needs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Need:
    """``role``: source, target, source_admin or target_admin, as in `FlowSettings`."""

    role: str
    resource_type: str
    pattern: Pattern
    operation: str
    why: str


def needed_permissions(
    flow: FlowSettings, principal: Callable[[ClusterClient], str]
) -> list[Permission]:
    """The least permissions of one flow, in the order in which they are needed.

    ``principal`` gives ``User:NAME`` of a client.
    """
    needs = [*_source_needs(flow), *_target_needs(flow), *_sync_needs(flow)]
    found: dict[tuple[str, AclBinding], Permission] = {}
    for need in needs:
        client: ClusterClient = getattr(flow, need.role)
        binding = AclBinding(
            need.resource_type,
            need.pattern.name,
            need.pattern.kind,
            principal(client),
            "*",
            need.operation,
            "ALLOW",
        )
        found.setdefault((client.alias, binding), Permission(client, binding, need.why))
    return [one for one in found.values() if not _implied(one, found.values())]


def _implied(permission: Permission, others: Iterable[Permission]) -> bool:
    """Whether another permission of the same principal already includes this one."""
    mine = permission.binding
    wanted = Pattern(mine.name, mine.pattern)
    for other in others:
        theirs = other.binding
        same = (
            other.client.alias == permission.client.alias
            and theirs.principal == mine.principal
            and theirs.resource_type == mine.resource_type
        )
        covers = Pattern(theirs.name, theirs.pattern).covers(wanted)
        stronger = (theirs.operation, mine.operation) in _IMPLIES
        wider = theirs.operation == mine.operation and (theirs.name, theirs.pattern) != (
            mine.name,
            mine.pattern,
        )
        if same and covers and (stronger or wider):
            return True
    return False


def _topic(role: str, name: str, operation: str, why: str) -> _Need:
    return _Need(role, "TOPIC", Pattern(name), operation, why)


def _source_needs(flow: FlowSettings) -> Iterator[_Need]:
    for pattern in source_patterns(flow):
        yield _Need("source", "TOPIC", pattern, "READ", "read the records")
        yield _Need("source_admin", "TOPIC", pattern, "DESCRIBE", "find topics and partitions")
        why = "create remote topics with the same configs"
        yield _Need("source_admin", "TOPIC", pattern, "DESCRIBE_CONFIGS", why)
    if flow.mode is MirrorMode.MM1:
        group = Pattern(flow.position_group)
        yield _Need("source", "GROUP", group, "READ", "keep the positions in the group")


def _target_needs(flow: FlowSettings) -> Iterator[_Need]:
    mm2 = flow.mode is MirrorMode.MM2
    for pattern in remote_patterns(flow):
        yield _Need("target", "TOPIC", pattern, "WRITE", "write the records")
        if mm2:
            why = "commit positions under the remote topics' names"
            yield _Need("target", "TOPIC", pattern, "READ", why)
        yield _Need("target_admin", "TOPIC", pattern, "CREATE", "create remote topics")
        yield _Need("target_admin", "TOPIC", pattern, "DESCRIBE", "find remote topics")
        if mm2:
            why = "add partitions when the source topic has more"
            yield _Need("target_admin", "TOPIC", pattern, "ALTER", why)
    control = control_topic(flow)
    yield _topic("target_admin", control, "CREATE", "create the control topic")
    why = "know which topic configs the cluster has"
    yield _topic("target_admin", control, "DESCRIBE_CONFIGS", why)
    yield _topic("target", control, "READ", "driver and tasks talk through the control topic")
    yield _topic("target", control, "WRITE", "driver and tasks talk through the control topic")
    if mm2:
        storage = offset_storage_topic(flow)
        yield _topic("target_admin", storage, "CREATE", "create the offset storage topic")
        yield _topic("target", storage, "READ", "take over a Java MirrorMaker's positions")
        yield _topic("target", storage, "WRITE", "keep the positions for a Java MirrorMaker")
        group = Pattern(flow.position_group)
        yield _Need("target", "GROUP", group, "READ", "keep the positions in the group")
        if flow.exactly_once:
            ids, why = Pattern(transactional_id_prefix(flow), "PREFIXED"), "exactly-once"
            yield _Need("target", "TRANSACTIONAL_ID", ids, "WRITE", why)
        why = "see whether a Java MirrorMaker still runs"
        java = Pattern(f"{flow.source.alias}-mm2")
        yield _Need("target", "GROUP", java, "DESCRIBE", why)


def _sync_needs(flow: FlowSettings) -> Iterator[_Need]:
    """What features add that are kept in step after creation; none of them in other modes."""
    if flow.mode is not MirrorMode.MM2:
        return
    if flow.topics.sync_configs_enabled:
        for pattern in remote_patterns(flow):
            yield _Need(
                "target_admin", "TOPIC", pattern, "ALTER_CONFIGS", "sync.topic.configs.enabled"
            )
    if flow.topics.sync_acls_enabled:
        cluster, why = Pattern(_CLUSTER_NAME), "sync.topic.acls.enabled"
        yield _Need("source_admin", "CLUSTER", cluster, "DESCRIBE", why)
        yield _Need("target_admin", "CLUSTER", cluster, "ALTER", why)
