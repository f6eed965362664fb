"""The control topic, when its log is another one than the one that was read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from sparkmirror.control.coordination.control_topic import ControlTopicWriter
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.internal_topics.commands import Command, CommandKind, control_topic
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.support import create_topic, delete_topic
from tests.patience import patience


@pytest.fixture
def flow(cluster_b: KafkaCluster, topic_name: str) -> FlowSettings:
    servers = tuple(cluster_b.bootstrap_servers.split(","))
    target = ClusterClient("B", servers, "control-reader")
    source = ClusterClient(topic_name, servers, "control-reader")
    return FlowSettings(source, target, source, target)


@pytest.fixture
def writer(flow: FlowSettings) -> Iterator[ControlTopicWriter]:
    with closing(Cluster(flow.target)) as target:
        yield ControlTopicWriter(target, control_topic(flow))


def _hear(watch: ControlWatch, until: str) -> None:
    """Follow the topic as a slot does."""
    deadline = time.monotonic() + patience()
    while not getattr(watch, until):
        assert time.monotonic() < deadline, f"never {until}"
        watch.connections.refresh_if_due()
        watch.fetcher.send()
        for connection in watch.fetcher.ready(0.1):
            watch.receive(connection)


def test_a_control_topic_that_is_created_again_is_heard(
    flow: FlowSettings, writer: ControlTopicWriter, cluster_b: KafkaCluster
) -> None:
    """Its offsets begin again: a slot must notice, and the planner read it from its beginning.

    An unclean election cuts the log off in the same way.
    """
    topic = control_topic(flow)
    create_topic(cluster_b, topic, 2)
    for at in range(3):
        writer.command(Command(flow.name, CommandKind.PAUSE, "", at))
    planner = ControlWatch(flow, "run")
    slot = ControlWatch(flow, "run", slot=0, offset=0)
    try:
        planner.catch_up()
        slot.start()
        _hear(slot, "paused")
        assert (planner.paused, planner.offset, slot.truncated) == (True, 3, False)
        delete_topic(cluster_b, topic)
        create_topic(cluster_b, topic, 2)
        writer.command(Command(flow.name, CommandKind.RESUME, "", 9))
        _hear(slot, "truncated")
        planner.catch_up(patience())
        assert (planner.paused, planner.offset) == (False, 1)
    finally:
        planner.close()
        slot.close()
