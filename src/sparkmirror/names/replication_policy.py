"""Replication policies and topic filters: names of remote topics, and which topics are mirrored.

Everything here is pure: names in, names or booleans out. The rules are those of MirrorMaker 2 4.3
(``DefaultReplicationPolicy``, ``IdentityReplicationPolicy``), so that our mirrors and Java's agree
on every remote topic name. There is one extension: if the aliases of the file are known, an alias
may contain the separator. Java takes everything before the first separator as the source's alias.

``None`` stands for Java's null ("not a remote topic").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.names.java_regex import compile_list
from sparkmirror.names.smts import SmtChain
from sparkmirror.names.topics_map import TopicsMap, name_fault
from sparkmirror.settings import FaultSettings, FlowNaming, FlowSettings, PolicySettings

__all__ = [
    "DefaultReplicationPolicy",
    "FaultPolicy",
    "FlowTopics",
    "IdentityReplicationPolicy",
    "ReplicationPolicy",
    "TopicFilter",
    "dead_letter_topic",
    "is_cycle",
    "is_remote_topic",
    "make_policy",
    "policy_kind",
    "should_replicate",
    "sources_of",
]

_CLASS_PREFIX = "org.apache.kafka.connect.mirror."
# LegacyReplicationPolicy was the working name of the identity policy before its release; articles
# and files still use it.
_KINDS = {
    "DefaultReplicationPolicy": "default",
    "IdentityReplicationPolicy": "identity",
    "LegacyReplicationPolicy": "identity",
}
_HEARTBEATS = "heartbeats"
# Internal topics of mirrors, whatever the separator.
_MIRRORS_OWN = re.compile(r"mm2.*\.internal")
_NAMES_REMEMBERED = 65_536


class ReplicationPolicy:
    """Topic names across clusters; base class of both policies.

    ``separator`` is between alias and topic, ``internal_separator`` between the parts of the names
    of MirrorMaker's internal topics. ``aliases``: known clusters; without them names are parsed as
    Java does.
    """

    def __init__(
        self,
        separator: str = ".",
        *,
        internal_separator_enabled: bool = True,
        aliases: Iterable[str] = (),
    ) -> None:
        self.separator = separator
        self.internal_separator = separator if internal_separator_enabled else "."
        # Longest first: one alias may be a prefix of another.
        self.aliases = tuple(sorted(set(aliases), key=lambda alias: (-len(alias), alias)))

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Name on the target of ``topic`` from cluster ``source_alias``."""
        raise NotImplementedError

    def topic_source(self, topic: str) -> str | None:
        """Alias of the cluster that a remote topic was mirrored from; ``None`` if it is local."""
        raise NotImplementedError

    def upstream_topic(self, topic: str) -> str | None:
        """Name of a remote topic on the cluster it was mirrored from; ``None`` if it is local."""
        raise NotImplementedError

    def readings(self, topic: str) -> list[tuple[str, str]]:
        """Every way to parse ``topic`` as a remote topic: (source alias, name on the source)."""
        source, upstream = self.topic_source(topic), self.upstream_topic(topic)
        return [] if source is None else [(source, topic if upstream is None else upstream)]

    def original_topic(self, topic: str) -> str:
        """Name of the topic on the cluster where it was first produced, over any number of hops."""
        # Each hop shortens the name or ends the loop.
        while True:
            upstream = self.upstream_topic(topic)
            if upstream is None or upstream == topic:
                return topic
            topic = upstream

    def heartbeats_topic(self) -> str:
        """Name of the heartbeats topic, the same on every cluster."""
        return _HEARTBEATS

    def offset_syncs_topic(self, alias: str) -> str:
        """Name of the offset-syncs topic; ``alias``: the cluster that does not host it."""
        mark = self.internal_separator
        return f"mm2-offset-syncs{mark}{alias}{mark}internal"

    def checkpoints_topic(self, alias: str) -> str:
        """Name of the checkpoints topic for consumer groups of cluster ``alias``."""
        mark = self.internal_separator
        return f"{alias}{mark}checkpoints{mark}internal"

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Whether ``topic`` is the heartbeats topic of any cluster."""
        return self.original_topic(topic) == self.heartbeats_topic()

    def is_checkpoints_topic(self, topic: str) -> bool:
        """Whether ``topic`` is the checkpoints topic of any cluster."""
        mark = self.internal_separator
        return topic.endswith(f"{mark}checkpoints{mark}internal")

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Whether ``topic`` is one of MirrorMaker 2's internal topics."""
        own = topic.startswith("mm2") and topic.endswith(f"{self.internal_separator}internal")
        return own or self.is_checkpoints_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        """Whether ``topic`` is never mirrored: MirrorMaker's, Kafka's, or beginning with a dot."""
        return self.is_mm2_internal_topic(topic) or topic.startswith(("__", "."))


