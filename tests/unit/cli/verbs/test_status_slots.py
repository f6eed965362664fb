"""``status --slots``: what slots have to do, and what the last deal moved and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sparkmirror.cli.verbs.status import _report, _Row
from sparkmirror.control.coordination.control_topic import (
    ControlSignals,
    ControlTopicReader,
    ControlTopicWriter,
)
from sparkmirror.control.coordination.status import judge, judge_group
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    PROGRESS_PARTITION,
    Command,
    CommandKind,
    encode_command,
    encode_progress,
)
from sparkmirror.internal_topics.deals.dealing import Deal, Move
from sparkmirror.internal_topics.deals.record import DealRecord
from sparkmirror.internal_topics.driver_report import (
    DriverReport,
    decode_driver_report,
    encode_driver_report,
)
from sparkmirror.model import TopicPartition
from sparkmirror.progress import PartitionProgress, SlotLoad, SlotProgress

NOW = 1_000_000
T5 = TopicPartition("t", 5)
LOADS = (SlotLoad(9_000_000, 8_900_000, 4_000, (1, 2)), SlotLoad(1, 2, 3, (), 0.5, apart=True))
REASON = "it is 3 h behind: apart from what is current"


def deal(number: int, flow: str, run_id: str, *moves: Move) -> DealRecord:
    deal = Deal(((T5,), ()), frozenset({1}), moves)
    return DealRecord(flow, run_id, number, NOW - 60_000, deal, (1, 2), len(moves))


class Topic:
    """The control topic's records. ``written``: in order."""

    def __init__(self) -> None:
        self.written: list[tuple[int, bytes, bytes | None]] = []

    def produce_many(self, topic: str, records: Any) -> None:
        self.written += records

    def tail(self, topic: str, **_: object) -> Any:
        return SimpleNamespace(read_to_end=lambda: self.written, close=lambda: None)


def signals(flow: str, run_id: str = "r", topic: Topic | None = None) -> ControlSignals:
    """Of a flow with two slots, and two deals of the run after one of an earlier run."""
    topic = topic or Topic()
    writer = ControlTopicWriter(topic, "c")  # type: ignore[arg-type]
    writer.deal(deal(9, flow, "earlier", Move(T5, 0, 1, "old")))
    run = Command(flow, CommandKind.RUN, run_id, NOW - 90_000)
    topic.written.append((COMMAND_PARTITION, *encode_command(run)))
    writer.deal(deal(1, flow, run_id))
    writer.deal(deal(2, flow, run_id, Move(T5, 0, 1, REASON)))
    for slot in range(2):
        report = SlotProgress(
            flow, slot, f"host-{slot}:77:3", 3, NOW, 1, 1, 1, run_id=run_id,
            partitions=(PartitionProgress("t", slot, 7),),
        )  # fmt: skip
        topic.written.append((PROGRESS_PARTITION, *encode_progress(report)))
    writer.report(DriverReport(flow, run_id, "h", "1", 1, NOW, partitions=2, slots=LOADS))
    return ControlTopicReader(topic, "c").read_to_end()  # type: ignore[arg-type]


def test_slots_and_moves_are_shown_with_hosts_weights_and_reasons() -> None:
    found = signals("A->B")
    assert found.skipped == 0
    status = judge(found, "A->B", NOW)
    assert [one.number for one in status.deals] == [2]
    report = _report([_Row(status, None, NOW)], deals=True)
    lines = [" ".join(line.split()) for line in report.lines() if line]
    heads = "FLOW SLOT HOST PARTITIONS BYTES/S BACKLOG WEIGHT APART LEADERS"
    at = lines.index(heads)
    assert lines[at + 1] == "A->B 0 host-0 1 8900000 4000 9000000 - 1,2"
    assert lines[at + 2] == "A->B 1 host-1 1 2 3 1 far behind -"
    assert lines[at + 3] == "FLOW MOVED PARTITION FROM TO REASON"
    assert lines[at + 4] == f"A->B 60 s ago t-5 0 1 {REASON}"

    (flow,) = report.document["flows"]  # type: ignore[misc]
    assert flow["deals"] == [
        {
            "run_id": "r", "number": 2, "time_ms": NOW - 60_000, "moved": 1,
            "moves": [
                {"topic": "t", "partition": 5, "from_slot": 0, "to_slot": 1, "reason": REASON}
            ],
        }
    ]  # fmt: skip
    slots = [
        {name: slot[name] for name in ("host", "weight", "apart", "leaders", "speed")}
        for slot in flow["slots"]
    ]
    assert slots == [
        {"host": "host-0", "weight": 9_000_000, "apart": False, "leaders": [1, 2], "speed": 1.0},
        {"host": "host-1", "weight": 1, "apart": True, "leaders": [], "speed": 0.5},
    ]


def test_without_the_option_the_table_is_as_before() -> None:
    text = "\n".join(_report([_Row(judge(signals("A->B"), "A->B", NOW), None, NOW)]).lines())
    assert "WORKER" in text
    assert REASON not in text


def test_the_runs_of_a_group_keep_their_own_loads_and_deals() -> None:
    topic = Topic()
    for run_id in ("r1", "r2"):
        found = signals(f"A->B#{run_id}", run_id, topic)
    status = judge_group(found, "A->B", NOW)
    assert sorted(status.loads) == [("r1", 0), ("r1", 1), ("r2", 0), ("r2", 1)]
    assert [one.run_id for one in status.deals] == ["r1", "r2"]


def test_what_a_run_of_a_group_leaves_behind_is_deleted() -> None:
    topic = Topic()
    found = signals("A->B#r", topic=topic)
    ControlTopicWriter(topic, "c").forget("A->B#r", found.progress)  # type: ignore[arg-type]
    left = {(partition, key): value for partition, key, value in topic.written}
    assert {key for key, value in left.items() if value is not None} == set()


def test_a_report_of_an_earlier_release_has_no_loads() -> None:
    older = DriverReport("A->B", "r", "h", "1", 1, 2)
    assert decode_driver_report(*encode_driver_report(older)) == older
    newer = DriverReport("A->B", "r", "h", "1", 1, 2, slots=LOADS)
    assert decode_driver_report(*encode_driver_report(newer)) == newer
