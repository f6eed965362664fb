"""Puts the end of the brokers' logs into the report of a failed test that used them."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from sparkmirror.demo.clusters import KafkaCluster

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
