"""Facts about one flow on both clusters: read once, shared by all checks."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from sparkmirror.control.topics.config_sync import config_to_create_with
from sparkmirror.control.topics.replicas import ask_for
from sparkmirror.errors import MirrorError, TooFewBrokers
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.inspector import Inspector, TriedTopic
from sparkmirror.wire.cluster.views import ClusterView, ConfigEntry, NewTopic, TopicView

Configs = Mapping[str, ConfigEntry]


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """``topics``: the topics that the flow mirrors. ``configs``: their configs, or the error."""

    cluster: ClusterView
    topics: Mapping[str, TopicView]
    configs: Mapping[str, Configs | MirrorError]

    def without(self, names: Container[str]) -> SourceFacts:
        """These facts without the topics ``names``."""
        kept = {name: view for name, view in self.topics.items() if name not in names}
        return replace(self, topics=kept)

    def partitions(self) -> list[TopicPartition]:
        """All partitions to mirror."""
        return [
            TopicPartition(name, number)
            for name, view in self.topics.items()
            for number in range(view.partitions)
        ]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """``topics``: the existing remote topics. ``tried``: results of a trial creation of the others.

    ``configs``: configs of both, by remote name; without topics whose configs cannot be read.
    ``short``: the controller's answer for topics for whose replicas there are too few brokers; they
    are in ``tried`` with fewer replicas.
    """

    cluster: ClusterView
    topics: Mapping[str, TopicView]
    configs: Mapping[str, Configs] = field(default_factory=dict)
    tried: Mapping[str, TriedTopic] = field(default_factory=dict)
    short: Mapping[str, TooFewBrokers] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """A source topic and its remote topic, as it is or (``present`` False) as it would be created.

    ``partitions``, ``replication``: of the remote topic. Configs are empty if unknown. ``short``:
    the controller's answer if the target has too few brokers to create it with these replicas.
    ``taken``: a dry run has shown that the target would create it with them.
    """

    topic: str
    remote: str
    source: TopicView
    partitions: int
    replication: int
    present: bool
    source_configs: Configs
    target_configs: Configs
    short: TooFewBrokers | None = None
    taken: bool = False


def observe_source(
    source: Cluster, flow: FlowSettings, *, topics_max: int | None = None
) -> SourceFacts:
    """Read the facts of the source, for at most ``topics_max`` topics (the first ones by name).

    Raises `MirrorError`.
    """
    wanted = FlowTopics(flow)
    found = (
        (name, view)
        for name, view in sorted(source.topics().items())
        if wanted.mirrors(name, internal=view.internal)
    )
    topics = dict(islice(found, topics_max))
    return SourceFacts(source.describe(), topics, source.topic_configs(topics) if topics else {})


def observe_target(
    target: Inspector, flow: FlowSettings, source: SourceFacts, *, try_missing: bool = True
) -> TargetFacts:
    """Read the facts of the target about the remote topics of ``source``. Raises `MirrorError`.

    ``try_missing``: also try to create those that do not exist, with ``validate_only``.
    """
    wanted = FlowTopics(flow)
    # Brokers reject requests about invalid names.
    named = {n: v for n, v in source.topics.items() if not wanted.fault(n)}
    remote = {wanted.remote(name): view for name, view in named.items()}
    cluster = target.cluster.describe()
    present = target.cluster.topics(remote)
    factor = flow.topics.replication_factor
    missing = [
        NewTopic(name, view.partitions, factor, _wanted_configs(source, view.name, flow))
        for name, view in remote.items()
        if try_missing and name not in present
    ]
    short: dict[str, TooFewBrokers] = {}

    def try_create(topics: Sequence[NewTopic]) -> dict[str, TriedTopic]:
        found = target.try_create(topics)
        for name, one in found.items():
            if isinstance(one.error, TooFewBrokers):
                short.setdefault(name, one.error)
        return found

    # A factor that is too large has its own finding, and must not make every creation fail here.
    tried, _ = ask_for(target.cluster, missing, try_create, set(remote))
    found = target.cluster.topic_configs(present) if present else {}
    configs = {name: one for name, one in found.items() if not isinstance(one, MirrorError)}
    configs |= {name: dict(one.configs) for name, one in tried.items()}
    return TargetFacts(cluster, present, configs, tried, short)


def _wanted_configs(source: SourceFacts, topic: str, flow: FlowSettings) -> dict[str, str]:
    configs = source.configs.get(topic, {})
    return {} if isinstance(configs, MirrorError) else config_to_create_with(configs, flow)[0]


def pairs(flow: FlowSettings, source: SourceFacts, target: TargetFacts) -> Iterator[Pair]:
    """Every source topic with its remote topic, by name."""
    wanted = FlowTopics(flow)
    for name, view in sorted(source.topics.items()):
        remote = wanted.remote(name)
        there = target.topics.get(remote)
        configs = source.configs.get(name, {})
        tried = target.tried.get(remote)
        yield Pair(
            name,
            remote,
            view,
            there.partitions if there is not None else view.partitions,
            there.replication if there is not None else flow.topics.replication_factor,
            there is not None,
            {} if isinstance(configs, MirrorError) else configs,
            target.configs.get(remote, {}),
            target.short.get(remote),
            tried is not None and tried.error is None and remote not in target.short,
        )