class DefaultReplicationPolicy(ReplicationPolicy):
    """Remote topics have the source's alias as a prefix: ``t`` of cluster ``A`` becomes ``A.t``."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """``alias`` + separator + ``topic``."""
        return f"{source_alias}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """The longest known alias that prefixes the name, else all before the first separator.

        ``""`` for a name that begins with the separator. ``None`` if there is no separator, or only
        separators after it (``t.``), as in Java.
        """
        for alias in self.aliases:
            if self._upstream(alias, topic) is not None:
                return alias
        parts = _split_like_java(topic, self.separator)
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        """Everything after the source's alias and the separator."""
        source = self.topic_source(topic)
        if source is None:
            return None
        return topic[len(source) + len(self.separator) :]

    def readings(self, topic: str) -> list[tuple[str, str]]:
        """One for each known alias that prefixes the name; if there is none, Java's."""
        found = ((alias, self._upstream(alias, topic)) for alias in self.aliases)
        known = [(alias, upstream) for alias, upstream in found if upstream is not None]
        return known or super().readings(topic)

    def _upstream(self, alias: str, topic: str) -> str | None:
        """What follows the known ``alias`` in the name, if it is more than separators (``t.``)."""
        upstream = topic.removeprefix(alias + self.separator)
        prefixed = topic.startswith(alias + self.separator)
        return upstream if prefixed and upstream.replace(self.separator, "") else None


class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Topics keep their names. Only heartbeats are renamed, since every cluster has them.

    Names do not show cycles, so the topology must have none.
    """

    def __init__(
        self,
        separator: str = ".",
        *,
        internal_separator_enabled: bool = True,
        aliases: Iterable[str] = (),
        source_alias: str | None = None,
    ) -> None:
        super().__init__(
            separator, internal_separator_enabled=internal_separator_enabled, aliases=aliases
        )
        self.source_alias = source_alias

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """``topic`` itself, except for heartbeats."""
        if _looks_like_heartbeats(topic):
            return super().format_remote_topic(source_alias, topic)
        return topic

    def topic_source(self, topic: str) -> str | None:
        """The configured source alias, as any topic may be remote; ``None`` if there is none.

        For heartbeats: as in the default policy.
        """
        if _looks_like_heartbeats(topic):
            return super().topic_source(topic)
        return self.source_alias

    def upstream_topic(self, topic: str) -> str | None:
        """``topic`` itself, except for heartbeats."""
        if _looks_like_heartbeats(topic):
            return super().upstream_topic(topic)
        return topic

    def readings(self, topic: str) -> list[tuple[str, str]]:
        """The configured alias with the same name, except for heartbeats."""
        if _looks_like_heartbeats(topic):
            return super().readings(topic)
        return ReplicationPolicy.readings(self, topic)


def _looks_like_heartbeats(topic: str) -> bool:
    return topic.endswith(_HEARTBEATS)


def _split_like_java(text: str, separator: str) -> list[str]:
    """Split as Java's ``String.split``: no trailing empty parts; "" splits into characters."""
    parts = text.split(separator) if separator else list(text)
    while parts and parts[-1] == "":
        parts.pop()
    return parts


def policy_kind(class_name: str, *, where: str = "") -> str:
    """``default`` or ``identity`` for a ``replication.policy.class``, with or without package.

    Raises ConfigError for any other class: Java policies cannot be loaded.
    """
    kind = _KINDS.get(class_name.strip().removeprefix(_CLASS_PREFIX))
    if kind is None:
        raise ConfigError(
            f"replication.policy.class={class_name.strip()} is not a policy of sparkmirror; "
            "custom Java policies cannot be loaded.",
            where=where,
            do="Use DefaultReplicationPolicy (remote topics get the source's alias) or "
            "IdentityReplicationPolicy (topics keep their names).",
        )
    return kind


def make_policy(settings: PolicySettings, source_alias: str | None) -> ReplicationPolicy:
    """The policy of a flow from ``source_alias``; ``settings.kind`` may also be a class name.

    Without an alias, the identity policy treats only heartbeats as remote topics. Raises
    ConfigError for an unknown kind.
    """
    kind = settings.kind
    if kind not in _KINDS.values():
        kind = policy_kind(kind)
    if kind == "identity":
        return IdentityReplicationPolicy(
            settings.separator,
            internal_separator_enabled=settings.internal_separator_enabled,
            aliases=settings.aliases,
            source_alias=source_alias,
        )
    return DefaultReplicationPolicy(
        settings.separator,
        internal_separator_enabled=settings.internal_separator_enabled,
        aliases=settings.aliases,
    )


