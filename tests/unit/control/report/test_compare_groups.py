"""Groups on both clusters: the arithmetic and what is printed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sparkmirror.cli.verbs.groups import report
from sparkmirror.control.groups.checkpoints import CheckpointStore
from sparkmirror.control.report.compare_groups import FlowGroups, compare_groups, measure_groups
from sparkmirror.internal_topics.mm2_records import Checkpoint, encode_checkpoint
from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.views import Committed, GroupOwner, GroupView
from tests.unit.config_files import load_flow


def test_offsets_checkpoints_and_remarks(tmp_path: Path) -> None:
    flow = load_flow(tmp_path, "topics=t.*\n")
    source = [TopicPartition("t", n) for n in range(4)]
    remote = [TopicPartition("A.t", n) for n in range(4)]
    stored = CheckpointStore()
    for checkpoint in (
        Checkpoint("g", remote[0], 7, 5),
        Checkpoint("g", remote[1], 3, 2),
        Checkpoint("h", remote[2], 1, 1),
    ):
        stored.take(*encode_checkpoint(checkpoint))
    committed = {
        "g": {
            **{tp: Committed(7) for tp in source},
            TopicPartition("other", 0): Committed(1),
        },
        "nothing": {},
    }
    ends = {source[0]: 9, source[1]: 7, source[2]: 6}
    on_target = {"g": {remote[0]: Committed(4)}}
    states = {"g": GroupView("g", "Stable")}
    owners = {"g": {source[0]: GroupOwner("m-1", "reader", "10.0.0.1")}}
    rows = measure_groups(flow, states, committed, ends, stored, on_target, owners)
    assert [(row.partition, row.lag, row.translated, row.target_offset) for row in rows] == [
        (0, 2, 5, 4),
        (1, 0, 2, None),
        (2, None, None, None),
        (3, None, None, None),
    ]
    assert [row.remark for row in rows] == [
        "",
        "the checkpoint is of offset 3",
        "the offset is beyond the end: the topic was recreated or truncated",
        "no checkpoint yet",
    ]
    title, head, first, second, *_ = report([FlowGroups("A->B", rows)]).lines()
    assert title == "A->B: 1 group(s)"
    assert head.split()[:8] == [
        "GROUP", "STATE", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "OWNER",
    ]  # fmt: skip
    owner = "reader_/10.0.0.1"
    assert first.split() == ["g", "Stable", "t", "0", "7", "9", "2", owner, "A.t", "5", "4", "-"]
    assert second.split()[7] == "-"
    (printed,) = report([FlowGroups("A->B", rows)]).document["flows"]  # type: ignore[index]
    (group,) = printed["groups"]
    assert (group["group"], group["state"], len(group["partitions"])) == ("g", "Stable", 4)
    read, unread, *_ = group["partitions"]
    assert read["owner"] == {"member": "m-1", "client_id": "reader", "host": "10.0.0.1"}
    assert unread["owner"] is None
    assert group["partitions"][1]["remark"] == "the checkpoint is of offset 3"


def test_no_groups() -> None:
    assert report([FlowGroups("A->B", ())]).lines() == ["A->B: 0 group(s)"]
    off = FlowGroups("A->B", (), checkpoints=False)
    assert "checkpoints are disabled (emit.checkpoints.enabled=false)" in report([off]).lines()[1]
    (printed,) = report([off]).document["flows"]  # type: ignore[index]
    assert printed["checkpoints"] is False


def test_an_open_transaction_is_no_truncation(tmp_path: Path) -> None:
    """A group that reads what is uncommitted is ahead of the last stable offset."""
    tp = TopicPartition("t", 0)
    ends = {"read_committed": 90, "read_uncommitted": 100}
    source = SimpleNamespace(
        groups=lambda: {"g": GroupView("g", "Empty")},
        committed_by_group=lambda _: {"g": {tp: Committed(100)}},
        end_offsets=lambda wanted, level: dict.fromkeys(wanted, ends[level]),
    )
    target = SimpleNamespace(topics=lambda _: {}, committed_by_group=lambda _: {})
    seen: Any = SimpleNamespace(
        flow=load_flow(tmp_path, "topics=t.*\n"), source=source, target=target
    )
    (row,) = compare_groups(seen).rows
    assert (row.end, row.lag, row.remark) == (100, 0, "no checkpoint yet")
