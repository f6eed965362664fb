"""Routing of records, against a model that works record by record."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row
from sparkmirror.data.transform import routing
from sparkmirror.data.transform.pack import Packed
from sparkmirror.data.transform.routing import Create, Router, TargetTopics
from sparkmirror.errors import Denied, Fenced, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import split
from sparkmirror.records.key_columns import scan
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import FaultSettings, FlowSettings, TopicSettings
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.cluster.error_codes import (
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tests.murmur2 import murmur2
from tests.unit.data.transform.test_transforms import FAILED, FLOW, Plan, Row, _through

ROUTED = replace(
    FLOW,
    target=replace(FLOW.target, alias="B"),
    topics=TopicSettings(include=("orders", "carts")),
    transforms=(TransformSettings("clean", ("orders",), "true", "x AS topic", routes=True),),
)
STRING, INT = ("topic", pa.string()), ("partition", pa.int32())
COUNTS = {"A.orders": 3, "eu": 2, "us": 5}


class Topics:
    """The target's topics."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.grown: dict[str, int] = {}
        self.fails = ""

    def partitions(self, topic: str, *, again: bool = False) -> int:
        if topic == self.fails:
            raise Unreachable("the target hangs.", where="cluster B")
        if again:
            self.counts |= self.grown
        return self.counts.get(topic, 0)

    def await_new(self, topics: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        pass


def _router(flow: FlowSettings, topics: Topics) -> Router:
    return Router(flow, cast(TargetTopics, topics))


def _packed(
    records: list[Record],
    plan: Plan,
    *replaced: tuple[str, pa.DataType],
    flow: FlowSettings = ROUTED,
    topics: Topics | None = None,
    partition: int = 0,
    codec: int = 0,
    router: Router | None = None,
) -> list[Packed]:
    data = encode_batch(records, codec=codec)
    first, end = records[0].offset, records[-1].offset + 1
    chunk = Chunk(
        *("orders", partition, "A.orders", first, end, len(records)),
        *(max(one.timestamp for one in records), 0, len(data)),
    )
    router = router or _router(flow, topics or Topics(dict(COUNTS)))
    rows = [build_row([chunk], memoryview(b""), [[data]]), FLUSH]
    return cast("list[Packed]", _through(rows, plan, *replaced, flow=flow, router=router))


def _arrived(packed: list[Packed]) -> dict[tuple[str, int], list[tuple[int, Record]]]:
    """Records by target partition, in the order in which they are produced, with source offsets."""
    found = defaultdict(list)
    for one in packed:
        assert one.sources is not None
        data, index = one.records, 0
        cuts = split(data)
        assert len(cuts) == len(one.chunk.targets or ())
        for (start, end), target in zip(cuts, one.chunk.targets or (), strict=True):
            for record in decode_records(data[start:end]):
                assert record.offset == index
                found[target[0], target[1]].append((int(one.sources[index]), record))
                index += 1
        assert index == one.chunk.record_count == len(one.sources)
    return found


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(8, 25))]
)
def test_records_go_where_a_model_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    limit = rng.choice([50, 700, 1 << 20])
    monkeypatch.setattr("sparkmirror.data.transform.pack._ROUTED_BYTES_MAX", limit)
    records = [
        Record(100 + n, 1_000 + n, b"key-%d" % rng.randrange(20), b"v%d" % n)
        for n in range(rng.randrange(1, 400))
    ]
    results: dict[int, Any] = {}
    wanted: dict[tuple[str, int], list[tuple[int, bytes | None]]] = defaultdict(list)
    failed = []
    for one in records:
        topic = rng.choice(["eu", "us", None, "eu", "missing", "no name", "A.carts"])
        number = rng.choice([0, 1, 2, None, 4, -1])
        key = rng.choice([one.key, b"new", b""])
        filtered, broken = rng.random() < 0.2, rng.random() < 0.1
        results[one.offset] = {"topic": topic, "partition": number, "key": key}
        if broken:
            results[one.offset] = FAILED
            failed.append(one.offset)
        elif filtered:
            results[one.offset] = None
        else:
            name = topic or "A.orders"
            count = COUNTS.get(name, 0)
            if number is None and count:
                number = (murmur2(key or b"") & 0x7FFFFFFF) % count
            if count and number is not None and 0 <= number < count:
                wanted[name, number].append((one.offset, key))
            else:
                failed.append(one.offset)
    flow = replace(ROUTED, faults=FaultSettings(bad_record="skip"))

    def plan(row: Row) -> Any:
        return results[row["offset"]]

    packed = _packed(records, plan, STRING, INT, ("key", pa.binary()), flow=flow)
    arrived = _arrived(packed)
    assert {
        tp: [(offset, record.key) for offset, record in found] for tp, found in arrived.items()
    } == wanted
    # Positions follow one another, and each gap record belongs to the chunk that passes it.
    position = records[0].offset
    told = []
    for part in packed:
        assert part.chunk.base_offset == position
        position = part.chunk.next_offset
        inside = [one.offset for each in part.failed for one in each.records]
        assert all(part.chunk.base_offset <= one < position for one in inside)
        if part.sources is not None and len(part.sources):
            assert part.chunk.base_offset <= min(part.sources) <= max(part.sources) < position
        told += inside
    assert position == records[-1].offset + 1
    assert sorted(told) == failed


