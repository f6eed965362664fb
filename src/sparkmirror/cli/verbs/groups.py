"""``sparkmirror groups``: consumer groups of the source, and their offsets on the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.cluster_session import finish, open_flows, query_each, refuse_mm1
from sparkmirror.cli.shared.settings_options import Clusters, Files, Flows, with_files
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table

if TYPE_CHECKING:
    from sparkmirror.control.report.compare_groups import FlowGroups

# Headings are those of kafka-consumer-groups where it has them.
_COLUMNS: Columns = {
    "GROUP": "group",
    "STATE": "state",
    "TOPIC": "topic",
    "PARTITION": "partition",
    "CURRENT-OFFSET": "offset",
    "LOG-END-OFFSET": "end",
    "LAG": "lag",
    "OWNER": "owner",
    "REMOTE-TOPIC": "remote_topic",
    "TRANSLATED": "translated",
    "ON-TARGET": "target_offset",
    "REMARK": "remark",
}


@with_files
def groups(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the consumer groups of each flow: offsets, lag and owners on the source, and their
    offsets on the target.

    OWNER is the member that reads the partition, as in `lag`, for groups of the classic, the
    consumer and the streams protocol. TRANSLATED is the offset of the newest checkpoint, ON-TARGET
    the offset that the group has committed on the target. Only groups and topics with checkpoints
    are shown. Nothing is committed. MirrorMaker 1 has no checkpoints, so its files are refused.

    Exit codes: 0 shown, 2 wrong usage or file, 3 a cluster or group is unavailable.
    """
    from sparkmirror.control.report.compare_groups import compare_groups  # noqa: PLC0415

    refuse_mm1("groups", files)
    with open_flows(files, clusters=clusters, flows=flows) as session:
        found, failures = query_each(
            session.flows, lambda flow: compare_groups(session.observe(flow))
        )
    failures += [failure for one in found for failure in one.failures]
    finish(report(found), output, failures)


def report(found: Sequence[FlowGroups]) -> Report:
    """The groups of each flow."""
    body: list[str | Table] = []
    for one in found:
        body.append(f"{one.flow}: {len({row.group for row in one.rows})} group(s)")
        if not one.checkpoints:
            body.append(
                f"{one.flow}: checkpoints are disabled (emit.checkpoints.enabled=false), so groups"
                " are not mirrored; TRANSLATED is from an earlier run, if any"
            )
        body += [Table(_COLUMNS, one.rows)] if one.rows else []
    flows = [
        {"flow": one.flow, "checkpoints": one.checkpoints, "groups": _documents(one)}
        for one in found
    ]
    return Report({"flows": flows}, body)


def _documents(of: FlowGroups) -> list[dict[str, object]]:
    """The groups of one flow, each with its partitions."""
    partitions: dict[tuple[str, str], list[dict[str, object]]] = {}
    for row in of.rows:
        values = {**asdict(row), "lag": row.lag, "remark": row.remark or None}
        named = values.pop("group"), values.pop("state")
        partitions.setdefault(named, []).append(values)
    return [
        {"group": group, "state": state, "partitions": rows}
        for (group, state), rows in partitions.items()
    ]
