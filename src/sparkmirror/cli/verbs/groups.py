"""``sparkmirror groups``: consumer groups of the source, and where they stand on the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.cluster_session import ask_each, end_with, open_flows, refuse_mm1
from sparkmirror.cli.shared.settings_options import Clusters, Files, Flows, with_files
from sparkmirror.cli.shared.tables import Format, Output, print_json, table_lines
from sparkmirror.errors import Defect
from sparkmirror.text import say

if TYPE_CHECKING:
    from sparkmirror.control.report.compare_groups import FlowGroups

__all__ = ["document", "groups", "text"]


@with_files
def groups(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the consumer groups of each flow: offsets, lag and owners on the source, and the same
    place on the target.

    OWNER is the member that reads the partition, as `lag` names it: of groups of the classic, the
    consumer and the streams protocol. TRANSLATED is what the newest checkpoint gives, ON-TARGET
    what the group has committed there. Only groups and topics that the flow makes checkpoints of.
    Nothing is committed anywhere.
    MirrorMaker 1 makes no checkpoints, so its files are refused.

    Exit codes: 0 looked, 2 wrong usage or file, 3 a cluster or group could not be asked.
    """
    from sparkmirror.control.report.compare_groups import compare_groups  # noqa: PLC0415

    refuse_mm1("groups", files)
    with open_flows(files, clusters=clusters, flows=flows) as asking:
        found, failures = ask_each(asking.flows, lambda flow: compare_groups(asking.look(flow)))
    if output is Format.JSON:
        print_json(document(found))
    else:
        say(*text(found))
    failures += [failure for one in found for failure in one.failures]
    end_with(failures, json_lines=output is Format.JSON)


def text(found: Sequence[FlowGroups]) -> Iterator[str]:
    """The lines for people, in ``kafka-consumer-groups``'s words where it has some."""
    for one in found:
        yield f"{one.flow}: {len({row.group for row in one.rows})} group(s)"
        if not one.checkpoints:
            yield (
                f"{one.flow}: checkpoints are off (emit.checkpoints.enabled=false), so no group"
                " goes over: TRANSLATED is of an earlier run, if of any"
            )
        if not one.rows:
            continue
        yield from table_lines(
            ("GROUP", "STATE", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG",
             "OWNER", "REMOTE-TOPIC", "TRANSLATED", "ON-TARGET", "REMARK"),
            [
                (row.group, row.state, row.topic, row.partition, row.offset, row.end, row.lag,
                 row.owner, row.remote_topic, row.translated, row.target_offset, row.remark)
                for row in one.rows
            ],
        )  # fmt: skip


def document(found: Sequence[FlowGroups]) -> dict[str, object]:
    """What ``--format json`` prints."""
    flows = []
    for one in found:
        by_group: dict[str, dict[str, object]] = {}
        for row in one.rows:
            values = {**asdict(row), "lag": row.lag, "remark": row.remark or None}
            state = values.pop("state")
            name = values.pop("group")
            entry = by_group.setdefault(name, {"group": name, "state": state, "partitions": []})
            partitions = entry["partitions"]
            if not isinstance(partitions, list):
                raise Defect("the partitions of a group are a list")
            partitions.append(values)
        flows.append(
            {"flow": one.flow, "checkpoints": one.checkpoints, "groups": list(by_group.values())}
        )
    return {"flows": flows}
