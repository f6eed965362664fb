"""``sparkmirror offsets``: offsets of consumer groups, translated to the other cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.cluster_session import finish, open_flows, query_each
from sparkmirror.cli.shared.settings_options import Files, Mm2File, SameFlow, one_flow
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table
from sparkmirror.errors import ConfigError

if TYPE_CHECKING:
    from sparkmirror.client import Checkpoint
    from sparkmirror.control.topics.observation import Observation
    from sparkmirror.model import TopicPartition

offsets = typer.Typer(
    help="Offsets of consumer groups, translated to the other cluster.", no_args_is_help=True
)

Found = Mapping[tuple[str, "TopicPartition"], "Checkpoint"]
Theirs = Mapping[tuple[str, "TopicPartition"], int | None]


@offsets.callback()
def _offsets() -> None:
    """Offsets of consumer groups, translated to the other cluster."""


@offsets.command()
def translate(
    file: Mm2File,
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="FLOW", help="The flow whose groups to translate: 'A->B'.", show_default=False
        ),
    ] = None,
    flow: SameFlow = None,
    group: Annotated[
        str | None, typer.Option(metavar="G", help="This group.", show_default=False)
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Every group whose whole name matches this Java regex.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=3_600, help="Time limit for reading checkpoints."
        ),
    ] = 60.0,
    mirrormaker: Annotated[
        bool,
        typer.Option(
            "--mirrormaker",
            help="Also show the offset that a MirrorMaker 2 started now would give (needs Read on"
            " the offset-syncs topic).",
        ),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show where groups of A continue when their consumers move to B, from the checkpoints on B.

    UPSTREAM is the offset committed on A, OFFSET its translation on B. Nothing is committed.

    Exit codes: 0 there are checkpoints, 1 these groups have none, 2 wrong usage or file, 3 the
    cluster is unavailable.
    """
    from sparkmirror.client import MirrorClient  # noqa: PLC0415
    from sparkmirror.names.java_regex import compile_regex  # noqa: PLC0415
    from sparkmirror.names.replication_policy import make_policy  # noqa: PLC0415

    flow = one_flow(named, flow)
    if (group is None) == (regex is None):
        raise ConfigError(
            "no group is named." if group is None else "both options name groups.",
            where="--group, --regex",
            do="Give one of the two.",
        )
    pattern = compile_regex(regex, where="--regex") if regex is not None else None
    with open_flows(Files(file), flows=[flow]) as session:
        answers, failures = query_each(
            session.flows,
            lambda one: MirrorClient.of(
                session.cluster(one.target_admin), make_policy(one.policy, one.source.alias)
            ).checkpoints(one.source.alias, timeout),
        )
        found = {
            key: checkpoint
            for answer in answers
            for key, checkpoint in sorted(answer.items(), key=lambda item: item[0])
            if (pattern.fullmatch(key[0]) if pattern is not None else key[0] == group)
        }
        theirs: Theirs | None = None
        if mirrormaker and found:
            told, not_told = query_each(
                [session.observe(one) for one in session.flows],
                lambda observed: _theirs(observed, found),
            )
            failures += not_told
            theirs = {key: offset for answer in told for key, offset in answer.items()}
    finish(report(flow, found, theirs, complete=not failures), output, failures)
    if not found:
        raise typer.Exit(1)


def _theirs(observed: Observation, found: Found) -> Theirs:
    from sparkmirror.control.groups.checkpoints import CheckpointRules  # noqa: PLC0415
    from sparkmirror.control.report.compare_groups import mirrormaker_offsets  # noqa: PLC0415
    from sparkmirror.control.topics.compacted import TopicFollower  # noqa: PLC0415
    from sparkmirror.internal_topics.mm2_records import offset_syncs_topic  # noqa: PLC0415

    follower = TopicFollower(observed.syncs, offset_syncs_topic(observed.flow))
    try:
        return mirrormaker_offsets(CheckpointRules(observed.flow), follower, found.values())
    finally:
        follower.close()


def report(
    flow: str, found: Found, theirs: Theirs | None = None, *, complete: bool = True
) -> Report:
    """The checkpoints found, by group. ``theirs``: MirrorMaker 2's translation, if requested.

    ``complete``: whether all could be read.
    """
    columns: Columns = {
        "GROUP": "group",
        "REMOTE-TOPIC": "remote.topic",
        "PARTITION": "remote.partition",
        "UPSTREAM": "upstream",
        "OFFSET": "downstream",
        "METADATA": "metadata",
    }
    if theirs is not None:
        columns = {**columns, "MIRRORMAKER": lambda one: theirs.get((one.group, one.remote))}
    groups: dict[str, list[dict[str, object]]] = {}
    for (group, tp), one in found.items():
        row: dict[str, object] = {
            "topic": tp.topic,
            "partition": tp.partition,
            "upstream_offset": one.upstream,
            "offset": one.downstream,
            "metadata": one.metadata,
        }
        if theirs is not None:
            row["mirrormaker_offset"] = theirs.get((group, tp))
        groups.setdefault(group, []).append(row)
    body: list[str | Table] = [Table(columns, found.values())] if found else []
    if complete and not found:
        body = [f"{flow}: no checkpoints of these groups"]
    return Report({"flow": flow, "groups": groups}, body)
