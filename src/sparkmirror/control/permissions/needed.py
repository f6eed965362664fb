"""The permissions that a flow's principals need, and no others. Pure.

`needed_permissions` goes through the requests that a flow sends in its mode, with the features that
are switched on in its file. If one operation implies another (READ, WRITE, DELETE and ALTER imply
DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS), only the stronger one is listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sparkmirror.control.coordination.orders_topic import orders_topic
from sparkmirror.control.topics.internal_topics import internal_names, offset_storage_topic
from sparkmirror.errors import Defect
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.internal_topics.flow_claims import transactional_id_prefix
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.internal_topics.mm2_records import checkpoints_topic, offset_syncs_topic
from sparkmirror.internal_topics.remote_names import REMOTE_NAMES_TOPIC
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import MirrorMode
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.names.replication_policy import (
    OWN_TOPICS,
    FlowTopics,
    TopicFilter,
    dead_letter_topic,
)
from sparkmirror.names.smts import ROUTER, TIME_ROUTER
from sparkmirror.names.topics_map import parse_name
from sparkmirror.names.transforms import constant_topic
from sparkmirror.settings import (
    ClusterClient,
    FlowSettings,
    HeartbeatSettings,
    MirrorSettings,
    TopicRule,
)
from sparkmirror.transform_settings import SmtSettings
from sparkmirror.wire.cluster.views import AclBinding

__all__ = [
    "EVERY",
    "Pattern",
    "Permission",
    "group_patterns",
    "needed_permissions",
    "remote_names",
    "remote_patterns",
    "source_patterns",
]

_IMPLIES = {
    ("READ", "DESCRIBE"), ("WRITE", "DESCRIBE"), ("DELETE", "DESCRIBE"), ("ALTER", "DESCRIBE"),
    ("ALTER_CONFIGS", "DESCRIBE_CONFIGS"),
}  # fmt: skip
# A regex that is a topic name. An unescaped dot counts as a dot: users who write a.b mean that.
_NAME = re.compile(r"(?:[A-Za-z0-9_-]|\\[._-]|\.(?![*+?{]))*")


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """Names that an ACL covers. ``kind``: ``LITERAL`` (``*`` means all) or ``PREFIXED``."""

    name: str
    kind: str = "LITERAL"

    def covers(self, other: Pattern) -> bool:
        """Whether this pattern covers every name that ``other`` covers."""
        if self.kind == "LITERAL":
            return self == other or self.name == "*"
        return other != EVERY and other.name.startswith(self.name)

    def meets(self, other: Pattern) -> bool:
        """Whether the patterns overlap."""
        return self.covers(other) or other.covers(self)


EVERY = Pattern("*")
CLUSTER = Pattern("kafka-cluster")


@dataclass(frozen=True, slots=True)
class Permission:
    """One ACL that ``binding.principal`` needs on cluster ``client.alias``, and the reason."""

    client: ClusterClient = field(repr=False)
    binding: AclBinding
    why: str


# --- names --------------------------------------------------------------------------------------


def source_patterns(flow: FlowSettings) -> tuple[Pattern, ...]:
    """The topics of the include list, as narrow as ACL patterns can be.

    A plain name becomes a literal pattern, ``prefix.*`` and ``prefix.+`` a prefix; any other regex
    becomes all topics.
    """
    more = (
        [Pattern("heartbeats")]
        if flow.mode is MirrorMode.MM2 and flow.topics.heartbeats_replication_enabled
        else []
    )
    return _patterns(flow.topics.include, more)


def group_patterns(flow: FlowSettings) -> tuple[Pattern, ...]:
    """The groups of the include list for checkpoints, as `source_patterns` does it for topics."""
    return _patterns(flow.checkpoints.include)


def _patterns(include: Iterable[str], more: Iterable[Pattern] = ()) -> tuple[Pattern, ...]:
    """ACL patterns for a list of regexes, without patterns that another one covers."""
    found = {
        _pattern(part)
        for regex in include
        for part in ([regex] if set(regex) & set("([") else regex.split("|"))
        if part
    }
    found |= set(more)
    return tuple(
        each for each in sorted(found) if not any(one != each and one.covers(each) for one in found)
    )


def _pattern(regex: str) -> Pattern:
    name = _NAME.match(regex)
    if name is None:
        raise Defect("a pattern that matches nothing, too")
    plain = name.group().replace("\\", "")
    rest = regex[name.end() :]
    if not rest:
        return Pattern(plain)
    return Pattern(plain, "PREFIXED") if rest in (".*", ".+") and plain else EVERY


def remote_patterns(flow: FlowSettings) -> tuple[Pattern, ...]:
    """The remote topics of `source_patterns`, as patterns."""
    topics = FlowTopics(flow)
    by_policy = FlowTopics(replace(flow, topics=replace(flow.topics, map=(), smts=())))
    renamed = by_policy.remote("") != ""
    found: list[Pattern] = []
    for pattern in source_patterns(flow):
        if pattern.kind == "LITERAL" and pattern != EVERY:
            found.append(Pattern(topics.remote(pattern.name)))
            continue
        if pattern == EVERY:
            found.append(Pattern(by_policy.remote(""), "PREFIXED") if renamed else EVERY)
        else:
            found.append(Pattern(by_policy.remote(pattern.name), "PREFIXED"))
        found += map(_mapped_pattern, flow.topics.map)
        found += _routed_patterns(flow.topics.smts)
    return tuple(
        each
        for each in dict.fromkeys(found)
        if not any(one != each and one.covers(each) for one in found)
    )


def remote_names(flow: FlowSettings) -> Callable[[str], bool]:
    """A test of topic names on the target: whether a lock is to cover a topic of this name.

    Not if the exclude list leaves out its source topic, and it is none of the mirror's own. Under a
    map or a RegexRouter names do not show where they come from.
    """
    if flow.topics.renamed:
        return lambda _: True
    topics, excluded = FlowTopics(flow), TopicFilter(flow.topics.exclude)
    prefix = topics.policy.format_remote_topic(flow.source.alias, "")
    own = {*internal_names(flow), offset_syncs_topic(flow), checkpoints_topic(flow)}
    letters = dead_letter_topic("") if _may_dead_letter(flow) else ""

    def is_remote(name: str) -> bool:
        # The default exclude list has the mirror's own topics, too.
        if name in own or OWN_TOPICS.fullmatch(name) or topics.policy.is_mm2_internal_topic(name):
            return True
        upstream = (upstream for _, upstream in topics.policy.readings(name))
        sources = {name, name.removeprefix(prefix), *upstream}
        sources = {each for each in sources if topics.remote(each) == name}
        if any(map(topics.accepts, sources)) or not any(map(excluded.accepts, sources)):
            return True
        return bool(letters) and name.endswith(letters) and is_remote(name.removesuffix(letters))

    return is_remote


def _routed_patterns(smts: Sequence[SmtSettings]) -> list[Pattern]:
    routers = [one for one in smts if one.kind == ROUTER]
    if len(routers) > 1:
        return [EVERY]  # the second one may change what the first one gave
    found = [_mapped_pattern(TopicRule(one.regex, one.replacement)) for one in routers]
    # A part of the old name may follow (`names.smts`).
    return [each if each == EVERY else Pattern(each.name, "PREFIXED") for each in found]


def _time_patterns(flow: FlowSettings) -> Iterator[Pattern]:
    """The topics that TimestampRouter names."""
    for one in flow.topics.smts:
        head = one.topic_format.partition("$")[0]
        if one.kind != TIME_ROUTER:
            continue
        if head:
            yield Pattern(head, "PREFIXED")
        elif one.topic_format.startswith("${topic}"):
            for each in remote_patterns(flow):
                yield each if each == EVERY else Pattern(each.name, "PREFIXED")
        else:
            yield EVERY


def _mapped_pattern(rule: TopicRule) -> Pattern:
    """The narrowest pattern for the names that a rule gives."""
    pattern = compile_regex(rule.regex)
    head, *rest = parse_name(rule.name, pattern.groups, pattern.groupindex)
    if not isinstance(head, str):
        return EVERY
    return Pattern(head, "PREFIXED") if rest else Pattern(head)


# --- needs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Need:
    """A permission before its principal is known. ``client`` sends the requests."""

    client: ClusterClient
    resource_type: str
    pattern: Pattern
    operation: str
    why: str


def needed_permissions(
    settings: MirrorSettings, principal: Callable[[ClusterClient], str]
) -> list[Permission]:
    """The least permissions for all flows and heartbeats, each once.

    ``principal`` returns the principal (``User:NAME``) of a client.
    """
    needs = [need for flow in settings.flows for need in _flow_needs(flow)]
    needs += [need for beats in settings.heartbeats for need in _heartbeat_needs(beats)]
    found: dict[tuple[str, AclBinding], Permission] = {}
    for need in needs:
        binding = AclBinding(
            need.resource_type,
            need.pattern.name,
            need.pattern.kind,
            principal(need.client),
            "*",
            need.operation,
            "ALLOW",
        )
        alias = need.client.alias
        found.setdefault((alias, binding), Permission(need.client, binding, need.why))
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
        covering = Pattern(theirs.name, theirs.pattern)
        stronger = (theirs.operation, mine.operation) in _IMPLIES
        wider = theirs.operation == mine.operation and covering != wanted
        if same and covering.covers(wanted) and (stronger or wider):
            return True
    return False


def _flow_needs(flow: FlowSettings) -> Iterator[_Need]:
    yield from _source_needs(flow)
    yield from _target_needs(flow)
    if flow.mode is MirrorMode.MM2:
        yield from _sync_needs(flow)
        if flow.offset_syncs.enabled:
            yield from _offset_sync_needs(flow)
        if flow.checkpoints.enabled:
            yield from _checkpoint_needs(flow)


def _topic(client: ClusterClient, name: str, operation: str, why: str) -> _Need:
    return _Need(client, "TOPIC", Pattern(name), operation, why)


def _created(admin: ClusterClient, name: str, why: str) -> Iterator[_Need]:
    """Needs for an internal topic that each start creates if it does not see it."""
    yield _topic(admin, name, "CREATE", why)
    yield _topic(admin, name, "DESCRIBE", why)


def _source_needs(flow: FlowSettings) -> Iterator[_Need]:
    for pattern in source_patterns(flow):
        yield _Need(flow.source, "TOPIC", pattern, "READ", "read the records")
        why = "find topics and partitions"
        yield _Need(flow.source_admin, "TOPIC", pattern, "DESCRIBE", why)
        why = "create remote topics with the same configs"
        yield _Need(flow.source_admin, "TOPIC", pattern, "DESCRIBE_CONFIGS", why)
    if flow.mode is MirrorMode.MM1:
        group = Pattern(flow.position_group)
        yield _Need(flow.source, "GROUP", group, "READ", "keep the positions in the group")


def _target_needs(flow: FlowSettings) -> Iterator[_Need]:
    mm2 = flow.mode is MirrorMode.MM2
    target, admin = flow.target, flow.target_admin
    for pattern in remote_patterns(flow):
        yield _Need(target, "TOPIC", pattern, "WRITE", "write the records")
        if mm2:
            why = "commit positions under the remote topics' names"
            yield _Need(target, "TOPIC", pattern, "READ", why)
        yield _Need(admin, "TOPIC", pattern, "CREATE", "create remote topics")
        yield _Need(admin, "TOPIC", pattern, "DESCRIBE", "find remote topics")
        if mm2:
            why = "add partitions when the source topic has more"
            yield _Need(admin, "TOPIC", pattern, "ALTER", why)
        if _may_dead_letter(flow) and pattern.kind == "LITERAL" and pattern != EVERY:
            why = "sparkmirror.on.bad.record"
            letters = Pattern(dead_letter_topic(pattern.name))
            yield _Need(admin, "TOPIC", letters, "CREATE", why)
            yield _Need(target, "TOPIC", letters, "WRITE", why)
    constants = filter(None, (constant_topic(one.select) for one in flow.transforms))
    for pattern in dict.fromkeys((*map(Pattern, constants), *_time_patterns(flow))):
        why = "write records that are routed there"
        yield _Need(target, "TOPIC", pattern, "WRITE", why)
        if flow.routed_topics_max:
            why = "create topics for routed records"
            yield _Need(admin, "TOPIC", pattern, "CREATE", why)
            yield _Need(admin, "TOPIC", pattern, "DESCRIBE", "find topics for routed records")
    control, why = control_topic(flow), "driver and tasks talk through the control topic"
    yield from _created(admin, control, "create the control topic")
    yield _topic(admin, control, "DESCRIBE_CONFIGS", "find which topic configs the cluster knows")
    yield _topic(target, control, "READ", why)
    yield _topic(target, control, "WRITE", why)
    why = "read the orders to pause, resume and drain"
    yield from _created(admin, orders_topic(flow), "create the topic of orders")
    yield _topic(target, orders_topic(flow), "READ", why)
    yield from _created(admin, gaps_topic(flow), "create the topic of gap records")
    yield _topic(target, gaps_topic(flow), "READ", "report gaps")
    yield _topic(target, gaps_topic(flow), "WRITE", "record what is lost")
    if flow.keeps_names:
        why = "names by a map or RegexRouter: record the source topic of each remote topic"
        yield _topic(admin, REMOTE_NAMES_TOPIC, "CREATE", why)
        yield _topic(target, REMOTE_NAMES_TOPIC, "READ", why)
        yield _topic(target, REMOTE_NAMES_TOPIC, "WRITE", why)
        yield _topic(admin, REMOTE_NAMES_TOPIC, "READ", "sparkmirror topics, plan, lag, verify")
    if mm2:
        storage = offset_storage_topic(flow)
        yield from _created(admin, storage, "create the offset storage topic")
        yield _topic(target, storage, "READ", "take over a Java MirrorMaker's positions")
        yield _topic(target, storage, "WRITE", "keep the positions for a Java MirrorMaker")
        group = Pattern(flow.position_group)
        yield _Need(target, "GROUP", group, "READ", "keep the positions in the group")
        if flow.exactly_once:
            ids = Pattern(transactional_id_prefix(flow), "PREFIXED")
            yield _Need(target, "TRANSACTIONAL_ID", ids, "WRITE", "exactly-once")
        java = Pattern(f"{flow.source.alias}-mm2")
        why = "see whether a Java MirrorMaker still runs"
        yield _Need(target, "GROUP", java, "DESCRIBE", why)


def _may_dead_letter(flow: FlowSettings) -> bool:
    return flow.faults.bad_record == "dead-letter" or bool(flow.faults.bad_record_dead_letter)


def _sync_needs(flow: FlowSettings) -> Iterator[_Need]:
    """Needs of the config and ACL sync."""
    if flow.topics.sync_configs_enabled:
        why = "sync.topic.configs.enabled"
        for pattern in remote_patterns(flow):
            yield _Need(flow.target_admin, "TOPIC", pattern, "ALTER_CONFIGS", why)
    if flow.topics.sync_acls_enabled:
        why = "sync.topic.acls.enabled"
        yield _Need(flow.source_admin, "CLUSTER", CLUSTER, "DESCRIBE", why)
        yield _Need(flow.target_admin, "CLUSTER", CLUSTER, "ALTER", why)


def _offset_sync_needs(flow: FlowSettings) -> Iterator[_Need]:
    why = "emit.offset-syncs.enabled"
    on_source = flow.offset_syncs.location == "source"
    admin = flow.source_admin if on_source else flow.target_admin
    yield _topic(admin, offset_syncs_topic(flow), "CREATE", why)
    yield _topic(flow.syncs_writer, offset_syncs_topic(flow), "WRITE", why)
    yield _topic(flow.target_admin, runs_topic(flow), "CREATE", why)
    yield _topic(flow.target, runs_topic(flow), "WRITE", why)


def _checkpoint_needs(flow: FlowSettings) -> Iterator[_Need]:
    why = "emit.checkpoints.enabled"
    reader = flow.checkpoints.client or flow.target
    syncs = flow.source if flow.offset_syncs.location == "source" else reader
    checkpoints = checkpoints_topic(flow)
    groups = group_patterns(flow)
    for group in groups:
        yield _Need(flow.source_admin, "GROUP", group, "DESCRIBE", why)
    yield _topic(syncs, offset_syncs_topic(flow), "READ", why)
    yield _topic(flow.target, runs_topic(flow), "READ", why)
    yield _topic(flow.target_admin, checkpoints, "CREATE", why)
    yield _topic(flow.target, checkpoints, "WRITE", why)
    yield _topic(reader, checkpoints, "READ", why)
    if flow.checkpoints.sync_enabled:
        why = "sync.group.offsets.enabled"
        for group in groups:
            yield _Need(flow.target_admin, "GROUP", group, "READ", why)
        for pattern in remote_patterns(flow):
            yield _Need(flow.target_admin, "TOPIC", pattern, "READ", why)


def _heartbeat_needs(beats: HeartbeatSettings) -> Iterator[_Need]:
    why = "emit.heartbeats.enabled"
    yield _topic(beats.target_admin, beats.topic, "CREATE", why)
    yield _topic(beats.target, beats.topic, "WRITE", why)
