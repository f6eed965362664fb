"""``sparkmirror config``: each flow's effective settings, and where each value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.settings_options import Clusters, Files, Flows, with_files
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table
from sparkmirror.errors import ConfigError, Defect

if TYPE_CHECKING:
    from sparkmirror.config.explain import Effective, ExplainedFile, Place


@with_files
def config(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    given: Annotated[
        bool, typer.Option("--given", help="Show only settings that are set, without defaults.")
    ] = False,
    output: Output = Format.TABLE,
    docs: Annotated[
        bool, typer.Option("--docs", help="Print the page of all settings; takes no FILE.")
    ] = False,
) -> None:
    """Show the effective settings of each flow, and the line of the file that each comes from.

    Give a MirrorMaker 2 file, or MirrorMaker 1's: --consumer.config and --producer.config.

    The file is read and checked as a run does it, with the same errors and warnings. This includes
    missing truststores, and metrics that anybody could read. No cluster is contacted. Secrets and
    values from config providers are never shown.

    Exit codes: 0 the file can be run, 2 wrong usage or file, 3 the brokers could not be found in
    ZooKeeper.
    """
    if docs:
        from sparkmirror.config.docs import settings_page  # noqa: PLC0415

        if files.file is not None or files.consumer_config or files.producer_config is not None:
            raise ConfigError(
                "the page lists all settings, so it takes no file.",
                where="--docs",
                do="Leave out FILE or --docs.",
            )
        print(settings_page(), end="")
        return
    setup = _setup(files, clusters or (), flows or ())
    _check_files(setup)
    _report(setup, given=given).show(output)


def _setup(files: Files, clusters: Sequence[str], flows: Sequence[str]) -> ExplainedFile:
    from sparkmirror.cli.shared.secrets import hide_secrets  # noqa: PLC0415
    from sparkmirror.cli.shared.settings_options import (  # noqa: PLC0415
        choose_flows,
        load_settings,
        look_up_brokers,
        settled,
        split_clusters,
    )

    files = settled(files)
    consumers, producer = files.consumer_config or [], files.producer_config
    if files.file is not None and not consumers and producer is None:
        from sparkmirror.config.explain import explain  # noqa: PLC0415

        setup = explain(files.file, clusters=split_clusters(clusters), flows=flows)
        hide_secrets(setup.settings)
        return setup
    # Checks the options, and masks secrets.
    settings = load_settings(files, clusters, listed=False)
    from sparkmirror.config.explain_mm1 import explain_mm1  # noqa: PLC0415

    if producer is None:
        raise Defect("MirrorMaker 1 has a producer file")
    setup = explain_mm1(consumers, producer, find_brokers=look_up_brokers)
    names = {flow.name for flow in choose_flows(settings, flows)}
    return replace(setup, flows=tuple(one for one in setup.flows if one.flow in names))


def _check_files(setup: ExplainedFile) -> None:
    """Check the files that the settings name, as a run does before it connects to a cluster.

    Raises `MirrorError`.
    """
    from sparkmirror.config.clients.security import at_its_line  # noqa: PLC0415
    from sparkmirror.wire.security.tls import context_for  # noqa: PLC0415

    settings = setup.settings
    clients = [client for flow in settings.flows for client in flow.clients]
    clients += [one for beats in settings.heartbeats for one in (beats.target, beats.target_admin)]
    for client in clients:
        try:
            context_for(client)
        except ConfigError as error:
            mine = setup.entries_of(client.alias)
            raise at_its_line(error, client.properties, mine, client.alias) from None
    if settings.metrics.listen:
        from sparkmirror.observe.metrics.server import check_metrics_server  # noqa: PLC0415

        try:
            check_metrics_server(settings.metrics)
        except ConfigError as error:
            driver = {one.key: one.value for one in setup.entries}
            raise at_its_line(error, driver, setup.entries) from None


def _origin(one: Effective) -> str:
    told = one.origin.value
    if one.place is not None:
        told = _place_text(one.place)
        if one.overrides:
            told += f"; overrides {', '.join(map(_place_text, one.overrides))}"
    for remark in (one.remark, f"IGNORED: {one.ignored}" if one.ignored else ""):
        if remark:
            told += f"; {remark}"
    return told


def _place_text(place: Place) -> str:
    line = place.where.rpartition(":")[2]
    return f"line {line} {place.spelling} ({place.scope})"


_COLUMNS: Columns = {
    "PART": "part.value",
    "KEY": "key",
    "VALUE": lambda one: "(none)" if one.value is None else one.value,
    "FROM": _origin,
}


def _report(setup: ExplainedFile, *, given: bool) -> Report:
    """The settings of each flow's parts, then the warnings."""
    warnings = setup.settings.warnings
    chosen = {
        flow.flow: [one for one in flow.settings if one.place is not None or not given]
        for flow in setup.flows
    }
    body: list[str | Table] = []
    for flow, found in chosen.items():
        body += [flow, Table(_COLUMNS, found), ""]
    body += [f"warning: {warning}" for warning in warnings]
    body.append(f"{setup.path}: {len(setup.flows)} flow(s), {len(warnings)} warning(s)")
    document = {
        "file": str(setup.path),
        "clusters": list(setup.settings.clusters),
        "flows": [
            {"flow": flow, "settings": [_document(one) for one in found]}
            for flow, found in chosen.items()
        ],
        "warnings": list(warnings),
    }
    return Report(document, body)


def _document(one: Effective) -> dict[str, object]:
    return {
        "part": one.part.value,
        "key": one.key,
        "value": one.value,
        "origin": one.origin.value,
        "where": one.place.where if one.place else None,
        "spelling": one.place.spelling if one.place else None,
        "scope": one.place.scope if one.place else None,
        "overrides": [
            {"where": place.where, "spelling": place.spelling} for place in one.overrides
        ],
        "ignored": one.ignored or None,
        "remark": one.remark or None,
    }