def _records(count: int) -> list[Record]:
    return [Record(n, 1_000 + n, b"k%d" % n, b"v%d" % n) for n in range(count)]


def test_what_the_sql_does_not_name_is_kept() -> None:
    (packed,) = _packed(_records(4), lambda _: {"topic": "us"}, STRING, partition=4, codec=3)
    assert packed.chunk.targets == [["us", 4]]
    assert [record for _, record in _arrived([packed])["us", 4]] == _records(4)
    (packed,) = _packed(_records(4), lambda _: {"partition": 2}, INT)
    assert packed.chunk.targets == [["A.orders", 2]]


def test_records_without_a_key_stay_in_one_partition_for_a_while() -> None:
    records = [replace(one, key=None) for one in _records(50)]
    (packed,) = _packed(records, lambda _: {"topic": "us", "partition": None}, STRING, INT)
    (((topic, _), found),) = _arrived([packed]).items()
    assert (topic, len(found)) == ("us", 50)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"topic": "none"}, "the target has no topic 'none': create it with at least 1 partitions"),
        ({"topic": "eu", "partition": 2}, "topic 'eu' has 2 partitions, and no partition 2"),
        ({"topic": "eu", "partition": -3}, "no partition -3"),
        ({"topic": "__x"}, "they cannot go to topic '__x': it is the name of an internal topic"),
        ({"topic": "A.carts"}, "A->B also mirrors source topic 'carts' under this name"),
    ],
)
def test_a_partition_stops_before_the_first_wrong_place(result: Row, said: str) -> None:
    def plan(row: Row) -> Any:
        return {"topic": "us", "partition": 0} | (result if row["offset"] in (3, 5) else {})

    (packed,) = _packed(_records(9), plan, STRING, INT)
    assert packed.halt is not None
    assert said in packed.halt.reason
    assert "the transform clean routes these records wrongly" in packed.halt.reason
    assert "first at source offset 3." in packed.halt.reason
    assert (packed.chunk.next_offset, packed.chunk.record_count, packed.failed) == (3, 3, ())


def test_bytes_that_are_no_text_are_no_topic() -> None:
    """Spark casts any bytes to a string."""
    count = 3
    offsets = pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    names = pa.Array.from_buffers(
        pa.string(), count, [None, offsets, pa.py_buffer(b"eu\xff\xfeus")]
    )
    records = scan(memoryview(encode_batch(_records(count), codec=0)))
    chunk = Chunk("orders", 1, "A.orders", 0, count, count, 1, 0, 1)
    routed = _router(ROUTED, Topics(dict(COUNTS))).route(chunk, records, names, None)
    (fault,) = routed.faults
    assert "topic names have only letters" in fault.reason
    assert fault.rows.tolist() == [1]
    places = [None if one < 0 else routed.targets[one] for one in routed.destination.tolist()]
    assert places == [TopicPartition("eu", 1), None, TopicPartition("us", 1)]


class Target:
    """Metadata of the target; ``codes``: what a request for a topic gets before it is known."""

    def __init__(self, *codes: int) -> None:
        self.client = replace(FLOW.target, retry_backoff_ms=1)
        self.leaders: dict[TopicPartition, object] = {}
        self.leaderless: dict[TopicPartition, int] = {}
        self.topic_errors: dict[str, int] = {}
        self.asked = 0
        self._codes = list(codes)

    def refresh(self, wanted: set[str]) -> None:
        self.asked += 1
        (topic,) = wanted
        code = self._codes.pop(0) if self._codes else 0
        if code == -1:
            raise Unreachable("nobody answers.", where="cluster B")
        self.topic_errors = {topic: code} if code else {}
        if not code:
            self.leaders = {TopicPartition(topic, 0): None, TopicPartition("other", 9): None}
            self.leaderless = {TopicPartition(topic, 2): 5}


def _topics(monkeypatch: pytest.MonkeyPatch, *codes: int) -> tuple[TargetTopics, Target]:
    target = Target(*codes)
    monkeypatch.setattr(routing, "ClusterConnections", lambda _: target)
    return TargetTopics(ROUTED), target


def test_a_count_comes_from_metadata_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, target = _topics(monkeypatch, -1, LEADER_NOT_AVAILABLE)
    assert [topics.partitions("eu") for _ in range(5)] == [3] * 5
    assert target.asked == 3