class TopicFilter:
    """Include and exclude lists of Java regexes. Whole names match; exclude overrides include.

    An empty list matches nothing. Also used for groups and config properties. Raises ConfigError
    for a regex that cannot be compiled.
    """

    def __init__(self, include: Iterable[str], exclude: Iterable[str] = ()) -> None:
        self._include = compile_list(tuple(include))
        self._exclude = compile_list(tuple(exclude))

    def accepts(self, name: str) -> bool:
        """Whether ``name`` is included and not excluded."""
        if self._include is None or self._include.fullmatch(name) is None:
            return False
        return self._exclude is None or self._exclude.fullmatch(name) is None


def is_cycle(policy: ReplicationPolicy, topic: str, target_alias: str) -> bool:
    """Whether ``topic`` has already been on cluster ``target_alias``, by its name.

    If the name can be parsed in several ways, each of them counts.
    """
    names, seen = [topic], {topic}
    while names:
        for source, upstream in policy.readings(names.pop()):
            if source == target_alias:
                return True
            if upstream not in seen:
                seen.add(upstream)
                names.append(upstream)
    return False


def should_replicate(
    policy: ReplicationPolicy,
    topic_filter: TopicFilter,
    topic: str,
    target_alias: str,
    *,
    heartbeats_replication_enabled: bool = True,
) -> bool:
    """Whether a MirrorMaker 2 flow to ``target_alias`` mirrors ``topic``.

    True if the filter accepts it, or if it is a heartbeats topic and those are mirrored; but not
    for an internal topic, and not if it would form a cycle.
    """
    wanted = topic_filter.accepts(topic) or (
        heartbeats_replication_enabled and policy.is_heartbeats_topic(topic)
    )
    if not wanted or policy.is_internal_topic(topic):
        return False
    return not is_cycle(policy, topic, target_alias)


def sources_of(policy: ReplicationPolicy, topic: str) -> list[str]:
    """The clusters that ``topic`` was mirrored through, nearest first; ends before a repetition."""
    sources: list[str] = []
    name: str | None = topic
    while name is not None:
        source = policy.topic_source(name)
        if source is None or source in sources:
            break
        sources.append(source)
        name = policy.upstream_topic(name)
    return sources


def is_remote_topic(policy: ReplicationPolicy, topic: str) -> bool:
    """Whether ``topic`` was mirrored from another cluster, by its name."""
    return not policy.is_internal_topic(topic) and policy.topic_source(topic) is not None


KAFKAS_OWN = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics that brokers keep for themselves."""
OWN_TOPICS = re.compile(r"mm2-sparkmirror.*\.internal")
"""Topics that mirrors of this kind keep for themselves, whatever a flow's lists and separator say.

