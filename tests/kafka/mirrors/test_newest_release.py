"""The newest release of Kafka as source and as target: the quick tests of what a mirror relies on.

They are those of other files, on other clusters. `test_newest_release_mirrors.py` has whole runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.demo.tools import TOOLS
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.jvm import KAFKA_VERSION, KAFKA_VERSIONS
from tests.kafka.control.test_compatibility import (
    test_a_group_behind_a_record_that_was_left_out,
    test_identity_replication,
    test_offsets_that_were_altered_and_reset,
    test_runs_in_transactions_carry_the_topics_id,
)
from tests.kafka.control.test_control import (
    flow,
    loops,
    target,
    test_a_remote_topic_with_fewer_partitions_grows,
    test_prepare_makes_topics_and_publishes_the_assignment,
)
from tests.kafka.control.test_streams_groups import (
    clients,
    test_a_streams_group_goes_on_at_the_target_where_it_stood,
    test_a_streams_group_is_found_and_its_offsets_are_safe,
)
from tests.kafka.control.test_topic_sync import alias, test_configs_follow_the_source
from tests.kafka.harness.mirror_process import write_mm2
from tests.kafka.wire.test_client import (
    cluster,
    test_a_group_with_members_is_seen_and_its_offsets_are_safe,
    test_committed_offsets,
    test_offsets_of_many_groups_go_in_few_requests,
)

__all__ = [
    "alias",
    "clients",
    "cluster",
    "flow",
    "loops",
    "target",
    "test_a_group_behind_a_record_that_was_left_out",
    "test_a_group_with_members_is_seen_and_its_offsets_are_safe",
    "test_a_remote_topic_with_fewer_partitions_grows",
    "test_a_streams_group_goes_on_at_the_target_where_it_stood",
    "test_a_streams_group_is_found_and_its_offsets_are_safe",
    "test_committed_offsets",
    "test_configs_follow_the_source",
    "test_identity_replication",
    "test_offsets_of_many_groups_go_in_few_requests",
    "test_offsets_that_were_altered_and_reset",
    "test_prepare_makes_topics_and_publishes_the_assignment",
    "test_runs_in_transactions_carry_the_topics_id",
]

pytestmark = pytest.mark.long
_NEWEST = KAFKA_VERSIONS[-1]


@pytest.fixture(scope="module")
def newest_pair() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    pair = (
        KafkaCluster("A", version=_NEWEST, heap="300m"),
        KafkaCluster("B", version=_NEWEST, heap="300m"),
    )
    start_all(*pair)
    yield pair
    for one in pair:
        one.stop()


@pytest.fixture(scope="module")
def cluster_a(newest_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    return newest_pair[0]


@pytest.fixture(scope="module")
def cluster_b(newest_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    return newest_pair[1]


def test_the_release_is_named(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, "none")
    assert main(["clusters", str(path)]) == 0
    assert capsys.readouterr().out.count("Kafka 4.4") == 2


def test_kafkas_own_tools_are_of_the_release_before(cluster_a: KafkaCluster) -> None:
    """Its own cannot be had from the public repository."""
    jars = {path.name for path in cluster_a.tool_runtime.jars}
    assert f"kafka-tools-{KAFKA_VERSION}.jar" in jars
    names = {path.name for path in cluster_a.runtime.jars}
    assert f"kafka_2.13-{_NEWEST}.jar" in names
    assert not {name for name in names if KAFKA_VERSION in name}
    listed = cluster_a.tool(
        TOOLS["kafka-topics.sh"], "--bootstrap-server", cluster_a.bootstrap_servers, "--list"
    )
    assert (listed.returncode, "rror" in listed.stderr) == (0, False)
