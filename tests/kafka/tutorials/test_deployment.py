"""Every command of the page on deployment, in its order, against two real clusters."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.pages import DOCS, Reader, blocks, mirror_ended
from tests.kafka.harness.support import Sent, consume_all, contents, create_topic, produce

PAGE = DOCS / "deployment.md"


@pytest.mark.long
def test_the_whole_page(cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    source, target = f"old{topic[-8:]}", f"new{topic[-8:]}"
    create_topic(cluster_a, topic, 3)
    produce(cluster_a, topic, [Sent(b"%d" % n, partition=n % 3) for n in range(300)])
    # Other tests use these clusters: aliases of its own keep the mirror's topics apart.
    instead = {
        "topics = orders": f"topics = {topic}",
        "old->new": f"{source}->{target}",
        "old.": f"{source}.",
        "new.": f"{target}.",
        "old, new": f"{source}, {target}",
    }
    reader = Reader(tmp_path, cluster_a, cluster_b, instead)
    (file,) = blocks(PAGE, "properties")
    (tmp_path / "mirror.properties").write_text(reader.adapted(file))
    with mirror_ended(tmp_path):
        told = {block: reader.run(block) for block in blocks(PAGE, "sh")}

    def said(words: str) -> str:
        return next(text for block, text in told.items() if words in block)

    assert "0 failed" in said("doctor")
    assert f"{source}.{topic}" in said("plan")
    assert f"{source}->{target}" in said("status")
    assert '"type": "summary"' in reader.log() or '"type":"summary"' in reader.log()
    assert contents(consume_all(cluster_b, f"{source}.{topic}")) == contents(
        consume_all(cluster_a, topic)
    )