No program reads a copy. A mirror that uses the target would take it for its own topic, and each
record that is copied makes others.
"""


class FlowTopics:
    """The topics that one flow mirrors, and their remote names. Created once per flow.

    A map of topic names (``sparkmirror.topics.map``) comes before the policy and gives whole names.
    The single message transforms of a MirrorMaker 2 file see that name, and RegexRouter changes it.
    MirrorMaker 1 has no policies: the lists alone decide which topics are mirrored, and topics keep
    their names unless the map names them.
    """

    def __init__(self, flow: FlowSettings | FlowNaming) -> None:
        naming = flow.naming if isinstance(flow, FlowSettings) else flow
        self.policy = make_policy(naming.policy, naming.source)
        self._filter = TopicFilter(naming.topics.include, naming.topics.exclude)
        self._leaves_kafkas = KAFKAS_OWN[0] in naming.topics.exclude
        self._naming = naming
        self._map = TopicsMap(naming.topics.map)
        self.mapped: Callable[[str], str | None] = _no_name
        """Returns the name that the map or RegexRouter gives a source topic.

        None if the policy names it.
        """
        self._smts = SmtChain(naming.topics.smts)
        if naming.topics.renamed:  # each discovery asks for thousands of topics
            self.mapped = lru_cache(_NAMES_REMEMBERED)(self._mapped)

    def mirrors(self, topic: str, *, internal: bool) -> bool:
        """Whether the flow mirrors ``topic``. ``internal``: brokers say that it is Kafka's own.

        Only MirrorMaker 1 with ``exclude.internal.topics=false`` mirrors such topics.
        """
        if internal and (self._naming.mode is MirrorMode.MM2 or self._leaves_kafkas):
            return False
        return self.accepts(topic)

    def accepts(self, topic: str) -> bool:
        """Whether the flow mirrors source topic ``topic``, by its name."""
        naming = self._naming
        if OWN_TOPICS.fullmatch(topic):
            return False
        if naming.mode is MirrorMode.MM1:
            return self._filter.accepts(topic)
        return should_replicate(
            self.policy,
            self._filter,
            topic,
            naming.target,
            heartbeats_replication_enabled=naming.topics.heartbeats_replication_enabled,
        )

    def remote(self, topic: str) -> str:
        """Name of source topic ``topic`` on the target."""
        mapped = self.mapped(topic)
        if mapped is not None:
            return mapped
        if self._naming.mode is MirrorMode.MM1:
            return topic
        return self._by_policy(topic)

    def _mapped(self, topic: str) -> str | None:
        # Heartbeats keep the policy's names: their names show which cluster they come from.
        if self._naming.mode is MirrorMode.MM2 and self.policy.is_heartbeats_topic(topic):
            return None
        by_map = self._map.name(topic)
        if not self._naming.topics.smts:
            return by_map
        before = self._by_policy(topic) if by_map is None else by_map
        name = self._smts.passage(before).name
        return by_map if name == before else name

    def _by_policy(self, topic: str) -> str:
        return self.policy.format_remote_topic(self._naming.source, topic)

    def smts(self, topic: str) -> tuple[int, ...]:
        """The numbers of the single message transforms that apply to records of ``topic``.

        Those that only change the topic's name do not count.
        """
        heartbeats = self.policy.is_heartbeats_topic(topic)
        by_map = None if heartbeats else self._map.name(topic)
        before = self._by_policy(topic) if by_map is None else by_map
        return self._smts.passage(before, heartbeats=heartbeats).steps

    def rule(self, topic: str) -> int | None:
        """The index of the map's rule that matches ``topic``; None if the policy names it."""
        found = None if self.mapped(topic) is None else self._map.find(topic)
        return None if found is None else found[0]

    def fault(self, topic: str) -> str:
        """Why ``topic`` cannot have the name that the map gives it; empty if it can."""
        name = self.mapped(topic)
        return "" if name is None else name_fault(name) or self.reserved(name)

    def reserved(self, name: str) -> str:
        """Why no records may be mirrored to topic ``name``: it is a mirror's or Kafka's own.

        Empty if it is not.
        """
        if self.policy.is_heartbeats_topic(name):
            return "it is the name of a heartbeats topic"
        if self.policy.is_internal_topic(name) or _MIRRORS_OWN.fullmatch(name):
            return "it is the name of an internal topic of Kafka or of a mirror"
        return ""


def _no_name(_topic: str) -> None:
    return None


def dead_letter_topic(remote_topic: str) -> str:
    """The topic for records that the target rejects in ``remote_topic``."""
    return f"{remote_topic}.dead-letter"


class FaultPolicy:
    """What happens to a topic's partitions if records are lost or rejected (`FaultSettings`).

    If several lists match a topic, the most careful choice applies.
    """

    def __init__(self, faults: FaultSettings) -> None:
        self._source_loss = _choices(
            ("fail", faults.source_loss_fail),
            ("record-and-continue", faults.source_loss_continue),
            otherwise=faults.source_loss,
        )
        self._target_loss = _choices(
            ("fail", faults.target_loss_fail),
            ("repair", faults.target_loss_repair),
            ("record-and-continue", faults.target_loss_continue),
            otherwise=faults.target_loss,
        )
        self._bad_record = _choices(
            ("pause", faults.bad_record_pause),
            ("dead-letter", faults.bad_record_dead_letter),
            ("skip", faults.bad_record_skip),
            otherwise=faults.bad_record,
        )

    def source_loss(self, topic: str) -> str:
        """``fail`` or ``record-and-continue`` for source topic ``topic``."""
        return _choose(self._source_loss, topic)

    def target_loss(self, topic: str) -> str:
        """``repair``, ``fail`` or ``record-and-continue`` for source topic ``topic``."""
        return _choose(self._target_loss, topic)

    def bad_record(self, topic: str) -> str:
        """``pause``, ``dead-letter`` or ``skip`` for source topic ``topic``."""
        return _choose(self._bad_record, topic)


_Choices = tuple[tuple[str, TopicFilter], ...]


def _choices(*named: tuple[str, tuple[str, ...]], otherwise: str) -> _Choices:
    filters = [(choice, TopicFilter(topics)) for choice, topics in named]
    return (*filters, (otherwise, TopicFilter((".*",))))


def _choose(choices: _Choices, topic: str) -> str:
    return next(choice for choice, topics in choices if topics.accepts(topic))
