"""The driver's clients of one flow's clusters."""

from __future__ import annotations

from dataclasses import replace

from sparkmirror.model import ClusterClient, FlowSettings, MirrorMode
from sparkmirror.wire.admin.cluster import Cluster


class FlowClusters:
    """One `Cluster` for all roles whose clients differ only in their names."""

    def __init__(self, settings: FlowSettings) -> None:
        self._all: list[Cluster] = []
        self.source = self.of(settings.source)
        self.target = self.of(settings.target)
        self.source_admin = self.of(settings.source_admin)
        self.target_admin = self.of(settings.target_admin)
        self.keeper = self.source if settings.mode is MirrorMode.MM1 else self.target
        """The cluster that holds the position group's offsets."""

    def of(self, client: ClusterClient) -> Cluster:
        """The cluster behind ``client``."""
        for known in self._all:
            if replace(known.client, client_id=client.client_id) == client:
                return known
        cluster = Cluster(client)
        self._all.append(cluster)
        return cluster

    def close(self) -> None:
        """Close all connections for good: a thread may still be at work."""
        for cluster in self._all:
            cluster.close(for_good=True)
