"""What the target refuses, partition by partition: the rest goes on, and nothing is lost unseen."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from sparkmirror.control.topics.dead_letters import plan_dead_letter_topics
from sparkmirror.errors import TargetLost
from sparkmirror.names.replication_policy import dead_letter_topic
from sparkmirror.progress import Halt
from sparkmirror.settings import FaultSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.fetch import partition_state
from tests.kafka.clusters.faults import Direct, SlotRun
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Received,
    Sent,
    admin,
    consume_all,
    create_topic,
    delete_topic,
    produce,
    set_topic_config,
)

SKIP = FaultSettings(bad_record="skip")
DEAD_LETTER = FaultSettings(bad_record="dead-letter")
ONE_BATCH = {"linger.ms": 60_000}  # until the flush
HOUR_MS = 3_600_000
COMPACT = {"cleanup.policy": "compact"}
NARROW = {
    "cleanup.policy": "compact",
    "max.message.bytes": "5000",
    "message.timestamp.before.max.ms": str(24 * HOUR_MS),
}


@pytest.fixture
def source(cluster_a: KafkaCluster) -> Direct:
    return Direct(cluster_a)


@pytest.fixture
def target(cluster_b: KafkaCluster) -> Direct:
    return Direct(cluster_b)


def _values(slot: SlotRun, partition: int = 0) -> list[bytes | None]:
    found = consume_all(slot.target.kafka, slot.remote)
    return [record.value for record in found if record.partition == partition]


def _halted(slot: SlotRun, partition: int = 0) -> str:
    found: list[Halt] = []

    def shown() -> bool:
        # While it is tried again, there is no halt for a moment.
        found.extend(one for number, one in slot.halts().items() if number == partition)
        return bool(found)

    slot.until(shown, "a halt is reported")
    halt = found[0]
    assert halt.retriable
    return f"{halt.code}: {halt.reason}"


def _good(first: int, count: int, partition: int = 0) -> list[Sent]:
    numbers = range(first, first + count)
    return [Sent(b"good %d" % n, b"k%d" % n, partition=partition) for n in numbers]


def _are(slot: SlotRun, wanted: list[Sent], partition: int = 0) -> None:
    values = [sent.value for sent in wanted]
    slot.until(lambda: _values(slot, partition) == values, f"{partition} has {values}")


# -- pause -------------------------------------------------------------------------------------


def test_a_refused_record_pauses_its_partition_until_the_target_takes_it(
    source, target, topic_name
):
    create_topic(source.kafka, topic_name, 2)
    with SlotRun(source, target, topic_name, 2) as slot:
        set_topic_config(target.kafka, slot.remote, **{"cleanup.policy": "compact"})
        bad = [*_good(0, 3), Sent(b"no key"), *_good(3, 3)]
        produce(source.kafka, topic_name, bad, config=ONE_BATCH)
        told = _halted(slot)
        assert told.startswith("INVALID_RECORD: the target refuses batches for")
        assert "record 3:" in told
        produce(source.kafka, topic_name, _good(0, 50, 1) + _good(6, 3))
        _are(slot, _good(0, 50, 1), 1)
        assert slot.errors()["INVALID_RECORD"] >= 1
        assert _values(slot) == []
        set_topic_config(target.kafka, slot.remote, **{"cleanup.policy": "delete"})
        _are(slot, bad + _good(6, 3))  # in the same epoch, in order, none twice
        slot.until(lambda: not slot.halts(), "no halt is reported any more")
    assert slot.gaps() == []


@contextlib.contextmanager
def _denied(cluster: KafkaCluster, topic: str, operation: AclOperation) -> Iterator[None]:
    binding = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS",
        "*", operation, AclPermissionType.DENY,
    )  # fmt: skip
    pattern = AclBindingFilter(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, None, None,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    client = admin(cluster)

    def known() -> int:
        """How many ACLs the broker has heard of; the controller answers before."""
        return len(client.describe_acls(pattern).result(TIMEOUT_S))

    for future in client.create_acls([binding]).values():
        future.result(TIMEOUT_S)
    wait_until(lambda: known() == 1, "the ACL")
    try:
        yield
    finally:
        for removed in client.delete_acls([pattern]).values():
            removed.result(TIMEOUT_S)
        wait_until(lambda: known() == 0, "no ACL")


def test_a_target_that_forbids_one_topic(source, guarded, topic_name):
    create_topic(source.kafka, topic_name, 1)
    with SlotRun(source, Direct(guarded), topic_name) as slot:
        produce(source.kafka, topic_name, _good(0, 3))
        _are(slot, _good(0, 3))
        with _denied(guarded, slot.remote, AclOperation.WRITE):
            produce(source.kafka, topic_name, _good(3, 3))
            assert _halted(slot).startswith("TOPIC_AUTHORIZATION_FAILED")
        _are(slot, _good(0, 6))


def test_a_source_that_forbids_one_topic(guarded, target, topic_name, monkeypatch):
    monkeypatch.setattr(partition_state, "_DENIED_RETRY_S", 3.0)  # half a minute otherwise
    create_topic(guarded, topic_name, 1)
    with SlotRun(Direct(guarded), target, topic_name) as slot:
        produce(guarded, topic_name, _good(0, 3))
        _are(slot, _good(0, 3))
        with _denied(guarded, topic_name, AclOperation.READ):
            told = _halted(slot)
            assert told.startswith("TOPIC_AUTHORIZATION_FAILED")
            assert told.endswith(f"--operation Read --topic {topic_name}")
        produce(guarded, topic_name, _good(3, 3))
        _are(slot, _good(0, 6))
        slot.until(lambda: not slot.halts(), "no halt is reported any more")


def test_a_target_topic_that_is_deleted_and_comes_back(source, target, topic_name):
    create_topic(source.kafka, topic_name, 1)
    with SlotRun(source, target, topic_name) as slot:
        produce(source.kafka, topic_name, _good(0, 3))
        _are(slot, _good(0, 3))
        delete_topic(target.kafka, slot.remote)
        produce(source.kafka, topic_name, _good(3, 3))
        told = _halted(slot)
        assert told.startswith("UNKNOWN_TOPIC_OR_PARTITION: the target accepts no batches for")
        create_topic(target.kafka, slot.remote, 1)
        # What it had before is mirrored again, by a new attempt of the task.
        wanted = [sent.value for sent in _good(0, 6)]
        wait_until(lambda: _values(slot) == wanted, "all records")
        wait_until(lambda: not slot.halts(), "no halt is reported any more")
    assert [type(error) for error in slot.failures] == [TargetLost]


def test_exactly_once_ends_without_a_target_topic_that_is_deleted(source, target, topic_name):
    """The coordinator has no place for its position, and answers so as often as it is asked."""
    create_topic(source.kafka, topic_name, 1)
    with SlotRun(source, target, topic_name, exactly_once=True) as slot:
        produce(source.kafka, topic_name, _good(0, 3))
        _are(slot, _good(0, 3))
        delete_topic(target.kafka, slot.remote)
        produce(source.kafka, topic_name, _good(3, 3))
        assert _halted(slot).startswith("UNKNOWN_TOPIC_OR_PARTITION: ")
        slot.drain()
    # The partition is tried again now and then. If the epoch ends meanwhile, that attempt must not
    # write under a new identity; Spark's next one finds that there is nothing left to do.
    assert {str(one).partition("\n")[0] for one in slot.failures} <= {
        f"flow {slot.flow.name}: the slot's plan is outdated."
    }


def test_damage_at_rest_at_the_source_pauses_until_it_is_mended(source, target, topic_name):
    create_topic(source.kafka, topic_name, 2)
    mark = b"this one is hit on the disk"
    one_by_one = {"batch.num.messages": 1}
    wanted = [Sent(b"before"), Sent(mark), Sent(b"after")]
    produce(source.kafka, topic_name, wanted, config=one_by_one)
    (path,) = source.kafka.data_path().glob(f"{topic_name}-0/*.log")
    at = path.read_bytes().index(mark)

    def write(byte: bytes) -> None:
        with path.open("r+b") as log:
            log.seek(at)
            log.write(byte)
            os.fsync(log.fileno())

    write(b"T")
    with SlotRun(source, target, topic_name, 2) as slot:
        assert "does not match its CRC-32C" in _halted(slot)
        produce(source.kafka, topic_name, _good(0, 3, 1))
        _are(slot, _good(0, 3, 1), 1)
        assert _values(slot) == [b"before"]
        write(b"t")
        _are(slot, wanted)


# -- skip and dead-letter ----------------------------------------------------------------------


def _mixed() -> tuple[list[Sent], list[Sent], list[Sent]]:
    """All, those that a narrow target takes, and those that it refuses."""
    old_ms = int(time.time() * 1000) - 48 * HOUR_MS
    headers = (("h", b"1"), ("h", None))
    bad = [
        Sent(b"no key 1", None, headers),
        Sent(b"no key 2"),
        Sent(b"old", b"old", timestamp_ms=old_ms),
        Sent(os.urandom(6_000), b"large"),
        Sent(None, None, headers),
    ]
    good = _good(0, 10)
    mixed = [*good[:3], bad[0], bad[1], *good[3:5], bad[2], good[5], bad[3], *good[6:], bad[4]]
    return mixed, good, bad


@pytest.mark.parametrize(
    ("compression", "exact"),
    [("none", False), pytest.param("zstd", False, marks=pytest.mark.long), ("zstd", True)],
)
def test_refused_records_are_skipped_and_written_down(
    source, target, topic_name, compression, exact
):
    create_topic(source.kafka, topic_name, 1, config={"max.message.bytes": "100000"})
    mixed, good, bad = _mixed()
    once = {"faults": SKIP, "exactly_once": exact}
    with SlotRun(source, target, topic_name, **once) as slot:
        set_topic_config(target.kafka, slot.remote, **NARROW)
        produce(source.kafka, topic_name, mixed, config=ONE_BATCH, compression=compression)
        produce(source.kafka, topic_name, _good(10, 5))
        _are(slot, good + _good(10, 5))
        slot.until(lambda: slot.errors().get("RECORD_SKIPPED") == 5, "five are counted")
        assert slot.halts() == {}
    offsets = [mixed.index(sent) for sent in bad]
    found = [(gap.first, gap.last) for gap in sorted(slot.gaps(), key=lambda gap: gap.first)]
    assert [n for first, last in found for n in range(first, (last or 0) + 1)] == offsets
    assert {(gap.kind, gap.action) for gap in slot.gaps()} == {("refused", "skipped")}
    codes = {gap.first: gap.code for gap in slot.gaps()}
    assert codes[offsets[3]] == "MESSAGE_TOO_LARGE"
    assert codes[offsets[4]] == "INVALID_RECORD"
    with SlotRun(source, target, topic_name, alias=slot.alias, **once) as slot:
        produce(source.kafka, topic_name, _good(15, 1))
        _are(slot, good + _good(10, 6))  # the position had moved on


def _letters(slot: SlotRun) -> list[Received]:
    return consume_all(slot.target.kafka, dead_letter_topic(slot.remote))


def _source_offset(letter: Received) -> int:
    return int(dict(letter.headers)["sparkmirror.source.offset"] or -1)


@pytest.mark.parametrize("exact", [pytest.param(False, marks=pytest.mark.long), True])
def test_refused_records_go_to_the_dead_letter_topic(source, target, topic_name, exact):
    create_topic(source.kafka, topic_name, 2, config={"max.message.bytes": "100000"})
    mixed, good, bad = _mixed()
    began_ms = int(time.time() * 1000)
    once = {"faults": DEAD_LETTER, "exactly_once": exact}
    with SlotRun(source, target, topic_name, 2, **once) as slot:
        set_topic_config(target.kafka, slot.remote, **NARROW)
        produce(source.kafka, topic_name, mixed, config=ONE_BATCH)
        produce(source.kafka, topic_name, _good(0, 3, 1))
        _are(slot, _good(0, 3, 1), 1)
        # Without the topic the partition waits: nothing is passed that is kept nowhere.
        told = _halted(slot)
        assert dead_letter_topic(slot.remote) in told
        (new,) = plan_dead_letter_topics({topic_name: slot.remote}, slot.flow)
        create_topic(target.kafka, new.name, 1, config=dict(new.configs))
        _are(slot, good)
        slot.until(lambda: len(_letters(slot)) == len(bad), "all letters are there")
        slot.until(lambda: not slot.halts(), "no halt is reported any more")
        slot.until(lambda: slot.errors().get("RECORD_DEAD_LETTERED") == len(bad), "all count")
    letters = sorted(_letters(slot), key=_source_offset)
    assert [(one.key, one.value) for one in letters] == [(one.key, one.value) for one in bad]
    for letter, sent in zip(letters, bad, strict=True):
        assert letter.headers[: len(sent.headers)] == sent.headers
        headers = {
            name: (value or b"").decode() for name, value in letter.headers[len(sent.headers) :]
        }
        assert headers["sparkmirror.source.cluster"] == slot.alias
        assert headers["sparkmirror.source.topic"] == topic_name
        assert headers["sparkmirror.source.partition"] == "0"
        assert headers["sparkmirror.source.offset"] == str(mixed.index(sent))
        assert headers["sparkmirror.error.code"] in {
            "INVALID_RECORD", "INVALID_TIMESTAMP", "MESSAGE_TOO_LARGE",
        }  # fmt: skip
        assert headers["sparkmirror.error.reason"]
        if sent.timestamp_ms:
            assert headers["sparkmirror.source.timestamp"] == str(sent.timestamp_ms)
        assert letter.timestamp_ms >= began_ms
    assert {gap.action for gap in slot.gaps()} == {"dead-letter"}
    assert sum(gap.count or 0 for gap in slot.gaps()) == len(bad)


# -- a broker that does not say which record it means ------------------------------------------


@pytest.mark.long
def test_a_target_before_2_4_is_asked_with_halves_of_the_batch(source, new_cluster, topic_name):
    """It refuses batches; which records are meant is found by cutting, and no other is left out."""
    old = Direct(new_cluster("old", version="2.3.1"))
    create_topic(source.kafka, topic_name, 1, config={"max.message.bytes": "100000"})
    good = _good(0, 40)
    long_ago_ms = int(time.time() * 1000) - 48 * HOUR_MS
    bad = [
        Sent(b"old 1", b"old 1", timestamp_ms=long_ago_ms),
        Sent(b"old 2", b"old 2", timestamp_ms=long_ago_ms),
        Sent(os.urandom(6_000), b"large"),
        Sent(b"old 3", b"old 3", timestamp_ms=long_ago_ms),
    ]
    mixed = [*good[:7], bad[0], *good[7:20], bad[1], bad[2], *good[20:], bad[3]]
    with SlotRun(source, old, topic_name, faults=DEAD_LETTER) as slot:
        narrow = {"max.message.bytes": "5000", "message.timestamp.difference.max.ms": str(HOUR_MS)}
        set_topic_config(old.kafka, slot.remote, **narrow)
        unbound = {"message.timestamp.type": "LogAppendTime"}
        create_topic(old.kafka, dead_letter_topic(slot.remote), 1, config=unbound)
        produce(source.kafka, topic_name, mixed, config=ONE_BATCH)
        _are(slot, good)
        slot.until(lambda: len(_letters(slot)) == len(bad), "all letters are there")
        produce(source.kafka, topic_name, _good(40, 5))
        _are(slot, good + _good(40, 5))
        slot.until(lambda: slot.errors().get("RECORD_DEAD_LETTERED") == len(bad), "all count")
        slot.until(lambda: not slot.halts(), "no halt is reported")
    letters = sorted(_letters(slot), key=_source_offset)
    assert [letter.value for letter in letters] == [sent.value for sent in bad]
    assert [_source_offset(letter) for letter in letters] == [mixed.index(sent) for sent in bad]
    codes = [dict(letter.headers)["sparkmirror.error.code"] for letter in letters]
    late, large = b"INVALID_TIMESTAMP", b"MESSAGE_TOO_LARGE"
    assert codes == [late, late, large, late]
