"""``sparkmirror doctor``: finds what would keep a mirror from running, before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Flows,
    KeepPartitions,
    TopicFiles,
    load_settings,
    spark_conf,
    with_files,
)
from sparkmirror.cli.shared.tables import Format, Output, Report
from sparkmirror.errors import ConfigError
from sparkmirror.side_by_side import of_each

if TYPE_CHECKING:
    from sparkmirror.doctor.finding import Finding
    from sparkmirror.settings import MirrorSettings

_MARKS = {"ok": "✓ ok  ", "warn": "! WARN", "fail": "✗ FAIL", "skip": "- skip"}
_CHECK_WIDTH = 16


@with_files
def doctor(
    files: TopicFiles,
    keep_partitions: KeepPartitions = False,
    flows: Flows = None,
    clusters: Clusters = None,
    rate: Annotated[
        float,
        typer.Option(
            metavar="MB/S", min=0.001, help="Assumed copy rate, for the check of retention."
        ),
    ] = 50.0,
    output: Output = Format.TABLE,
    problems: Annotated[bool, typer.Option("--problems", help="Print only problems.")] = False,
    executors: Annotated[
        bool,
        typer.Option(
            "--executors",
            help="Also check the path from the executors of --master to every broker, in a small"
            " Spark job.",
            rich_help_panel="Spark",
        ),
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark master of --executors: spark://host:port.",
            show_default=False,
            rich_help_panel="Spark",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A Spark setting for --executors, as for run; may be repeated.",
            show_default=False,
            rich_help_panel="Spark",
        ),
    ] = None,
) -> None:
    """Check everything that a mirror needs, from this machine, without changing anything.

    Checks the network to every bootstrap server and every advertised broker address (name, TCP,
    TLS, login), API versions, clocks, permissions, topics, partition counts, replication, message
    sizes, timestamp limits and retention. Each check says what was tried, the result and what to
    do. It takes 15 seconds at most; --executors adds the start of a Spark job.

    Exit codes: 0 no check failed (there may be warnings), 1 a check failed, 2 wrong usage or file,
    3 the brokers could not be found in ZooKeeper.
    """
    if executors != (master is not None):
        raise ConfigError(
            "these two options need each other.",
            where="--executors, --master",
            do="Write --executors --master spark://host:port, or neither.",
        )
    settings = load_settings(
        files, clusters or (), keep_partitions=keep_partitions, flows=flows or ()
    )
    found = _examine(settings, rate_bytes_s=rate * 1e6)
    if master is not None:
        _add_executors(found, settings, master, spark_conf(conf or ()))
    shown = found
    if problems:
        shown = {
            flow: [one for one in findings if one.level.value != "ok"]
            for flow, findings in found.items()
        }
    report(shown).show(output)
    if any(one.level.value == "fail" for findings in found.values() for one in findings):
        raise typer.Exit(1)


def _examine(settings: MirrorSettings, *, rate_bytes_s: float) -> dict[str, list[Finding]]:
    from sparkmirror.doctor.examine import (  # noqa: PLC0415
        Examination,
        check_heartbeats,
        examine,
    )

    how = Examination(rate_bytes_s=rate_bytes_s)
    flows = settings.flows
    results = of_each(lambda flow: examine(flow, how), flows, at_most=len(flows))
    return {
        flow.name: [*result, *check_heartbeats(flow, settings.heartbeats)]
        for flow, result in zip(flows, results, strict=True)
    }


def _add_executors(
    found: Mapping[str, list[Finding]],
    settings: MirrorSettings,
    master: str,
    conf: Mapping[str, str],
) -> None:
    from sparkmirror.cli.run.workdir import new_run_id, open_work_dir  # noqa: PLC0415
    from sparkmirror.doctor.executors import explore_from_executors  # noqa: PLC0415

    run_id = new_run_id()
    # One slot per flow is enough to check the network.
    flows = tuple(replace(flow, tasks_max=1) for flow in settings.flows)
    for flow, findings in explore_from_executors(
        replace(settings, flows=flows), master, conf, open_work_dir(None, run_id), run_id
    ).items():
        found[flow].extend(findings)


def report(found: Mapping[str, Sequence[Finding]]) -> Report:
    """The findings of each flow: one line each, with what to do below it."""
    from sparkmirror.doctor.finding import counts  # noqa: PLC0415
    from sparkmirror.observe.logs import mask_secrets  # noqa: PLC0415

    flows, lines = [], []
    for flow, findings in found.items():
        number = counts(findings)
        documents = [
            {
                "check": one.check,
                "level": one.level.value,
                "subject": one.subject,
                "tried": one.tried,
                "found": mask_secrets(one.found),
                "do": mask_secrets(one.do),
                "place": one.place,
            }
            for one in findings
        ]
        flows.append({"flow": flow, "counts": number, "findings": documents})
        lines += [flow, *(line for one in findings for line in _lines(one))]
        lines.append(
            f"  {number['fail']} failed, {number['warn']} warnings, {number['skip']} skipped, "
            f"{number['ok']} ok"
        )
    return Report({"flows": flows}, mask_secrets("\n".join(lines)).split("\n"), one_line=True)


def _lines(one: Finding) -> Iterator[str]:
    place = f" (from {one.place})" if one.place else ""
    yield (
        f"  {_MARKS[one.level.value]}  {one.check.ljust(_CHECK_WIDTH)}  "
        f"{one.subject}{place}: {one.found}"
    )
    if one.level.value != "ok":
        yield f"{' ' * 12}tried: {one.tried}"
    if one.do:
        yield f"{' ' * 12}do: {one.do}"
