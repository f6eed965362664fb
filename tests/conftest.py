"""Fixtures that every folder may ask for. Brokers start on first use, so unit tests start none."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sparkmirror.demo.clusters import KafkaCluster, start_all


@pytest.fixture(scope="session")
def cluster_pair() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two one-node clusters, A and B, started side by side once per session."""
    pair = KafkaCluster("A"), KafkaCluster("B")
    start_all(*pair)
    try:
        yield pair
    finally:
        for cluster in pair:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster_a(cluster_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    """The source cluster of most tests; shared, so leave its broker up."""
    return cluster_pair[0]


@pytest.fixture(scope="session")
def cluster_b(cluster_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    """The target cluster of most tests; shared, so leave its broker up."""
    return cluster_pair[1]


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., KafkaCluster]]:
    """Starts a cluster for this test alone: ``new_cluster("C", nodes=3, config={...})``."""
    with ExitStack() as stack:

        def start(name: str, **options: Any) -> KafkaCluster:
            return stack.enter_context(KafkaCluster(name, **options))

        yield start


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    test = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:80]
    return f"{test}-{uuid.uuid4().hex[:8]}"
