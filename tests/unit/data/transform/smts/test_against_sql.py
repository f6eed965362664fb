"""Single message transforms on bytes make the same records as their SQL in a real Spark."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmirror.data.rows.rows import build_row, read_row
from sparkmirror.data.transform.columns import arrow_schema, decode_columns
from sparkmirror.data.transform.compared import ReplayedTopics
from sparkmirror.data.transform.pack import Packed, Packer
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.replay import Replay
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.names.transforms import Transformed, needs_spark
from sparkmirror.settings import FlowSettings
from tests.unit.data.transform.smts.samples import (
    Sample,
    flow_of,
    new_records,
    random_config,
    random_sample,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHAINS = 20


@pytest.mark.more
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_random_chains_and_batches(seed: int, spark: SparkSession) -> None:
    rng = random.Random(seed)
    flows: list[FlowSettings] = []
    samples: list[Sample] = []
    transforms = []
    while len(flows) < _CHAINS:
        topic = f"t{len(flows)}"
        flow, sample = flow_of(random_config(rng)), random_sample(rng, topic)
        number = Transformed(flow).number(topic)
        if number < 0:
            continue
        flows.append(flow)
        samples.append(sample)
        # The same SQL, as a transform in SQL has it.
        one = flow.transforms[number]
        transforms.append(replace(one, name=topic, topics=(topic,), steps=()))
    sql = replace(flows[0], topics=replace(flows[0].topics, smts=()), transforms=tuple(transforms))
    assert needs_spark(sql)
    by_sql = _by_sql(spark, sql, samples)
    for flow, sample, transform in zip(flows, samples, transforms, strict=True):
        assert not needs_spark(flow)
        got = _on_bytes(flow, sample)
        wanted = [one for one in by_sql if one.chunk.topic == sample.chunk.topic]
        about = transform.where, transform.select
        assert new_records(got) == new_records(wanted), about
        assert [_place(one) for one in got] == [_place(one) for one in wanted], about
        for one, other in zip(got, wanted, strict=True):
            assert one.sources is not None
            assert other.sources is not None
            assert one.sources.tolist() == other.sources.tolist()


def _place(one: Packed) -> Any:
    counts = one.counts
    assert counts is not None
    return (
        replace(one.chunk, size=0),
        (one.failed, one.halt),
        (counts.records_in, counts.records_out, counts.filtered, counts.failed),
    )


def _by_sql(spark: SparkSession, flow: FlowSettings, samples: list[Sample]) -> list[Packed]:
    plan = TransformPlan(spark, flow)
    columns = decode_columns(plan.columns)
    rows = [build_row([one.chunk], memoryview(b""), [[one.data]]) for one in samples]
    messages = Unpacker(flow, columns, None).rows(iter(rows))
    table = pa.Table.from_batches(messages, arrow_schema(columns))
    frame: Any = plan.transformed(plan.session.createDataFrame(table.combine_chunks()))
    return _packed(Packer(flow), frame._collect_as_arrow())


def _on_bytes(flow: FlowSettings, sample: Sample) -> list[Packed]:
    return _packed(Packer(flow), [build_row([sample.chunk], memoryview(b""), [[sample.data]])])


def _packed(packer: Packer, messages: list[pa.RecordBatch]) -> list[Packed]:
    made = []
    for message in messages:
        for part in packer.parts(message):
            if isinstance(part, Packed):
                made.append(part)
            else:
                chunks, records, _, _ = read_row(message, part)
                packer.hold(chunks, records)
    packer.finish()
    packer.close()
    return made


def test_what_is_read_again_becomes_the_same(spark: SparkSession) -> None:
    """For ``verify`` and ``transform try``: in a flow whose SMTs need no SQL, without Spark."""
    rng = random.Random(9)
    config = {
        "transforms": "tests",
        "transforms.tests.type": "Filter",
        "transforms.tests.predicate": "test",
        "predicates": "test",
        "predicates.test.type": "HasHeaderKey",
        "predicates.test.name": "test",
    }
    flow = flow_of(config)
    replay = Replay(TransformPlan(spark, flow), flow)
    samples = [random_sample(rng, topic) for topic in ("t", "u", "v")]
    made = replay.packed([(one.chunk, one.data) for one in samples])
    assert new_records(made) == [
        new for one in samples for new in new_records(_on_bytes(flow, one))
    ]
    assert replay.spark_plan() == ""
    assert ReplayedTopics(flow, lambda: replay).unrepeatable("t") == ""
