"""A Python callable per record in whole mirrors of MirrorMaker 2's files."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, asked, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce

_KEY = "A->B.sparkmirror.transform"
_FIRST_MS = int(time.time() * 1000) - 3_600_000  # what is older than a week, brokers delete
_CODE = """
from dataclasses import replace

from sparkmirror.model import SourceRecord, TargetRecord


class Mask:
    def __init__(self, text):
        self.text = text.encode()

    def __call__(self, record: SourceRecord) -> TargetRecord | None:
        number = int(record.value)  # fails on text
        if number % 3 == 0:
            return None
        return replace(record.to_target(), value=self.text + record.value)
"""


@pytest.fixture
def name() -> str:
    return f"handlers-{uuid.uuid4().hex[:8]}"


def _asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--format", "json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def _tried(directory: Path, modules: dict[str, str], *arguments: str) -> Any:
    out, _ = asked(directory, *arguments, "--format", "json", environment=modules)
    return json.loads(out)


@pytest.mark.more
def test_a_handler_beside_sql_and_raw_topics(
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exactly-once: masked, filtered and dead letters; positions are past all of them."""
    orders, plain, upper = f"{name}.orders", f"{name}.plain", f"{name}.upper"
    values = [b"%d" % n if n not in (40, 42) else b"x%d" % n for n in range(1_000)]
    sent = [
        Sent(one, b"k%d" % (n % 7), (("h", b"%d" % n),), _FIRST_MS + n, n % 2)
        for n, one in enumerate(values)
    ]
    for topic in (orders, plain, upper):
        create_topic(cluster_a, topic, 2)
        produce(cluster_a, topic, sent, compression="lz4")
    (tmp_path / "masks.py").write_text(_CODE)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*",
        {
            "A->B.sparkmirror.transforms": "mask, upper",
            f"{_KEY}.mask.topics": f"{name}[.]orders",
            f"{_KEY}.mask.handler": "masks:Mask",
            f"{_KEY}.mask.args": "masked-",
            f"{_KEY}.upper.topics": f"{name}[.]upper",
            f"{_KEY}.upper.select": "concat('U', CAST(value AS STRING)) AS value",
            "A->B.sparkmirror.on.bad.record": "dead-letter",
        },
    )  # fmt: skip
    modules = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = ["run", str(path), "--once", "--exactly-once", "--work-dir", str(tmp_path / "work")]
    mirror = MirrorProcess(tmp_path, command, environment=modules)
    assert mirror.wait() == 0, mirror.text()

    got = consume_all(cluster_b, f"A.{orders}")
    kept = [(n, one) for n, one in enumerate(values) if one.isdigit() and n % 3]
    for partition in (0, 1):
        assert [
            (one.key, one.value, one.headers, one.timestamp_ms)
            for one in got
            if one.partition == partition
        ] == [
            (b"k%d" % (n % 7), b"masked-" + one, (("h", b"%d" % n),), _FIRST_MS + n)
            for n, one in kept
            if n % 2 == partition
        ]
    assert sorted(one.value or b"" for one in consume_all(cluster_b, f"A.{plain}")) == sorted(
        values
    )
    assert len(consume_all(cluster_b, f"A.{upper}")) == 1_000
    letters = consume_all(cluster_b, f"A.{orders}.dead-letter")
    assert [one.value for one in letters] == [b"x40", b"x42"]
    reason = dict(letters[0].headers)["sparkmirror.error.reason"] or b""
    assert b"the handler of the transform mask failed on these records" in reason
    assert b"ValueError in line" in reason
    assert b"x40" not in reason
    (flow,) = _asked(capsys, "lag", str(path))["flows"]
    assert {one["records"] for one in flow["partitions"]} == {0}

    # Other commands call it, too.
    found = _tried(tmp_path, modules, "verify", str(path), "--wait", "1")["flows"][0]["partitions"]
    changed = [one for one in found if one["topic"] == orders]
    assert sum(one["source"]["records"] for one in changed) == len(kept)
    assert [one["source"] for one in changed] == [one["target"] for one in changed]
    tried = _tried(
        tmp_path, modules, "transform", "try", str(path), "--flow", "A->B", "--topic", orders,
        "--from", "earliest", "--limit", "20",
    )  # fmt: skip
    assert (tried["read"], tried["failed"]) == (20, 0)
    assert 0 < tried["filtered"] < 20
