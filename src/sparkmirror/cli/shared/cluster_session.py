"""What commands that query a file's clusters share: flows, connections, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

import typer

from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.shared.settings_options import Files, load_settings
from sparkmirror.cli.shared.tables import Format, Report
from sparkmirror.errors import ConfigError, MirrorError

if TYPE_CHECKING:
    from sparkmirror.control.topics.observation import Observation
    from sparkmirror.settings import FlowSettings, MirrorSettings
    from sparkmirror.wire.admin.cluster import Cluster

T = TypeVar("T")
R = TypeVar("R")


class ClusterSession(Connections):
    """The flows of a file, and the connections to their clusters."""

    def __init__(self, settings: MirrorSettings) -> None:
        super().__init__()
        self.settings = settings
        self.flows = settings.flows

    def __enter__(self) -> Self:
        for flow in self.flows:
            self.expect((flow.source_admin, flow.target_admin))
        return super().__enter__()

    def observe(self, flow: FlowSettings) -> Observation:
        """Both clusters of ``flow``; internal topics are read with the clients that a run uses."""
        from sparkmirror.control.topics.observation import Observation  # noqa: PLC0415

        checkpoints = self.cluster(flow.checkpoints.client or flow.target)
        on_source = flow.offset_syncs.location == "source"
        return Observation(
            flow,
            self.cluster(flow.source_admin),
            self.cluster(flow.target_admin),
            syncs=self.cluster(flow.source) if on_source else checkpoints,
            runs=self.cluster(flow.target),
            checkpoints=checkpoints,
        )


def open_flows(
    files: Files,
    *,
    keep_partitions: bool = False,
    listed: bool = True,
    clusters: Sequence[str] | None = None,
    flows: Sequence[str] | None = None,
) -> ClusterSession:
    """Read a MirrorMaker 2 file, or MirrorMaker 1's; this connects to no cluster yet.

    The options are those of `load_settings`. Raises `MirrorError`.
    """
    return ClusterSession(
        load_settings(
            files,
            clusters or (),
            keep_partitions=keep_partitions,
            listed=listed,
            flows=flows or (),
        )
    )


def query_targets(
    files: Files,
    clusters: Sequence[str] | None,
    flows: Sequence[str] | None,
    query: Callable[[Cluster, FlowSettings], R],
) -> tuple[list[R], list[MirrorError]]:
    """`query_each` for the flows of ``files``, each with a connection to its target cluster."""
    settings = load_settings(files, clusters or (), listed=False, flows=flows or ())
    with Connections() as connections:
        connections.expect(flow.target_admin for flow in settings.flows)
        return query_each(
            settings.flows, lambda flow: query(connections.cluster(flow.target_admin), flow)
        )


def refuse_mm1(verb: str, files: Files) -> None:
    """Raise ConfigError if MirrorMaker 1's files are given, which have nothing for ``verb``."""
    if files.consumer_config or files.producer_config is not None:
        raise ConfigError(
            "MirrorMaker 1 does not mirror consumer groups, so it has no checkpoints.",
            where=f"sparkmirror {verb} --consumer.config",
            do="'sparkmirror lag CONSUMER-FILE' shows the mirror's own group. For other groups' "
            "offsets, create a MirrorMaker 2 file: sparkmirror migrate-config.",
        )


def query_each(items: Iterable[T], query: Callable[[T], R]) -> tuple[list[R], list[MirrorError]]:
    """Call ``query`` for each item; returns the results, and the errors of items that failed."""
    results: list[R] = []
    failures: list[MirrorError] = []
    for item in items:
        try:
            results.append(query(item))
        except MirrorError as error:
            failures.append(error)
    return results, failures


def show_failures(failures: Iterable[MirrorError], output: Format) -> None:
    """Show each distinct failure once; several flows may have the same one."""
    for failure in {str(one): one for one in failures}.values():
        show_error(failure, json_lines=output is Format.JSON)


def finish(report: Report, output: Format, failures: Sequence[MirrorError] = ()) -> None:
    """Print ``report``, then ``failures``; exits with code 3 if there are any."""
    report.show(output)
    show_failures(failures, output)
    if failures:
        raise typer.Exit(EXIT_START_FAILED)
