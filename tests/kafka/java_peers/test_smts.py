"""One file with single message transforms: Java's MirrorMaker 2 and sparkmirror write the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkmirror.internal_topics.mm2_records import decode_offset_sync
from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.kafka.harness.java_peer import java_mirror_maker
from tests.kafka.harness.mirror_process import MirrorProcess, asked, wait_until
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    contents,
    create_topic,
    produce,
    topic_names,
)

pytestmark = pytest.mark.interop

FLUSH_MS = 1_000
SOURCES = {"orders": 2, "audit": 1, "plain": 1, "hidden": 1}
CODECS = ("lz4", "none", "zstd", "gzip")
REMOTE = {
    "orders": "moved.orders",
    "audit": "moved.audit",
    "plain": "A.plain",
    "hidden": "A.hidden",
}

_FILE = rf"""
clusters=A,B
A.bootstrap.servers={{a}}
B.bootstrap.servers={{b}}
A->B.enabled=true
A->B.topics={",".join(SOURCES)}
tasks.max=2
replication.factor=1
offset.storage.replication.factor=1
config.storage.replication.factor=1
status.storage.replication.factor=1
offset-syncs.topic.replication.factor=1
refresh.topics.interval.seconds=1
B.offset.flush.interval.ms={FLUSH_MS}
sync.topic.acls.enabled=false
emit.checkpoints.enabled=false
emit.heartbeats.enabled=false
A->B.transforms=drop,mark,mark-again,unmark,tombstones,tests,marked,hide,route,short,late
A->B.transforms.drop.type=org.apache.kafka.connect.transforms.DropHeaders
A->B.transforms.drop.headers=secret, pii
A->B.transforms.drop.predicate=orders
A->B.transforms.mark.type=InsertHeader
A->B.transforms.mark.header=mirrored
A->B.transforms.mark.value.literal=null
A->B.transforms.mark.predicate=tombstone
A->B.transforms.mark.negate=true
A->B.transforms.mark-again.type=org.apache.kafka.connect.transforms.InsertHeader
A->B.transforms.mark-again.header=pii
A->B.transforms.mark-again.value.literal=null
A->B.transforms.mark-again.predicate=kept
A->B.transforms.unmark.type=DropHeaders
A->B.transforms.unmark.headers=mirrored,no-such-header
A->B.transforms.unmark.predicate=unsafe
A->B.transforms.tombstones.type=Filter
A->B.transforms.tombstones.predicate=tombstone
A->B.transforms.tests.type=org.apache.kafka.connect.transforms.Filter
A->B.transforms.tests.predicate=test
A->B.transforms.marked.type=Filter
A->B.transforms.marked.predicate=marked
A->B.transforms.marked.negate=true
A->B.transforms.hide.type=Filter
A->B.transforms.hide.predicate=hidden
A->B.transforms.route.type=org.apache.kafka.connect.transforms.RegexRouter
A->B.transforms.route.regex=(A)\\.(?<kind>orders|audit)(-old)?
A->B.transforms.route.replacement=${{{{kind}}}}$3-of-$1
A->B.transforms.short.type=RegexRouter
A->B.transforms.short.regex=([a-z]+)-of-A
A->B.transforms.short.replacement=moved.$1
A->B.transforms.late.type=DropHeaders
A->B.transforms.late.headers=mirrored
A->B.transforms.late.predicate=moved
A->B.transforms.late.negate=true
A->B.predicates=orders,tombstone,test,kept,unsafe,marked,hidden,moved
A->B.predicates.orders.type=org.apache.kafka.connect.transforms.predicates.TopicNameMatches
A->B.predicates.orders.pattern=A[.]ord.*
A->B.predicates.tombstone.type=RecordIsTombstone
A->B.predicates.test.type=org.apache.kafka.connect.transforms.predicates.HasHeaderKey
A->B.predicates.test.name=test
A->B.predicates.kept.type=HasHeaderKey
A->B.predicates.kept.name=kept
A->B.predicates.unsafe.type=HasHeaderKey
A->B.predicates.unsafe.name=unsafe
A->B.predicates.marked.type=HasHeaderKey
A->B.predicates.marked.name=mirrored
A->B.predicates.hidden.type=TopicNameMatches
A->B.predicates.hidden.pattern=A.hidden
A->B.predicates.moved.type=TopicNameMatches
A->B.predicates.moved.pattern=moved[.].*
"""


@pytest.fixture
def three() -> Iterator[tuple[KafkaCluster, KafkaCluster, KafkaCluster]]:
    """A source, and a target for each of the mirrors."""
    made = [KafkaCluster(name, heap="300m") for name in ("A", "B", "C")]
    start_all(*made)
    try:
        yield made[0], made[1], made[2]
    finally:
        for one in made:
            one.stop()


def _sent(first: int, count: int, partitions: int) -> list[Sent]:
    """Records with and without keys, values and headers; some have two headers of one name."""
    made = []
    for n in range(first, first + count):
        headers: tuple[tuple[str, bytes | None], ...] = (("kept", b"%d" % n), ("pii", None))
        headers += (("secret", b"s"), ("pii", b"")) if n % 2 else ()
        headers += (("test", b""),) if n % 7 == 0 else ()
        # In front of the one that is inserted.
        headers = (("mirrored", b"before"), *headers) if n % 11 == 0 else headers
        headers += (("unsafe", None),) if n % 13 == 0 else ()
        value = None if n % 5 == 0 else b"value-%d" % n if n % 4 else b""
        key = None if n % 8 == 0 else b"k%d" % (n % 9) if n % 10 else b""
        made.append(Sent(value, key, headers if n % 3 else (), 0, n % partitions))
    return made


def _produce(source: KafkaCluster, first: int, count: int) -> int:
    """Records to all topics; returns how many of them arrive at each of those that are shown."""
    for (topic, partitions), codec in zip(SOURCES.items(), CODECS, strict=True):
        produce(source, topic, _sent(first, count, partitions), compression=codec)
    return sum(
        one.value is not None and not {"test", "unsafe"} & {key for key, _ in one.headers}
        for one in _sent(first, count, 1)
    )


def _arrived(target: KafkaCluster, count: int) -> bool:
    names = topic_names(target)
    return all(
        REMOTE[topic] in names and len(consume_all(target, REMOTE[topic])) >= count
        for topic in ("orders", "audit", "plain")
    )


def _synced(source: KafkaCluster) -> set[str]:
    """The topics of which there are offset syncs."""
    records = consume_all(source, "mm2-offset-syncs.B.internal")
    syncs = (decode_offset_sync(one.key, one.value) for one in records)
    return {one[0].topic for one in syncs if one is not None}


def _once(directory: Path, file: Path, *options: str) -> None:
    mirror = MirrorProcess(directory, ["run", str(file), "--once", *options])
    assert mirror.wait() == 0, mirror.text()


def test_both_write_the_same_records_and_take_over_from_each_other(
    three: tuple[KafkaCluster, KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    source, theirs, ours = three
    for topic, partitions in SOURCES.items():
        create_topic(source, topic, partitions)
        # Java's source connector creates topics with the policy's names only.
        if REMOTE[topic].startswith("moved"):
            create_topic(theirs, REMOTE[topic], partitions)
    files = {}
    for target in (theirs, ours):
        files[target.name] = tmp_path / f"{target.name}.properties"
        text = _FILE.format(a=source.bootstrap_servers, b=target.bootstrap_servers)
        files[target.name].write_text(text)
    count = _produce(source, 0, 400)

    with java_mirror_maker(files["B"], tmp_path / "java-1.log"):
        wait_until(lambda: _arrived(theirs, count), "what Java mirrors")
        time.sleep(3 * FLUSH_MS / 1000)
    # Java writes offset syncs of renamed topics, which say nothing of the new name.
    assert _synced(source) == {"orders", "audit", "plain"}
    (tmp_path / "ours").mkdir()
    _once(tmp_path / "ours", files["C"], "--exactly-once")

    for topic, remote in REMOTE.items():
        java, found = consume_all(theirs, remote), consume_all(ours, remote)
        assert contents(found) == contents(java), topic
        assert len(found) == (0 if topic == "hidden" else count), topic
    # Both copies are what the SMTs make of the source, says the command, too.
    for each in ("B", "C"):
        told, _ = asked(tmp_path, "verify", str(files[each]), "--wait", "1", "--format", "json")
        partitions = json.loads(told)["flows"][0]["partitions"]
        assert sum(one["target"]["records"] for one in partitions) == 3 * count
    assert {"A.orders", "A.audit"} <= set(topic_names(theirs))
    assert consume_all(theirs, "A.orders") == []
    assert not {"A.orders", "A.audit"} & set(topic_names(ours))

    # Positions are those of the source's partitions, whoever wrote them.
    (tmp_path / "after").mkdir()
    _once(tmp_path / "after", files["B"])
    assert [len(consume_all(theirs, REMOTE[one])) for one in ("orders", "plain")] == [count, count]
    count += _produce(source, 400, 100)
    (tmp_path / "more").mkdir()
    _once(tmp_path / "more", files["B"])
    assert len(consume_all(theirs, "moved.orders")) == count
    count += _produce(source, 500, 100)
    with java_mirror_maker(files["B"], tmp_path / "java-2.log"):
        wait_until(lambda: _arrived(theirs, count), "what Java adds")
        time.sleep(2 * FLUSH_MS / 1000)
    for topic in ("orders", "audit", "plain"):
        assert len(consume_all(theirs, REMOTE[topic])) == count, topic
