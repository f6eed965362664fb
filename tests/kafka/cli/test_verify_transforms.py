"""``verify`` of topics with a transform: the SQL runs over the source, and the copy must match."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, asked, write_mm2
from tests.kafka.harness.support import Sent, create_topic, produce

CLEAN = "A->B.sparkmirror.transform.clean"
WHERE = "CAST(CAST(value AS STRING) AS INT) % 3 = 0"
SELECT = "concat('n', CAST(value AS STRING)) AS value"


def _file(
    directory: Path, a: KafkaCluster, b: KafkaCluster, name: str, select: str, bad: str
) -> Path:
    extra = {
        "A->B.sparkmirror.transforms": "clean, stamped",
        "A->B.sparkmirror.transform.stamped.topics": f"{name}[.]stamped",
        "A->B.sparkmirror.transform.stamped.where": "timestampType = 1",
        f"{CLEAN}.topics": f"{name}[.]orders",
        f"{CLEAN}.where": WHERE,
        f"{CLEAN}.select": select,
        "A->B.sparkmirror.on.bad.record": bad,
    }
    path = directory / f"{uuid.uuid4().hex[:8]}.properties"
    return write_mm2(path, a, b, f"{name}.*", extra)


def _verify(path: Path, code: int) -> list[dict[str, Any]]:
    command = ("verify", str(path), "--wait", "1", "--format", "json")
    out, _ = asked(path.parent, *command, code=code)
    (flow,) = json.loads(out)["flows"]
    found: list[dict[str, Any]] = flow["partitions"]
    return found


@pytest.mark.more
def test_a_copy_is_compared_with_what_the_transform_makes(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    name = f"verify-{uuid.uuid4().hex[:8]}"
    orders, plain, remote = f"{name}.orders", f"{name}.plain", f"A.{name}.orders"
    for topic in (orders, plain):
        create_topic(cluster_a, topic, 1)
        create = [Sent(b"%d" % n if n != 2_000 else b"x", b"k") for n in range(5_000)]
        produce(cluster_a, topic, create, compression="lz4", config={"linger.ms": 50})
    create_topic(cluster_a, f"{name}.stamped", config={"message.timestamp.type": "LogAppendTime"})
    produce(cluster_a, f"{name}.stamped", [Sent(b"%d" % n) for n in range(50)])
    path = _file(tmp_path, cluster_a, cluster_b, name, SELECT, "skip")
    mirror = MirrorProcess(
        tmp_path, ["run", str(path), "--once", "--work-dir", str(tmp_path / "work")]
    )
    assert mirror.wait() == 0, mirror.text()

    changed, raw, stamped = _verify(path, 0)
    kept = len([n for n in range(0, 5_000, 3) if n != 2_000])
    assert (changed["topic"], changed["source"]["records"]) == (orders, kept)
    assert changed["source"] == changed["target"]
    assert changed["remark"] == (
        "source records after the transform clean, without those on which it fails"
    )
    assert (raw["topic"], raw["source"]["records"], raw["remark"]) == (plain, 5_000, "")
    assert (stamped["source"]["records"], stamped["target"]["records"]) == (50, 50)

    # Other SQL, and a mirror that would have paused.
    other = _file(tmp_path, cluster_a, cluster_b, name, "upper(hex(value)) AS value", "skip")
    differing, *_ = _verify(other, 1)
    assert differing["difference"]["what"] == "source offset 0 and target offset 0 differ in value"
    pausing = _file(tmp_path, cluster_a, cluster_b, name, SELECT, "pause")
    stopped, *_ = _verify(pausing, 1)
    assert (stopped["difference"]["kind"], stopped["difference"]["source_offset"]) == (
        "failed", 2_000,
    )  # fmt: skip
    assert "[CAST_INVALID_INPUT]" in stopped["difference"]["what"]
    random = _file(tmp_path, cluster_a, cluster_b, name, "uuid() AS value", "skip")
    left_out, *_ = _verify(random, 1)
    assert left_out["difference"]["kind"] == "left out"
    assert "is not deterministic" in left_out["difference"]["what"]

    produce(cluster_b, remote, [Sent(b"n3", b"k", partition=0)])
    more, *_ = _verify(path, 1)
    assert (more["difference"]["kind"], more["difference"]["target_offset"]) == ("extra", kept)