def test_a_missing_topic_is_asked_for_again_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, target = _topics(monkeypatch, UNKNOWN_TOPIC_OR_PARTITION)
    assert [topics.partitions("eu") for _ in range(5)] == [0] * 5
    assert target.asked == 1
    monkeypatch.setattr(routing, "_ASK_AGAIN_S", 0.0)
    assert topics.partitions("eu") == 3


def test_a_topic_that_may_have_grown_is_asked_for_again_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics, target = _topics(monkeypatch)
    assert [topics.partitions("eu", again=True) for _ in range(5)] == [3] * 5
    assert target.asked == 1
    monkeypatch.setattr(routing, "_ASK_AGAIN_S", 0.0)
    assert (topics.partitions("eu"), target.asked) == (3, 1)
    assert (topics.partitions("eu", again=True), target.asked) == (3, 2)


def test_a_topic_that_the_mirror_will_create_or_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(UNKNOWN_TOPIC_OR_PARTITION)
    monkeypatch.setattr(routing, "ClusterConnections", lambda _: target)
    topics = TargetTopics(ROUTED, {"A.orders": 6, "A.bills": 6, "A.carts": 1})
    assert [topics.partitions(name) for name in ("A.orders", "A.bills", "A.carts")] == [6, 6, 3]
    assert topics.partitions("eu") == 3


def test_a_target_that_hangs_is_waited_for_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_PATIENCE_S", 0.01)
    topics, _ = _topics(monkeypatch, *[-1] * 1_000)
    with pytest.raises(Unreachable, match="the number of partitions of eu is unknown"):
        topics.partitions("eu")


