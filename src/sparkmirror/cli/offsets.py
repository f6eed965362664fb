"""``sparkmirror offsets``: where consumer groups stand on the other cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.asking import open_flows
from sparkmirror.cli.files import Mm2File
from sparkmirror.cli.tables import Format, Output, print_json, table_lines
from sparkmirror.errors import ConfigError

if TYPE_CHECKING:
    from sparkmirror.client import Checkpoint
    from sparkmirror.model import TopicPartition

__all__ = ["document", "offsets", "text", "translate"]

offsets = typer.Typer(
    help="Where consumer groups stand on the other cluster.", no_args_is_help=True
)

Found = Mapping[tuple[str, "TopicPartition"], "Checkpoint"]


@offsets.callback()
def _offsets() -> None:
    """Where consumer groups stand on the other cluster."""


@offsets.command()
def translate(
    file: Mm2File,
    flow: Annotated[
        str,
        typer.Argument(
            metavar="A->B", help="The flow that the groups move along.", show_default=False
        ),
    ],
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
        typer.Option(metavar="SECONDS", min=0.1, max=3_600, help="Read checkpoints this long."),
    ] = 60.0,
    output: Output = Format.TABLE,
) -> None:
    """Show where groups of A go on when their consumers move to B, as the checkpoints on B say.

    UPSTREAM is the offset committed on A, OFFSET the same place on B. Nothing is committed
    anywhere.

    Exit codes: 0 there are checkpoints, 1 there are none of these groups, 2 wrong usage or file,
    3 the cluster could not be asked.
    """
    from sparkmirror.cli.asking import ask_each, end_with  # noqa: PLC0415
    from sparkmirror.client import MirrorClient  # noqa: PLC0415
    from sparkmirror.java_regex import compile_regex  # noqa: PLC0415
    from sparkmirror.policy import make_policy  # noqa: PLC0415

    if (group is None) == (regex is None):
        raise ConfigError(
            "which groups is not said." if group is None else "both name groups.",
            where="--group, --regex",
            do="Give one of the two.",
        )
    pattern = compile_regex(regex, where="--regex") if regex is not None else None
    with open_flows(file, flows=[flow]) as asking:
        answers, failures = ask_each(
            asking.flows,
            lambda one: MirrorClient.of(
                asking.cluster(one.target_admin), make_policy(one.policy, one.source.alias)
            ).checkpoints(one.source.alias, timeout),
        )
    found = {
        key: checkpoint
        for answer in answers
        for key, checkpoint in sorted(answer.items(), key=lambda item: item[0])
        if (pattern.fullmatch(key[0]) if pattern is not None else key[0] == group)
    }
    if output is Format.JSON:
        print_json(document(flow, found))
    else:
        print("\n".join(text(flow, found)), flush=True)
    end_with(failures, json_lines=output is Format.JSON)
    if not found:
        raise typer.Exit(1)


def text(flow: str, found: Found) -> Iterator[str]:
    """The lines for people."""
    if not found:
        yield f"{flow}: no checkpoints of these groups"
        return
    yield from table_lines(
        ("GROUP", "REMOTE-TOPIC", "PARTITION", "UPSTREAM", "OFFSET", "METADATA"),
        [
            (group, tp.topic, tp.partition, one.upstream, one.downstream, one.metadata)
            for (group, tp), one in found.items()
        ],
    )


def document(flow: str, found: Found) -> dict[str, object]:
    """What ``--format json`` prints."""
    groups: dict[str, list[dict[str, object]]] = {}
    for (group, tp), one in found.items():
        groups.setdefault(group, []).append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "upstream_offset": one.upstream,
                "offset": one.downstream,
                "metadata": one.metadata,
            }
        )
    return {"flow": flow, "groups": groups}
