"""The driver's clients of one flow's clusters."""

from __future__ import annotations

from dataclasses import replace

from sparkmirror.control.groups.job import GroupClusters
from sparkmirror.model import MirrorMode
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.wire.admin.cluster import Cluster


class FlowClusters:
    """The `Cluster` of each role. Roles whose clients differ only in ``client_id`` share one."""

    def __init__(self, settings: FlowSettings) -> None:
        self._all: list[Cluster] = []
        self.source = self.of(settings.source)
        self.target = self.of(settings.target)
        self.source_admin = self.of(settings.source_admin)
        self.target_admin = self.of(settings.target_admin)
        self.keeper = self.source if settings.mode is MirrorMode.MM1 else self.target
        """The cluster that holds the position group's offsets."""

    def of(self, client: ClusterClient) -> Cluster:
        """The `Cluster` for ``client``; it is created at the first call."""
        for known in self._all:
            if replace(known.client, client_id=client.client_id) == client:
                return known
        cluster = Cluster(client)
        self._all.append(cluster)
        return cluster

    def for_groups(self, settings: FlowSettings) -> GroupClusters:
        """Those that the groups job of ``settings`` uses."""
        checkpoints = self.of(settings.checkpoints.client or settings.target)
        on_source = settings.offset_syncs.location == "source"
        return GroupClusters(
            source_admin=self.source_admin,
            target_admin=self.target_admin,
            target=self.target,
            syncs=self.source if on_source else checkpoints,
            checkpoints=checkpoints,
            source=self.source,
        )

    def close(self) -> None:
        """Close all connections for good: a thread that still works must not open new ones."""
        for cluster in self._all:
            cluster.close(for_good=True)