def test_a_topic_without_permission_says_what_to_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, _ = _topics(monkeypatch, TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(Denied) as caught:
        topics.partitions("eu")
    assert "Write" in caught.value.do
    assert "eu" in caught.value.do


def test_a_topic_that_has_grown() -> None:
    topics = Topics({"eu": 1})
    topics.grown = {"eu": 4}
    (packed,) = _packed(_records(2), lambda _: {"topic": "eu"}, STRING, topics=topics, partition=3)
    assert (packed.chunk.targets, packed.halt) == ([["eu", 3]], None)


@pytest.mark.parametrize("policy", ["pause", "skip"])
def test_a_target_that_does_not_answer_is_no_fault_of_a_record(policy: str) -> None:
    topics = Topics(dict(COUNTS))
    topics.fails = "us"
    flow = replace(ROUTED, faults=FaultSettings(bad_record=policy))

    def plan(row: Row) -> Any:
        return {"topic": "us" if row["offset"] == 7 else "eu"}

    (packed,) = _packed(_records(9), plan, STRING, topics=topics, flow=flow)
    assert (packed.chunk.next_offset, packed.chunk.record_count, packed.failed) == (0, 0, ())
    assert packed.halt is not None
    assert (packed.halt.code, packed.halt.retriable) == ("UNREACHABLE", True)


@pytest.mark.parametrize("counts", [{}, {"A.orders": 1}])
@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("column", ["topic", "key"])
def test_a_remote_topic_that_is_not_as_it_should_be_is_no_fault_of_its_records(
    counts: dict[str, int], column: str, *, created: bool
) -> None:
    """The mirror creates and grows it, and these records wait, as those of raw topics do."""
    flow = replace(ROUTED, faults=FaultSettings(bad_record="skip"))
    topics = Topics(dict(counts))
    create: Create | None = (lambda _topic, _names: {}) if created else None
    router = Router(flow, cast(TargetTopics, topics), create)
    kind = pa.string() if column == "topic" else pa.binary()

    def packed() -> Packed:
        (made,) = _packed(
            *(_records(3), lambda _: {column: None}, (column, kind)),
            flow=flow,
            partition=1,
            router=router,
        )
        return made

    waits = packed()
    assert (waits.failed, waits.chunk.next_offset, waits.chunk.record_count) == ((), 0, 0)
    assert waits.halt is not None
    assert waits.halt.retriable
    lacks = "has 1 partitions, and no partition 1 yet" if counts else "is not there yet"
    assert f"orders-1: cluster B: the remote topic 'A.orders' {lacks}" in waits.halt.reason
    # The next attempt asks again.
    topics.grown = {"A.orders": 2}
    topics.counts |= {} if counts else {"A.orders": 1}
    goes_on = packed()
    assert (goes_on.halt, goes_on.chunk.targets, goes_on.failed) == (None, [["A.orders", 1]], ())


def test_a_partition_of_the_remote_topic_that_the_sql_chose_is_a_fault_of_the_record() -> None:
    flow = replace(ROUTED, faults=FaultSettings(bad_record="skip"))
    (packed,) = _packed(
        *(_records(3), lambda row: {"partition": row["offset"]}, INT),
        flow=flow,
        topics=Topics({"A.orders": 2}),
        partition=7,
    )
    assert (packed.halt, packed.chunk.next_offset, packed.chunk.record_count) == (None, 3, 2)
    assert [one.offset for each in packed.failed for one in each.records] == [2]


def test_a_null_partition_is_chosen_by_the_key_however_few_there_are() -> None:
    (packed,) = _packed(
        *(_records(3), lambda _: {"partition": None}, INT),
        topics=Topics({"A.orders": 1}),
        partition=7,
    )
    assert (packed.halt, packed.chunk.targets) == (None, [["A.orders", 0]])


def test_everything_is_filtered() -> None:
    (packed,) = _packed(_records(9), lambda _: None, STRING)
    assert (packed.chunk.next_offset, packed.chunk.size, packed.halt) == (9, 0, None)


def _created(topics: Topics, refused: dict[str, str], asked: list[Any]) -> Router:
    def create(topic: str, names: Any) -> dict[str, str]:
        asked.append((topic, list(names)))
        topics.counts |= {name: 2 for name in names if name not in refused}
        return {name: why for name, why in refused.items() if name in names}

    return Router(ROUTED, cast(TargetTopics, topics), create)


def _chunk(count: int) -> Chunk:
    return Chunk("orders", 1, "A.orders", 0, count, count, 1, 0, 1)


def test_missing_topics_are_created_before_their_records_are_routed() -> None:
    records = scan(memoryview(encode_batch(_records(6), codec=0)))
    names = pa.array(["new", "eu", "no name", None, "A.carts", "denied"])
    asked: list[Any] = []
    router = _created(Topics(dict(COUNTS)), {"denied": "no permission"}, asked)
    routed = router.route(_chunk(6), records, names, None)
    assert asked == [("orders", ["new", "denied"])], "wrong names are not asked for"
    assert [one.rows.tolist() for one in routed.faults] == [[2], [4], [5]]
    assert routed.faults[2].reason == "the target has no topic 'denied': no permission"
    places = [None if one < 0 else routed.targets[one] for one in routed.destination.tolist()]
    assert places == [
        *(TopicPartition("new", 1), TopicPartition("eu", 1), None),
        *(TopicPartition("A.orders", 1), None, None),
    ]
    router.route(_chunk(6), records, pa.array(["new"] * 6), None)
    assert len(asked) == 1


def test_a_name_without_permission_is_a_wrong_place() -> None:
    """The record chose it; the others go on."""

    class Closed(Topics):
        def partitions(self, topic: str, *, again: bool = False) -> int:
            if topic == "closed":
                raise Denied("topic closed may not be read or written.", where="cluster B", do="x")
            return super().partitions(topic, again=again)

    records = scan(memoryview(encode_batch(_records(2), codec=0)))
    asked: list[Any] = []
    router = _created(Closed(dict(COUNTS)), {}, asked)
    routed = router.route(_chunk(2), records, pa.array(["closed", "eu"]), None)
    assert (routed.error, asked) == (None, [])
    (fault,) = routed.faults
    assert fault.rows.tolist() == [0]
    assert "topic closed may not be read or written" in fault.reason


def test_a_topic_that_is_created_and_not_visible_yet_is_no_fault_of_its_records() -> None:
    records = scan(memoryview(encode_batch(_records(1), codec=0)))
    router = Router(ROUTED, cast(TargetTopics, Topics({})), lambda _topic, _names: {})
    routed = router.route(_chunk(1), records, pa.array(["new"]), None)
    assert (routed.faults, routed.destination.tolist()) == ([], [-1])
    assert isinstance(routed.error, Unreachable)


def test_an_error_of_the_sinks_round_is_not_taken_for_one_of_the_topic() -> None:
    """The sink commits while it waits for a topic; a task that is fenced meanwhile must end."""

    def create(_topic: str, _names: Sequence[str]) -> dict[str, str]:
        raise Fenced("another run owns the flow.", where="cluster B")

    records = scan(memoryview(encode_batch(_records(1), codec=0)))
    router = Router(ROUTED, cast(TargetTopics, Topics({})), create)
    with pytest.raises(Fenced):
        router.route(_chunk(1), records, pa.array(["new"]), None)


def test_a_new_topic_is_asked_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, target = _topics(monkeypatch, *[UNKNOWN_TOPIC_OR_PARTITION] * 3)
    assert topics.partitions("eu") == 0
    topics.await_new(["eu"])
    assert (topics.partitions("eu"), target.asked) == (3, 4)


def test_in_a_trial_topics_that_would_be_created_count(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(UNKNOWN_TOPIC_OR_PARTITION)
    monkeypatch.setattr(routing, "ClusterConnections", lambda _: target)
    assert TargetTopics(ROUTED, missing=5).partitions("new") == 5
