"""``sparkmirror topics``: each source topic beside its remote topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.cluster_session import finish, open_flows, query_each
from sparkmirror.cli.shared.settings_options import Clusters, Flows, TopicFiles, with_files
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table

if TYPE_CHECKING:
    from sparkmirror.control.report.compare import TopicPair

_COLUMNS: Columns = {
    "TOPIC": "topic",
    "REMOTE-TOPIC": "remote",
    "PARTITIONS": lambda pair: _both(pair.partitions, pair.remote_partitions),
    "REPLICATION": lambda pair: _both(pair.replication, pair.remote_replication),
    "STATE": "state",
    "DIFFERENCES": lambda pair: (
        pair.refused or pair.trouble or "; ".join(map(str, pair.differences))
    ),
}


@with_files
def topics(
    files: TopicFiles,
    flows: Flows = None,
    clusters: Clusters = None,
    output: Output = Format.TABLE,
) -> None:
    """Show which topics each flow mirrors, their names on the target, and what differs there.

    PARTITIONS and REPLICATION are those of source and target. STATE is missing, fewer partitions,
    more partitions, configs differ, same, or left out: the topic is not mirrored, because another
    topic has the name that a map of topic names gives it, or because the name is not allowed.
    Configs are compared by the rules of the config sync, also for MirrorMaker 1's files, which do
    not sync configs.

    Exit codes: 0 shown, 2 wrong usage or file, 3 a cluster is unavailable.
    """
    from sparkmirror.control.report.compare import compare_topics  # noqa: PLC0415

    with open_flows(files, clusters=clusters, flows=flows) as session:
        found, failures = query_each(
            session.flows,
            lambda flow: (flow.name, compare_topics(session.observe(flow))),
        )
    finish(report(found), output, failures)


def _both(source: int, target: int | None) -> str:
    return f"{source} / {'-' if target is None else target}"


def report(found: Sequence[tuple[str, Sequence[TopicPair]]]) -> Report:
    """The topics of each flow."""
    body: list[str | Table] = []
    for flow, pairs in found:
        body.append(f"{flow}: {len(pairs)} topic(s)")
        body += [Table(_COLUMNS, pairs)] if pairs else []
    flows = [
        {"flow": flow, "topics": [{**asdict(pair), "state": pair.state} for pair in pairs]}
        for flow, pairs in found
    ]
    return Report({"flows": flows}, body)
