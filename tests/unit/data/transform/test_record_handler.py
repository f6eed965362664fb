"""A Python callable per record: what it may return, and what the sink makes of it."""

from __future__ import annotations

import random
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row, read_row
from sparkmirror.data.transform.columns import arrow_schema
from sparkmirror.data.transform.pack import Packed, Packer
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.record_handler import RecordHandler
from sparkmirror.data.transform.replay import Replay
from sparkmirror.data.transform.trial import tried
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.errors import ConfigError
from sparkmirror.model import SourceRecord, TargetRecord, TopicPartition
from sparkmirror.names.replication_policy import dead_letter_topic
from sparkmirror.progress import TransformCounts
from sparkmirror.records.header import split
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import ClusterClient, FaultSettings, FlowSettings
from sparkmirror.transform_settings import TransformSettings
from tests.unit.data.write.test_exactly_once import BILLS, ORDERS, REMOTE, Source, simulated
from tests.unit.data.write.test_exactly_once import _flow as _exactly_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_HERE = f"{__name__}:"
_SECRET = "4111-1111"


class Mask:
    """Takes its text in the constructor."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()

    def __call__(self, record: SourceRecord) -> TargetRecord | None:
        value = record.value or b""
        if value.startswith(b"drop"):
            return None
        return replace(record.to_target(), value=value.replace(b"card", self.text))


class Chosen:
    """Returns what the test has chosen for each value."""

    results: ClassVar[dict[bytes | None, Any]] = {}

    def __call__(self, record: SourceRecord) -> Any:
        found = self.results.get(record.value, record.to_target())
        if isinstance(found, BaseException):
            raise found
        return found(record) if callable(found) else found


def with_args(record: SourceRecord, text: str) -> TargetRecord:
    return replace(record.to_target(), key=text.encode())


def slow(record: SourceRecord) -> TargetRecord:
    time.sleep(0.06)
    return record.to_target()


def _flow(handler: str, args: str | None = None, bad_record: str = "pause") -> FlowSettings:
    one = TransformSettings("one", ("orders",), handler=_HERE + handler, handler_args=args)
    faults = FaultSettings(bad_record=bad_record)
    return FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,), faults=faults)


def _records(*values: bytes | None, first: int = 100) -> list[Record]:
    return [
        Record(first + n, 1_000 + n, b"k%d" % n, value, ((b"h", b"x"), (b"\xff", None)))
        for n, value in enumerate(values)
    ]


def _packed(flow: FlowSettings, records: list[Record], codec: int = 0) -> list[Packed]:
    """What the sink gets of a row with the records' chunk, and of a raw one beside it."""
    data = b"".join(
        encode_batch(records[at : at + 20], codec=codec) for at in range(0, len(records), 20)
    )
    raw = encode_batch(records[:1])
    first, end, times = records[0].offset, records[-1].offset + 1, records[-1].timestamp
    chunks = [
        Chunk("orders", 2, "A.orders", first, end, len(records), times, 0, len(data)),
        Chunk("raw", 0, "A.raw", first, first + 1, 1, times, 0, len(raw)),
    ]
    row = build_row(chunks, memoryview(b""), [[data], [raw]])
    uses = [frozenset[str]()]
    messages = list(Unpacker(flow, uses, None).rows(iter([row, FLUSH])))
    packer, found = Packer(flow), []
    results = [*arrow_schema(uses).names[:2], "__at"]
    for batch in messages:
        assert batch.column(2).null_count == batch.num_rows, "no record goes to Spark"
        for part in packer.parts(batch.select(results)):
            if isinstance(part, int):
                read, data_view, _, _ = read_row(batch, part)
                (other,) = packer.hold(read, data_view)
                assert other.topic == "raw"
            else:
                found.append(part)
    packer.finish()
    return found


def _decoded(packed: Packed) -> list[Record]:
    data = packed.records
    return [one for start, end in split(data) for one in decode_records(data[start:end])]


def _numbers(packed: Packed) -> TransformCounts | None:
    """What was counted, without how long it took."""
    return packed.counts and replace(packed.counts, unpack_s=0.0, sql_s=0.0, pack_s=0.0)


def test_records_are_kept_changed_and_left_out() -> None:
    records = _records(b"a card", b"drop it", b"plain", None)
    (packed,) = _packed(_flow("Mask", "***"), records, codec=4)
    assert [(one.offset, one.value) for one in _decoded(packed)] == [
        *((0, b"a ***"), (1, b"plain"), (2, b"")),
    ]
    assert packed.sources is not None
    assert packed.sources.tolist() == [100, 102, 103]
    assert [tuple(one) for one in packed.chunk.source_runs] == [(100, 1), (102, 2)]
    assert (packed.chunk.base_offset, packed.chunk.next_offset) == (100, 104)
    assert (packed.halt, packed.failed) == (None, ())
    assert _numbers(packed) == TransformCounts("one", 4, 3, 1, 0)
    # What the handler did not change keeps its bytes.
    assert [one.headers for one in _decoded(packed)] == [records[0].headers] * 3
    assert [one.timestamp for one in _decoded(packed)] == [1_000, 1_002, 1_003]


