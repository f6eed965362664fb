"""The two clusters that files share, whole again after each test, whatever it did to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pytest

from sparkmirror.errors import MachineError
from sparkmirror.testing.clusters import KafkaCluster
from tests.conftest import SHARED

__all__ = ["make_whole", "shared_clusters_whole"]

log = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def shared_clusters_whole(pytestconfig: pytest.Config) -> Iterator[None]:
    """A test that dies between freeze and thaw decides about no other one."""
    yield
    make_whole(pytestconfig.stash.get(SHARED, ()))


def make_whole(clusters: Iterable[KafkaCluster]) -> None:
    """Thaw what is frozen, start what was killed; what does not start gives way to a new cluster.

    One that is whole is not asked anything: this comes after every test.
    """
    for cluster in clusters:
        for number in cluster.alive:
            cluster.thaw(number)
        if cluster.alive and cluster.alive == frozenset(cluster.node_ids):
            continue
        try:
            cluster.start()
        except MachineError:
            # What does not start has given up its directory and its ports.
            log.warning("cluster %s did not come back; a new one", cluster.name, exc_info=True)
            cluster.start()
