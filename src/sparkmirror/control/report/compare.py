"""Compares source topics with their remote topics. Read-only: changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.control.topics.config_sync import ConfigChange, observe_configs, plan_configs
from sparkmirror.control.topics.observation import Observation
from sparkmirror.errors import MirrorError

__all__ = ["TopicPair", "compare_topics"]


@dataclass(frozen=True, slots=True)
class TopicPair:
    """One source topic and its remote topic.

    ``remote_partitions`` None: the remote topic does not exist yet. ``differences``: what a config
    sync would change. ``trouble``: why the configs could not be compared. ``refused``: why the
    topic is not mirrored: it cannot have the name ``remote``.
    """

    topic: str
    remote: str
    partitions: int
    remote_partitions: int | None
    replication: int
    remote_replication: int | None
    differences: tuple[ConfigChange, ...] = ()
    trouble: str = ""
    refused: str = ""

    @property
    def state(self) -> str:
        """One of ``left out``, ``missing``, ``fewer partitions``, ``configs differ``,
        ``configs unknown``, ``more partitions``, ``same``; the first that is true.
        """
        if self.refused:
            return "left out"
        if self.remote_partitions is None:
            return "missing"
        if self.remote_partitions < self.partitions:
            return "fewer partitions"
        if self.differences:
            return "configs differ"
        if self.trouble:
            return "configs unknown"
        return "more partitions" if self.remote_partitions > self.partitions else "same"


def compare_topics(observed: Observation) -> tuple[TopicPair, ...]:
    """All topics of one flow, by source name. Raises `MirrorError` if a cluster is unavailable.

    Configs are compared as the config sync does, even if it is switched off.
    """
    found = plan_configs(
        observe_configs(observed.source, observed.target, observed.remote), observed.flow
    )
    changes = {action.topic: action.changes for action in found.actions}
    pairs = []
    for name, view in sorted(observed.topics.source.items()):
        remote = observed.wanted.remote(name)
        refused = observed.topics.refused.get(name)
        there = observed.topics.target.get(remote) if refused is None else None
        error = found.errors.get(name)
        pairs.append(
            TopicPair(
                topic=name,
                remote=remote,
                partitions=view.partitions,
                remote_partitions=there.partitions if there else None,
                replication=view.replication,
                remote_replication=there.replication if there else None,
                differences=changes.get(name, ()),
                trouble=str(error) if isinstance(error, MirrorError) else "",
                refused="" if refused is None else str(refused),
            )
        )
    return tuple(pairs)