def test_the_text_for_a_function_is_its_second_argument() -> None:
    (packed,) = _packed(_flow("with_args", "new"), _records(b"1", b"2"))
    assert [one.key for one in _decoded(packed)] == [b"new", b"new"]


def test_every_field_can_be_replaced() -> None:
    def other(record: SourceRecord) -> TargetRecord:
        return TargetRecord("A.orders", None, b"key", (("n", b"1"), ("n", None)), 7, 2)

    Chosen.results = {b"x": other, b"y": lambda record: [record.to_target()], b"z": []}
    before_ms = int(time.time() * 1000)
    Chosen.results[b"now"] = lambda record: replace(record.to_target(), timestamp_ms=None)
    (packed,) = _packed(_flow("Chosen"), _records(b"x", b"y", b"z", b"now"))
    changed, kept, now = _decoded(packed)
    assert (changed.key, changed.value, changed.timestamp) == (b"key", None, 7)
    assert changed.headers == ((b"n", b"1"), (b"n", None))
    assert (kept.key, kept.value, kept.timestamp) == (b"k1", b"y", 1_001)
    assert now.timestamp >= before_ms


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ValueError(f"bad card {_SECRET}"), "ValueError in line "),
        (SystemExit(f"bad card {_SECRET}"), "SystemExit in line "),
        (lambda record: [record.to_target()] * 2, "it returned 2 records: one cannot become"),
        (5, "it returned a int, not a TargetRecord"),
        (TargetRecord("other", b""), "it returned another topic: route records in SQL"),
        (TargetRecord("orders", b"", partition=5), "it returned another partition"),
        (TargetRecord("orders", _SECRET), "it returned a value of type str, not bytes"),  # type: ignore[arg-type]
        (TargetRecord("orders", b"", 5), "it returned a key of type int, not bytes"),  # type: ignore[arg-type]
        (TargetRecord("orders", b"", headers=((b"k", b"v"),)), "it returned headers that are"),  # type: ignore[arg-type]
        (
            TargetRecord("orders", b"", timestamp_ms="x"),
            "it returned a timestamp of type str, not int",
        ),  # type: ignore[arg-type]
        (TargetRecord("orders", b"", timestamp_ms=1 << 62), "it returned a timestamp that is too"),
        (TargetRecord("orders", b"", headers=(("\ud800", b"v"),)), "UnicodeEncodeError"),
    ],
)
@pytest.mark.parametrize("bad_record", ["pause", "skip"])
def test_a_record_on_which_it_fails(result: Any, said: str, bad_record: str) -> None:
    """It says why, and nothing of the record."""
    Chosen.results = {_SECRET.encode(): result}
    records = _records(b"a", b"b", _SECRET.encode(), b"c")
    (packed,) = _packed(_flow("Chosen", bad_record=bad_record), records)
    if bad_record == "pause":
        assert packed.halt is not None
        told = packed.halt.reason
        assert packed.halt.code == "TRANSFORM_FAILED"
        assert (packed.chunk.next_offset, packed.chunk.record_count) == (102, 2)
        assert "first at source offset 102" in told
        assert _numbers(packed) == TransformCounts("one", 3, 2, 0, 1)
    else:
        (failed,) = packed.failed
        assert [one.offset for one in failed.records] == [102]
        told = failed.said(102)
        assert (packed.chunk.next_offset, packed.chunk.record_count) == (104, 3)
        assert _numbers(packed) == TransformCounts("one", 4, 3, 0, 1)
    assert "the handler of the transform one failed on these records" in told
    assert said in told
    assert _SECRET not in told


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(3, 10))]
)
def test_any_mixture_against_a_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkmirror.data.transform.portions._PORTION_BYTES_MAX", 5_000)
    rng = random.Random(seed)
    values = [b"%d" % n for n in range(rng.randrange(1, 200))]
    Chosen.results = {}
    wanted, failed = [], []
    for n, value in enumerate(values):
        choice = rng.choice(["keep", "drop", "fail", "change"])
        if choice == "drop":
            Chosen.results[value] = []
        elif choice == "fail":
            Chosen.results[value] = KeyError("k")
            failed.append(100 + n)
        elif choice == "change":
            Chosen.results[value] = lambda one: replace(one.to_target(), value=b"new", key=None)
            wanted.append((100 + n, None, b"new"))
        else:
            wanted.append((100 + n, b"k%d" % n, value))
    found = _packed(_flow("Chosen", bad_record="skip"), _records(*values), codec=3)
    assert len(values) < 60 or len(found) > 1
    got, position = [], 100
    for one in found:
        assert one.chunk.next_offset > position
        position = one.chunk.next_offset
        offsets = [
            first + number for first, count in one.chunk.source_runs for number in range(count)
        ]
        got += [
            (offset, record.key, record.value)
            for offset, record in zip(offsets, _decoded(one), strict=one.chunk.record_count > 0)
            if one.chunk.record_count
        ]
    assert got == wanted
    assert position == 100 + len(values)
    assert [one.offset for each in found for part in each.failed for one in part.records] == failed


