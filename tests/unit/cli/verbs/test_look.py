"""Commands that look at clusters: wrong usage, and what is printed."""

import json
from operator import itemgetter
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.shared import tables
from sparkmirror.cli.shared.tables import UNLIMITED, Format, Report, Table, cell
from sparkmirror.cli.verbs import clusters, offsets, plan, topics
from sparkmirror.cli.verbs.status import _report, _Row
from sparkmirror.client import Checkpoint
from sparkmirror.control.coordination.status import FlowState, FlowStatus
from sparkmirror.control.report.compare import TopicPair
from sparkmirror.control.topics.config_sync import ConfigChange
from sparkmirror.control.topics.observation import Change, FlowPlan, PassThrough, TransformTopics
from sparkmirror.errors import Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.observe.logs import register_secret
from sparkmirror.wire.cluster.views import BrokerView, ClusterView
from tests.unit.config_files import BASE, write


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "FILE", "--flow", "A->C"], "'A->C' is not an enabled flow"),
        (["topics", "FILE", "--clusters", "A"], "No source->target replication flows"),
        (
            ["offsets", "translate", "FILE", "B->A", "--group", "g"],
            "is not an enabled flow of this file",
        ),
        (["offsets", "translate", "FILE", "A->B"], "no group is named"),
        (["offsets", "translate", "FILE", "A->B", "--group", "g", "--regex", "x"], "both options"),
        (["offsets", "translate", "FILE", "A->B", "--regex", "("], "invalid regex"),
        (["clusters", "NONE"], "There is no such file"),
    ],
)
def test_wrong_usage(
    tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, BASE))
    assert main([path if one == "FILE" else one for one in arguments]) == 2
    assert told in capsys.readouterr().err


def test_tables() -> None:
    two = {"A": itemgetter(0), "B": itemgetter(1)}
    assert Table(two, [("x", None), ("yy", 12)]).lines() == ["A   B", "x   -", "yy  12"]
    assert Table({"A": "real"}, []).lines() == ["A"]
    assert Table({"A": "real", "B": "imag.real"}, [7]).lines() == ["A  B", "7  0"]
    long = "x" * 80
    assert Table(two, [(long, 1), ("y", 2)]).lines()[1] == f"{long}  1"
    assert Table(two, [(long, 1), ("y", 2)], most=UNLIMITED).lines()[2] == f"y{' ' * 81}2"
    assert Table(two, [("x", 1), ("yyyy", 2)], gap=1, least=(3, 0), most=0).lines() == [
        "A   B", "x   1", "yyyy 2",
    ]  # fmt: skip
    assert Table({"A": itemgetter(0), "": itemgetter(1)}, ["x-", ("", "")]).lines() == [
        "A", "x  -", "-",
    ]  # fmt: skip
    assert [cell(one) for one in (None, "", True, (), ("a", 1), 0)] == [
        "-", "-", "yes", "-", "a,1", "0",
    ]  # fmt: skip


def test_a_plan_in_words() -> None:
    changes = (
        Change("B", "create-topic", "A.t", "t",
               {"partitions": 3, "replication_factor": 2, "configs": {"retention.ms": "5"},
                "left_out": ["x.y"]}),
        Change("B", "grow-topic", "A.u", "u", {"partitions": 3, "was": 2}),
        Change("B", "reset-config", "A.v", "v", {"config": "segment.ms", "was": "7"}),
        Change("B", "refuse", "A.w", "w", {"reason": "it cannot be"}),
        Change("B", "add-acl", "A.w", "", {"acl": "User:u may READ"}),
    )  # fmt: skip
    title, _, *lines = plan.report([FlowPlan("A->B", changes)]).lines()
    assert title == "A->B: 5 change(s)"
    assert [" ".join(line.split()) for line in lines] == [
        "B create-topic A.t partitions=3 replication.factor=2 retention.ms=5 left out: x.y",
        "B grow-topic A.u partitions=3 was=2",
        "B reset-config A.v segment.ms back to the default (was 7)",
        "B refuse A.w it cannot be",
        "B add-acl A.w User:u may READ",
    ]
    assert plan.report([FlowPlan("A->B", ())]).lines() == ["A->B: nothing would be changed"]
    broken = FlowPlan("A->B", (), (Unreachable("no"),))
    assert plan.report([broken]).lines() == ["A->B"]
    (flow,) = plan.report([broken]).document["flows"]  # type: ignore[index]
    assert flow == {"flow": "A->B", "changes": [], "complete": False}


