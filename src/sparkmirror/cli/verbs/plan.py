"""``sparkmirror plan``: shows what a run would change on which cluster; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.cluster_session import finish, open_flows, query_each
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Flows,
    KeepPartitions,
    TopicFiles,
    with_files,
)
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table

if TYPE_CHECKING:
    from sparkmirror.control.topics.observation import FlowPlan

_COLUMNS: Columns = {
    "CLUSTER": "cluster",
    "ACTION": "action",
    "SUBJECT": "subject",
    "DETAILS": lambda change: _details_text(change.details),
}
_TOPICS: Columns = {
    "TOPIC": itemgetter(0),
    "RAW-BATCHES": itemgetter(1),
    "TRANSFORM": itemgetter(2),
    "REASON": itemgetter(3),
}


@with_files
def plan(
    files: TopicFiles,
    keep_partitions: KeepPartitions = False,
    flows: Flows = None,
    clusters: Clusters = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what a run of FILE, or of MirrorMaker 1's files, would change on which cluster.

    Shows topics that would be created or get partitions, configs and ACLs that would be synced,
    checkpoints and group offsets that would be written, and what would fail ("refuse"). With
    transforms it also shows which topics keep raw batches, and which do not. The code of a run
    determines this from the clusters' present state. Nothing is changed.

    Exit codes: 0 shown, with or without changes; 2 wrong usage or file; 3 a cluster is unavailable.
    """
    from sparkmirror.control.report.plan import plan_flow  # noqa: PLC0415
    from sparkmirror.control.report.plan_groups import plan_heartbeats  # noqa: PLC0415

    with open_flows(
        files, keep_partitions=keep_partitions, clusters=clusters, flows=flows
    ) as session:
        plans, failures = query_each(session.flows, lambda flow: plan_flow(session.observe(flow)))
        if not flows:
            beats, silent = query_each(
                session.settings.heartbeats,
                lambda one: plan_heartbeats(one, session.cluster(one.target_admin)),
            )
            plans += [one for one in beats if one.changes or one.failures]
            failures += silent
    failures += [failure for one in plans for failure in one.failures]
    finish(report(plans), output, failures)


def report(plans: Sequence[FlowPlan]) -> Report:
    """The changes of each flow."""
    return Report(
        {"flows": [_document(one) for one in plans]},
        [part for one in plans for part in _body(one)],
    )


def _body(one: FlowPlan) -> list[str | Table]:
    changes: list[str | Table]
    if one.changes:
        changes = [f"{one.flow}: {len(one.changes)} change(s)", Table(_COLUMNS, one.changes)]
    else:
        changes = [one.flow if one.failures else f"{one.flow}: nothing would be changed"]
    return [*changes, *_passing(one)]


def _passing(one: FlowPlan) -> list[str | Table]:
    """Which topics keep raw batches; nothing for a flow without transforms."""
    passing = one.pass_through
    if passing is None:
        return []
    rows: list[tuple[str, bool, str, str]] = [
        (topic, False, each.transform, each.reason)
        for each in passing.transforms
        for topic in each.topics
    ]
    rows += [(topic, True, "", "") for topic in passing.raw]
    lost = len(rows) - len(passing.raw)
    found: list[str | Table] = [
        f"{one.flow}: {lost} of {len(rows)} topic(s) lose pass-through of raw batches"
    ]
    if rows:
        found.append(Table(_TOPICS, sorted(rows)))
    found += [
        f"{one.flow}: the transform {each.transform} matches no topic of the flow"
        for each in passing.transforms
        if not each.topics
    ]
    found += [
        f"{one.flow}: the transform {each.transform} reads the table {name} from {place}"
        for each in passing.transforms
        for name, place in each.tables
    ]
    return found


def _document(one: FlowPlan) -> dict[str, object]:
    changes = [
        {
            "cluster": change.cluster,
            "action": change.action,
            "subject": change.subject,
            "topic": change.topic or None,
            **change.details,
        }
        for change in one.changes
    ]
    found: dict[str, object] = {
        "flow": one.flow,
        "changes": changes,
        "complete": not one.failures,
    }
    if one.pass_through is not None:
        found["pass_through"] = {
            "transformed": [
                {
                    "transform": each.transform,
                    "topics": list(each.topics),
                    "reason": each.reason,
                    "tables": dict(each.tables),
                }
                for each in one.pass_through.transforms
            ],
            "raw": list(one.pass_through.raw),
        }
    return found


def _details_text(details: Mapping[str, object]) -> str:
    if "reason" in details:
        return str(details["reason"])
    if "acl" in details:
        return str(details["acl"])
    if "topic_partition" in details:
        was = "no offset" if details["was"] is None else details["was"]
        return f"{details['topic_partition']} at {details['offset']} (was {was})"
    if "config" in details:
        then = f"={details['value']}" if "value" in details else " back to the default"
        return f"{details['config']}{then} (was {details['was']})"
    told = []
    for name, value in details.items():
        if isinstance(value, Mapping):
            told += [f"{key}={one}" for key, one in value.items()]
        elif isinstance(value, list):
            told.append(f"{name.replace('_', ' ')}: {', '.join(value)}")
        else:
            told.append(f"{name.replace('_', '.')}={value}")
    return " ".join(told)