def test_the_sink_does_its_rounds_while_a_handler_takes_its_time() -> None:
    rounds = []
    one = _flow("slow").transforms[0]
    handler = RecordHandler(one, lambda: rounds.append(1))
    chunk = Chunk("orders", 2, "A.orders", 100, 105, 5, 1, 0, 1)
    handler.results(chunk, tuple(_records(*[b"v"] * 5)))
    assert 2 <= len(rounds) <= 4


@pytest.mark.parametrize("name", ["nowhere", "_SECRET"])
def test_what_cannot_be_called_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        RecordHandler(_flow(name).transforms[0], lambda: None)


def test_an_exactly_once_sink_writes_what_it_returns() -> None:
    """In one transaction with the position, which is past what is left out or a dead letter."""
    fault = FaultSettings(bad_record="dead-letter")
    Chosen.results = {b"bad": KeyError(_SECRET), b"drop": None}
    flow = _exactly_once(transforms=_flow("Chosen").transforms, faults=fault)
    with simulated() as brokers:
        source = Source(brokers)
        source.chunk(ORDERS, [b"1", b"drop"], [b"bad", b"2", b"drop"])
        source.chunk(BILLS, [b"drop"])
        SlotSink(flow).run(iter(source.rows))
        assert brokers.values(REMOTE[ORDERS].topic) == [b"1", b"2"]
        assert brokers.values(REMOTE[BILLS].topic) == [b"drop"]
        assert [brokers.positions[REMOTE[one]] for one in (ORDERS, BILLS)] == [5, 1]
        (letter,) = brokers.committed[TopicPartition(dead_letter_topic(REMOTE[ORDERS].topic), 0)]
        assert letter.value == b"bad"
        reason = dict(letter.headers)[b"sparkmirror.error.reason"] or b""
        assert b"KeyError in line" in reason
        assert _SECRET.encode() not in reason
        dead = dead_letter_topic(REMOTE[ORDERS].topic)
        assert {REMOTE[ORDERS].topic, REMOTE[BILLS].topic, dead} < brokers.commits[0]


def test_beside_sql_in_a_real_plan(spark: SparkSession) -> None:
    """Records of the handler's topic never go to Spark; those of the other one do."""
    flow = _flow("Mask", "***", bad_record="skip")
    upper = TransformSettings("upper", ("upper",), "", "upper(CAST(value AS STRING)) AS value")
    flow = replace(flow, transforms=(*flow.transforms, upper))
    plan = TransformPlan(spark, flow)
    parts = []
    for topic in ("orders", "upper"):
        data = encode_batch(_records(b"a card", b"drop", b"b"))
        parts.append((Chunk(topic, 0, f"A.{topic}", 100, 103, 3, 1_002, 0, len(data)), data))
    found = tried(Replay(plan, flow), parts)
    assert [(one.topic, one.outcome, one.after and one.after.value) for one in found] == [
        ("orders", "kept", b"a ***"),
        ("orders", "filtered", None),
        ("orders", "kept", b"b"),
        ("upper", "kept", b"A CARD"),
        ("upper", "kept", b"DROP"),
        ("upper", "kept", b"B"),
    ]
    missing = replace(flow, transforms=(_flow("nowhere").transforms[0],))
    with pytest.raises(ConfigError, match="nowhere cannot be imported"):
        TransformPlan(spark, missing)


_LATE_NS = 1_764_000_000_000_000_000


@pytest.mark.parametrize("other_ms", [1_000, 7], ids=["all keep theirs", "one has another"])
def test_a_time_in_nanoseconds_that_the_handler_keeps(other_ms: int) -> None:
    """Some producers write such times, as millisecond values."""
    Chosen.results = {b"x": lambda one: replace(one.to_target(), timestamp_ms=other_ms)}
    records = [Record(100, 1_000, b"k", b"x"), Record(101, _LATE_NS, b"k", b"y")]
    (packed,) = _packed(_flow("Chosen"), records)
    assert packed.halt is None
    assert [one.timestamp for one in _decoded(packed)] == [other_ms, _LATE_NS]


def test_headers_that_the_handler_keeps_have_their_bytes() -> None:
    """Also if it changes those of another record, or adds one."""
    Chosen.results = {
        b"x": lambda one: replace(one.to_target(), headers=(("n", b"1"),)),
        b"y": lambda one: replace(one.to_target(), headers=(*one.headers, ["é", None])),
    }
    records = _records(b"x", b"y", b"z")
    (packed,) = _packed(_flow("Chosen"), records)
    assert [one.headers for one in _decoded(packed)] == [
        ((b"n", b"1"),),
        (*records[1].headers, ("é".encode(), None)),
        records[2].headers,
    ]


class Number:
    def __init__(self, text: str) -> None:
        self.number = int(text)


def test_the_text_of_a_constructor_that_fails_is_not_told() -> None:
    one = _flow("Number", _SECRET).transforms[0]
    with pytest.raises(ConfigError, match="cannot be instantiated") as caught:
        RecordHandler(one, lambda: None)
    assert _SECRET not in "".join(traceback.format_exception(caught.value))
