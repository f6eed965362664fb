"""An injected assignment: nothing is mirrored that the flow's own settings do not select."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.selected import TopicSelection
from sparkmirror.data.coordination.slot_plan import encode_flow, plan_slots
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.spark_source import _Planner
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    SourcePartition,
    encode_assignment,
)
from sparkmirror.model import MirrorMode
from sparkmirror.settings import ClusterClient, FlowSettings, TopicRule, TopicSettings

A, B = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
ORDERS = FlowSettings(A, B, A, B, topics=TopicSettings(include=("orders.*",)))
MM1 = FlowSettings(A, B, A, B, mode=MirrorMode.MM1, topics=TopicSettings((".*",), ()))

GOOD = (SourcePartition("orders", 0, "A.orders"), SourcePartition("orders-eu", 1, "A.orders-eu"))
BAD = (
    SourcePartition("payroll", 0, "A.payroll"),
    SourcePartition("orders", 0, "payroll"),
    SourcePartition("orders", 1, "A.orders-eu"),
    SourcePartition("orders", -1, "A.orders"),
    SourcePartition("orders\nERROR all is lost", 0, "A.orders\nERROR all is lost"),
)


@pytest.fixture
def watch() -> Iterator[ControlWatch]:
    made = ControlWatch(ORDERS, "run", offset=0)
    yield made
    made.close()


def inject(watch: ControlWatch, partitions: tuple[SourcePartition, ...]) -> None:
    document = AssignmentDocument("A->B", "run", 7, partitions)
    for key, value in encode_assignment(document):
        watch._apply(watch._commands, key, value)


def test_what_planner_and_slots_hear_is_what_the_flow_selects(
    watch: ControlWatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        inject(watch, GOOD)
    assert watch.assignment is not None
    assert watch.assignment.partitions == GOOD
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        inject(watch, (*BAD, *GOOD))
    assert watch.assignment.partitions == GOOD
    (line,) = (record.getMessage() for record in caplog.records)
    assert "'payroll'-0 to 'A.payroll'" in line
    assert "'orders'-0 to 'payroll'" in line
    assert "\n" not in line


def test_the_planner_deals_nothing_else(
    watch: ControlWatch, monkeypatch: pytest.MonkeyPatch
) -> None:

    planner = _Planner({"flow": encode_flow(ORDERS), "run_id": "run"})
    planner._watch = watch
    monkeypatch.setattr(watch, "catch_up", lambda: None)
    monkeypatch.setattr(ControlWatch, "offset", 5)
    inject(watch, (*GOOD, *BAD))
    dealt = planner.partitions({"epoch": 0}, {"epoch": 1})
    assert [p for slot in dealt for p in slot.value.partitions] == list(GOOD)


def test_a_slot_fetches_nothing_else_whatever_its_plan_says() -> None:
    (plan,) = plan_slots(
        [*GOOD, *BAD], slots_max=1, epoch=1, run_id="run", ends=None, control_offset=0
    )
    reader = SlotReader(ORDERS, plan)
    try:
        assert reader.plan.partitions == GOOD
        assert set(reader._by_source) == {p.source for p in GOOD}
    finally:
        reader._connections.close()
        reader._watch.close()
        reader._frames.close()


def test_topics_of_the_brokers_are_never_mirrored() -> None:
    own = [SourcePartition(name, 0, name) for name in ("__consumer_offsets", "__transaction_state")]
    usual = SourcePartition("__mine", 0, "__mine")
    assert TopicSelection(MM1).keep([*own, usual]) == (usual,)


def test_a_map_names_the_topics_that_an_assignment_may_write() -> None:
    rules = (TopicRule("eu[.](.*)", "$1"),)
    flow = replace(ORDERS, topics=TopicSettings(include=("eu.*",), map=rules))
    good = SourcePartition("eu.t", 0, "t")
    bad = [
        SourcePartition("eu.t", 0, "A.eu.t"),
        SourcePartition("eu.__consumer_offsets", 0, "__consumer_offsets"),
        SourcePartition("eu.", 0, ""),
    ]
    assert TopicSelection(flow).keep([*bad, good]) == (good,)


def test_many_are_named_by_their_number(caplog: pytest.LogCaptureFixture) -> None:
    many = [SourcePartition("payroll", n, "A.payroll") for n in range(1_000)]
    with caplog.at_level(logging.WARNING):
        assert TopicSelection(ORDERS).keep(many) == ()
    assert caplog.records[0].getMessage().count("payroll") == 10
    assert "and 995 more" in caplog.records[0].getMessage()
