"""What planners and comparisons share: the observed clusters of a flow, and planned changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from sparkmirror.control.topics.internal_topics import offset_storage_topic
from sparkmirror.control.topics.remote_names import refused_names
from sparkmirror.control.topics.sync import ObservedTopics, observe_topics
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import NewTopic

__all__ = ["Change", "FlowPlan", "Observation", "PassThrough", "TransformTopics", "creation"]


@dataclass(frozen=True, slots=True)
class Change:
    """One planned change.

    ``cluster``: alias of the cluster. ``action``: ``create-topic``, ``grow-topic``, ``set-config``,
    ``reset-config``, ``add-acl``, ``emit-checkpoints`` or ``set-offset``; ``refuse`` for an action
    that would fail, with the reason in ``details``. ``subject``: the topic or group that changes.
    ``topic``: the source topic; empty if there is none.
    """

    cluster: str
    action: str
    subject: str
    topic: str = ""
    details: Mapping[str, object] = field(default_factory=dict)


def creation(
    alias: str, new: NewTopic, topic: str = "", more: Mapping[str, object] | None = None
) -> Change:
    """The change that creates topic ``new``; ``more``: further details."""
    details: dict[str, object] = {
        "partitions": new.partitions,
        "replication_factor": new.replication_factor,
    }
    if new.configs:
        details["configs"] = dict(new.configs)
    return Change(alias, "create-topic", new.name, topic, {**details, **(more or {})})


@dataclass(frozen=True, slots=True)
class TransformTopics:
    """The source ``topics`` that one transform processes. ``reason``: what it does to records.

    ``tables``: the static tables that it names, and from where they are read.
    """

    transform: str
    topics: tuple[str, ...]
    reason: str
    tables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Which topics keep their raw batches: ``raw``; and which lose them to which transform.

    ``transforms`` has every transform of the flow, also one that matches no topic.
    """

    transforms: tuple[TransformTopics, ...]
    raw: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """The changes of one flow, and the errors of planners that failed.

    ``pass_through``: None for a flow without transforms, and if its topics are unknown.
    """

    flow: str
    changes: tuple[Change, ...]
    failures: tuple[MirrorError, ...] = ()
    pass_through: PassThrough | None = None


class Observation:
    """Both clusters of one flow; what is observed is kept for all planners.

    ``source`` and ``target`` use the admin settings, as a run does to list, describe and create.
    ``syncs``, ``runs`` and ``checkpoints`` are the clients that read the topics of offset syncs,
    of runs and of checkpoints; the default is the admin client of the cluster.
    """

    def __init__(
        self,
        flow: FlowSettings,
        source: Cluster,
        target: Cluster,
        *,
        syncs: Cluster | None = None,
        runs: Cluster | None = None,
        checkpoints: Cluster | None = None,
    ) -> None:
        self.flow = flow
        self.source = source
        self.target = target
        self.wanted = FlowTopics(flow)
        self.syncs_admin = source if flow.offset_syncs.location == "source" else target
        self.syncs = syncs or self.syncs_admin
        self.runs = runs or target
        self.checkpoints = checkpoints or target

    @cached_property
    def topics(self) -> ObservedTopics:
        """The topics that the flow mirrors and their remote topics. Raises `MirrorError`."""
        own = [control_topic(self.flow), offset_storage_topic(self.flow)]
        there = sorted(self.target.topics(own))
        refuse = partial(refused_names, self.target, self.flow, self.wanted)
        return observe_topics(self.source, self.target, self.wanted, there, refuse)

    @cached_property
    def remote(self) -> dict[str, str]:
        """Remote topic by source topic, for topics that exist on both sides."""
        named = {name: self.wanted.remote(name) for name in self.mirrored}
        return {name: remote for name, remote in named.items() if remote in self.topics.target}

    @property
    def mirrored(self) -> list[str]:
        """The source topics that a run mirrors: those that may have their remote names."""
        return [name for name in sorted(self.topics.source) if name not in self.topics.refused]