def test_a_plan_names_the_topics_that_lose_raw_batches() -> None:
    passing = PassThrough(
        (
            TransformTopics(
                "mask", ("pay", "cards"), "changes records (select)", (("limits", "csv:/limits"),)
            ),
            TransformTopics("clean", (), "leaves out records (where)"),
        ),
        ("plain",),
    )
    report = plan.report([FlowPlan("A->B", (), (), passing)])
    assert [" ".join(line.split()) for line in report.lines()] == [
        "A->B: nothing would be changed",
        "A->B: 2 of 3 topic(s) lose pass-through of raw batches",
        "TOPIC RAW-BATCHES TRANSFORM REASON",
        "cards no mask changes records (select)",
        "pay no mask changes records (select)",
        "plain yes - -",
        "A->B: the transform clean matches no topic of the flow",
        "A->B: the transform mask reads the table limits from csv:/limits",
    ]
    (flow,) = report.document["flows"]  # type: ignore[index]
    assert flow["pass_through"] == {
        "transformed": [
            {
                "transform": "mask",
                "topics": ["pay", "cards"],
                "reason": "changes records (select)",
                "tables": {"limits": "csv:/limits"},
            },
            {
                "transform": "clean",
                "topics": [],
                "reason": "leaves out records (where)",
                "tables": {},
            },
        ],
        "raw": ["plain"],
    }


@pytest.mark.parametrize(
    ("pair", "state"),
    [
        (TopicPair("t", "A.t", 2, None, 1, None), "missing"),
        (TopicPair("t", "A.t", 2, 1, 1, 1), "fewer partitions"),
        (TopicPair("t", "A.t", 2, 2, 1, 1, (ConfigChange("a", "1", "2"),)), "configs differ"),
        (TopicPair("t", "A.t", 2, 2, 1, 1, trouble="denied"), "configs unknown"),
        (TopicPair("t", "A.t", 2, 3, 1, 1), "more partitions"),
        (TopicPair("t", "A.t", 2, 2, 1, 3), "same"),
    ],
)
def test_the_state_of_a_topic(pair: TopicPair, state: str) -> None:
    assert pair.state == state
    assert state in "\n".join(topics.report([("A->B", [pair])]).lines())


def test_clusters_in_words() -> None:
    view = ClusterView("id-1", (BrokerView(1, "h", 9, "r1"), BrokerView(2, "h", 10)), 2)
    one = clusters.Survey("B", view, {1: "4.3"}, {"A": 1, "C": 2}, ("D",))
    lines = clusters.report([one]).lines()
    assert lines[0] == "B: id id-1, 2 broker(s), Kafka 4.3, controller 2"
    assert lines[2].split() == ["1", "h:9", "r1", "4.3"]
    assert lines[3].split() == ["2", "h:10", "-", "-"]
    assert lines[4:6] == ["upstream: A (1 hop), C (2 hops)", "no heartbeats from: D"]


def test_translated_offsets_in_words() -> None:
    tp = TopicPartition("A.t", 3)
    found = {("g", tp): Checkpoint("g", tp, 9, 7)}
    assert offsets.report("A->B", found).lines()[1].split() == ["g", "A.t", "3", "9", "7", "-"]
    assert offsets.report("A->B", {}).lines() == ["A->B: no checkpoints of these groups"]
    head, row = (line.split() for line in offsets.report("A->B", found, {("g", tp): 5}).lines())
    assert (head[-1], row[-1]) == ("MIRRORMAKER", "5")
    asked = offsets.report("A->B", found, {("g", tp): None}).document
    assert asked["groups"] == {  # type: ignore[index]
        "g": [
            {"topic": "A.t", "partition": 3, "upstream_offset": 9, "offset": 7, "metadata": "",
             "mirrormaker_offset": None}
        ]
    }  # fmt: skip


def test_status_shows_the_time_to_go_of_a_flow_that_catches_up() -> None:
    catching_up = FlowStatus("A->B", FlowState.RUNNING, to_go_s=185.0, host="h:1")
    caught_up = FlowStatus("A->C", FlowState.RUNNING, host="h:1")
    report = _report([_Row(one, None, 0) for one in (catching_up, caught_up)])
    head, *lines = report.lines()
    at = head.index("TO-GO")
    assert [line[at : head.index("LAST-REPORT")].strip() for line in lines] == ["3m 05s", "-"]
    told = [one["to_go_seconds"] for one in report.document["flows"]]  # type: ignore[index]
    assert told == [185.0, None]


def test_tables_and_the_lines_beside_them_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    register_secret("hunter2")
    body = ["a line with hunter2", Table({"A": itemgetter(0)}, [("a cell with hunter2",)])]
    Report({}, body).show(Format.TABLE)
    assert capsys.readouterr().out == "a line with ***\nA\na cell with ***\n"


def test_json_stays_json_whatever_the_secrets_are(capsys: pytest.CaptureFixture[str]) -> None:
    for one in ("4711", 'p"w', "reason"):
        register_secret(one)
    Report({"position": 947_110, "reason": 'login p"w'}, []).show(Format.JSON)
    assert json.loads(capsys.readouterr().out) == {"position": 947_110, "reason": "login ***"}


def test_a_time_that_no_date_has_is_shown_as_a_number() -> None:
    """Codecs take any; one such record must not end the command."""
    assert tables.utc(1 << 60) == f"{1 << 60} ms"
