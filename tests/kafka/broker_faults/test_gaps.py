"""A whole run that meets lost data: what it tells, and what ``sparkmirror gaps`` lists."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.internal_topics.gaps import GAP_CODES
from sparkmirror.internal_topics.position_metadata import Mark, PositionMetadata, encode_metadata
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, delete_records, produce
from tests.kafka.mirrors.test_metrics import Scrape


@dataclass
class Losing:
    """A flow whose source lost 9 offsets of ``logs``, where it goes on, and all of ``orders``."""

    source: str
    logs: str
    orders: str
    path: Path


@pytest.fixture
def losing(cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path) -> Losing:
    base = uuid.uuid4().hex[:8]
    source = f"A{base}"
    logs, orders = f"logs-{base}", f"orders-{base}"
    target = Cluster(ClusterClient("B", tuple(cluster_b.bootstrap_servers.split(",")), "test"))
    for topic, position, mark in (
        (logs, 3, Mark()),
        (orders, 5, Mark(topic_id="35a11f88-5f94-4293-baf8-f3769c144d7a")),
    ):
        create_topic(cluster_a, topic)
        create_topic(cluster_b, f"{source}.{topic}")
        produce(cluster_a, topic, [Sent(b"%d" % n) for n in range(20)])
        remote = TopicPartition(f"{source}.{topic}", 0)
        metadata = encode_metadata(PositionMetadata(mark))
        target.commit_offsets(f"__mirror.{source}->B", {remote: (position, metadata)})
    target.close()
    delete_records(cluster_a, logs, 0, 12)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, f"{logs},{orders}",
        {
            "sparkmirror.on.source.loss.record-and-continue.topics": "logs.*",
            "sparkmirror.metrics.listen": "127.0.0.1:0",
        },
        source=source,
    )  # fmt: skip
    return Losing(source, logs, orders, path)


def test_what_a_run_tells_and_gaps_lists(
    losing: Losing,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, logs, orders, path = losing.source, losing.logs, losing.orders, losing.path
    arguments = ["run", str(path), "--once", "--log-format", "json"]
    mirror = MirrorProcess(tmp_path, arguments)
    assert mirror.wait() == 1
    told = [document["message"] for document in mirror.documents() if document["type"] == "event"]
    flow = f"{source}->B"
    assert any(
        line.startswith(f"{flow}: OFFSETS_DELETED: source offsets 3 to 11 of {logs}-0 (9 offsets)")
        and line.endswith("(continued at offset 12)")
        for line in told
    ), told
    assert any(line.startswith(f"{flow}: TOPIC_RECREATED: topic {orders} was") for line in told)
    assert f"{orders}-0: TOPIC_RECREATED" in mirror.text()
    (summary,) = [one for one in mirror.documents() if one["type"] == "summary"]
    assert summary["errors"]["OFFSETS_DELETED"] == summary["errors"]["TOPIC_RECREATED"] == 1
    values = [record.value for record in consume_all(cluster_b, f"{source}.{logs}")]
    assert values == [b"%d" % n for n in range(12, 20)]
    assert consume_all(cluster_b, f"{source}.{orders}") == []

    assert main(["gaps", str(path), "--format", "json"]) == 0
    found = {gap["topic"]: gap for gap in json.loads(capsys.readouterr().out)["gaps"]}
    assert (found[logs]["action"], found[orders]["action"]) == ("continued", "stopped")
    assert (found[logs]["first_offset"], found[logs]["last_offset"]) == (3, 11)
    assert (found[logs]["count"], found[logs]["resumed_at"]) == (9, 12)
    assert main(["gaps", str(path), "--since", "1h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[2] for line in lines[1:]} == {logs, orders}
    assert main(["history", str(path), "--format", "json"]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    kinds = {(one["kind"], one["code"]): one for one in events}
    assert "source offsets 3 to 11" in kinds["gap", "OFFSETS_DELETED"]["text"]
    assert {("gap", "TOPIC_RECREATED"), ("halt", "TOPIC_RECREATED")} <= kinds.keys(), events
    assert events[0]["kind"] == "start"
    assert main(["gaps", str(path), "--since", "2100-01-01"]) == 0
    assert capsys.readouterr().out == "no gaps\n"


@pytest.mark.more
def test_the_metrics_count_each_loss(
    losing: Losing, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    mirror = MirrorProcess(tmp_path, ["run", str(losing.path)])
    try:
        wait_until(lambda: "metrics on http" in mirror.text(), "the address")
        found = re.search(r"metrics on (http://127\.0\.0\.1:\d+)/metrics", mirror.text())
        assert found is not None
        flow = {"source": losing.source, "target": "B"}

        def values() -> list[bytes | None]:
            records = consume_all(cluster_b, f"{losing.source}.{losing.logs}")
            return [record.value for record in records]

        def losses() -> dict[str, list[float]]:
            page = Scrape(found[1])
            counted = {
                code: page.all("sparkmirror_errors_total", code=code, **flow) for code in GAP_CODES
            }
            return {code: values for code, values in counted.items() if values}

        wanted = {"OFFSETS_DELETED": [1.0], "TOPIC_RECREATED": [1.0]}
        wait_until(lambda: losses() == wanted, "each loss is counted")
        wait_until(
            lambda: Scrape(found[1]).all("sparkmirror_halted_partitions", **flow) == [1.0],
            "the partition that stands still is counted",
        )
        # That the mirror goes on is no further loss.
        produce(cluster_a, losing.logs, [Sent(b"20")])
        wait_until(lambda: values() == [b"%d" % n for n in range(12, 21)], "the rest is mirrored")
        assert losses() == wanted
        assert mirror.drain()[0] == 0, mirror.text()
    finally:
        mirror.kill()
