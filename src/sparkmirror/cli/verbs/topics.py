"""``sparkmirror topics``: each source topic beside its remote topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.cluster_session import ask_each, end_with, open_flows
from sparkmirror.cli.shared.settings_options import Clusters, Flows, TopicFiles, with_files
from sparkmirror.cli.shared.tables import Format, Output, print_json, table_lines
from sparkmirror.text import say

if TYPE_CHECKING:
    from sparkmirror.control.report.compare import TopicPair

__all__ = ["document", "text", "topics"]

Found = Sequence[tuple[str, Sequence["TopicPair"]]]


@with_files
def topics(
    files: TopicFiles,
    flows: Flows = None,
    clusters: Clusters = None,
    output: Output = Format.TABLE,
) -> None:
    """Show which topics each flow mirrors, under which names, and what differs on the other side.

    PARTITIONS and REPLICATION are those of source and target. STATE is missing, fewer partitions,
    more partitions, configs differ or same. Configs are compared by the rules of the config sync,
    though MirrorMaker 1's files ask for none.

    Exit codes: 0 looked, 2 wrong usage or file, 3 a cluster could not be asked.
    """
    from sparkmirror.control.report.compare import compare_topics  # noqa: PLC0415

    with open_flows(files, clusters=clusters, flows=flows) as asking:
        found, failures = ask_each(
            asking.flows,
            lambda flow: (flow.name, compare_topics(asking.look(flow))),
        )
    if output is Format.JSON:
        print_json(document(found))
    else:
        say(*text(found))
    end_with(failures, json_lines=output is Format.JSON)


def text(found: Found) -> Iterator[str]:
    """The lines for people."""
    for flow, pairs in found:
        yield f"{flow}: {len(pairs)} topic(s)"
        if not pairs:
            continue
        yield from table_lines(
            ("TOPIC", "REMOTE-TOPIC", "PARTITIONS", "REPLICATION", "STATE", "DIFFERENCES"),
            [
                (
                    pair.topic,
                    pair.remote,
                    _both(pair.partitions, pair.remote_partitions),
                    _both(pair.replication, pair.remote_replication),
                    pair.state,
                    pair.trouble or "; ".join(map(str, pair.differences)),
                )
                for pair in pairs
            ],
        )


def _both(source: int, target: int | None) -> str:
    return f"{source} / {'-' if target is None else target}"


def document(found: Found) -> dict[str, object]:
    """What ``--format json`` prints."""
    return {
        "flows": [
            {"flow": flow, "topics": [{**asdict(pair), "state": pair.state} for pair in pairs]}
            for flow, pairs in found
        ]
    }
