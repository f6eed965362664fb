"""The jobs that sync ACLs and configs to a flow's remote topics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparkmirror.control.flows.clusters import FlowClusters
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.jobs import Job
from sparkmirror.control.topics.acl_sync import AclSync
from sparkmirror.control.topics.config_sync import ConfigSync
from sparkmirror.model import MirrorMode
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings

_SYNC_FAILURE_PAUSE_S = 60.0


def sync_jobs(
    settings: FlowSettings,
    clusters: FlowClusters,
    wanted: FlowTopics,
    published: Publication,
    notify: Callable[[str], None],
) -> list[Job]:
    """The sync jobs of one flow, about the topics in ``published``; MirrorMaker 1 has none."""

    def remote_topics() -> dict[str, str]:
        """Remote topic by source topic, of the assignment."""
        return dict(published.assignment().remote_topics)

    def named_topics() -> frozenset[str] | None:
        """The topics that are mirrored; None if no topic can be left out because of its name."""
        return frozenset(published.assignment().topics) if settings.keeps_names else None

    rounds: list[tuple[str, Callable[[], None], int]] = []
    if settings.mode is MirrorMode.MM2:
        admins, topics = (clusters.source_admin, clusters.target_admin), settings.topics
        if topics.sync_acls_enabled:
            acls = AclSync(settings, *admins, wanted, notify, named_topics)
            rounds.append(("acls", acls.round, topics.sync_acls_interval_s))
        if topics.sync_configs_enabled:
            configs = ConfigSync(settings, *admins, remote_topics, notify)
            rounds.append(("configs", configs.round, topics.sync_configs_interval_s))
    return [
        Job(
            f"{name}-{settings.name}",
            once,
            partial(float, interval_s),
            min(float(interval_s), _SYNC_FAILURE_PAUSE_S),
        )
        for name, once, interval_s in rounds
    ]
