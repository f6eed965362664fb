"""What a run that was killed leaves in the temporary directory is gone after the next one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    produce,
    topic_names,
    wait_until_equal,
)
from tests.patience import patience


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory with a short path, as the system's is."""
    path = Path(tempfile.mkdtemp(prefix="sm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.long
def test_nothing_is_left_of_a_killed_run_after_the_next(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, temporary: Path
) -> None:
    name = f"killed-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name)
    produce(cluster_a, name, [Sent(b"one")])
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, name)
    environment = {"TMPDIR": str(temporary)}
    mirror = MirrorProcess(tmp_path, ["run", str(path)], environment=environment)
    try:
        wait_until(lambda: f"A.{name}" in topic_names(cluster_b), "the remote topic")
        wait_until_equal(cluster_a, name, cluster_b, f"A.{name}")
        driver = psutil.Process(mirror.process.pid)
        doomed = [driver, *driver.children(recursive=True)]
        # First they all stand still: none is to notice the end of another one and tidy up.
        for end in (psutil.Process.suspend, psutil.Process.kill):
            for process in doomed:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
        mirror.process.wait(patience())
    finally:
        mirror.kill()
    (own,) = temporary.iterdir()
    assert own.name == f"sparkmirror-{os.getuid()}"
    (run,) = own.iterdir()
    assert [each for each in run.iterdir() if each.name.startswith(("spark-", "artifacts-"))]

    produce(cluster_a, name, [Sent(b"two")])
    mirror = MirrorProcess(tmp_path, ["run", str(path), "--once"], environment=environment)
    assert mirror.wait() == 0, mirror.text()
    # "one" may have come again: the first run was killed before it had committed a position.
    assert {record.value for record in consume_all(cluster_b, f"A.{name}")} == {b"one", b"two"}
    assert list(temporary.iterdir()) == []
