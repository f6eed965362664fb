"""Brokers with all kinds of listeners, on first use; broker logs in the report of a failed test."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from sparkmirror.demo.clusters import KafkaCluster
from tests.kafka.secure import Secured, secured_pair

_LINES = 25


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        used = {id(value): value for value in getattr(item, "funcargs", {}).values()}
        for cluster in used.values():
            if isinstance(cluster, KafkaCluster):
                for node in cluster.node_ids:
                    title = f"log of cluster {cluster.name}, broker {node}"
                    report.sections.append((title, cluster.log_tail(node, _LINES)))
    return report


@pytest.fixture(scope="session")
def secured_clusters(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Secured, Secured]]:
    """Two clusters with TLS and SASL listeners, started once per session."""
    with secured_pair(tmp_path_factory.mktemp("secured")) as clusters:
        yield clusters
