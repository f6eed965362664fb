"""``sparkmirror clusters``: the clusters of a file, their brokers and upstream clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.cluster_session import ClusterSession, finish, open_flows, query_each
from sparkmirror.cli.shared.settings_options import Files, with_files
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table

if TYPE_CHECKING:
    from sparkmirror.settings import ClusterClient, FlowSettings
    from sparkmirror.wire.cluster.views import ClusterView


@dataclass(frozen=True, slots=True)
class Survey:
    """One cluster.

    ``versions``: Kafka release by broker, where known. ``hops``: by upstream cluster, how many
    flows its heartbeats passed. ``silent``: sources of flows into this cluster whose heartbeats do
    not arrive.
    """

    alias: str
    view: ClusterView
    versions: dict[int, str]
    hops: dict[str, int]
    silent: tuple[str, ...]


@with_files
def clusters(
    files: Files,
    output: Output = Format.TABLE,
) -> None:
    """Show the clusters of the enabled flows: id, brokers, Kafka release, upstream clusters.

    Upstream clusters come from heartbeats: a cluster is upstream if its heartbeats arrive, directly
    (1 hop) or through other clusters.

    Exit codes: 0 shown, 2 wrong usage or file, 3 a cluster is unavailable.
    """
    with open_flows(files, listed=False) as session:
        found, failures = query_each(
            _roles(session.flows), lambda role: _survey(session, role[0], role[1])
        )
    finish(report(found), output, failures)


def _roles(flows: Sequence[FlowSettings]) -> list[tuple[ClusterClient, FlowSettings]]:
    """One client per cluster, with a flow for topic names: a flow into the cluster if possible."""
    roles = {flow.target.alias: (flow.target_admin, flow) for flow in reversed(flows)}
    for flow in flows:
        roles.setdefault(flow.source.alias, (flow.source_admin, flow))
    return [roles[alias] for alias in sorted(roles)]


def _survey(session: ClusterSession, client: ClusterClient, flow: FlowSettings) -> Survey:
    from sparkmirror.client import MirrorClient  # noqa: PLC0415
    from sparkmirror.model import MirrorMode  # noqa: PLC0415
    from sparkmirror.names.replication_policy import make_policy  # noqa: PLC0415

    cluster = session.cluster(client)
    view = cluster.describe()
    mirror = MirrorClient.of(cluster, make_policy(flow.policy, flow.source.alias))
    hops = mirror.hops()
    # MirrorMaker 1 emits no heartbeats, so none are missing.
    sources = (
        one.source.alias
        for one in session.flows
        if one.target.alias == client.alias and one.mode is MirrorMode.MM2
    )
    return Survey(
        client.alias,
        view,
        cluster.broker_versions(broker.node for broker in view.brokers),
        hops,
        tuple(sorted(alias for alias in sources if alias not in hops)),
    )


def report(found: Sequence[Survey]) -> Report:
    """The clusters, one after the other."""
    return Report(
        {"clusters": [_document(one) for one in found]},
        [part for one in found for part in _body(one)],
    )


def _document(one: Survey) -> dict[str, object]:
    brokers = [
        {**asdict(each), "version": one.versions.get(each.node)} for each in one.view.brokers
    ]
    return {
        "cluster": one.alias,
        "id": one.view.cluster_id,
        "controller": one.view.controller,
        "brokers": brokers,
        "upstream": one.hops,
        "no_heartbeats_from": list(one.silent),
    }


def _body(one: Survey) -> list[str | Table]:
    releases = ", ".join(sorted(set(one.versions.values()))) or "-"
    chain = ", ".join(
        f"{alias} ({hops} hop{'s' if hops != 1 else ''})"
        for alias, hops in sorted(one.hops.items(), key=lambda item: (item[1], item[0]))
    )
    columns: Columns = {
        "BROKER": "node",
        "ADDRESS": lambda each: f"{each.host}:{each.port}",
        "RACK": "rack",
        "VERSION": lambda each: one.versions.get(each.node),
    }
    return [
        f"{one.alias}: id {one.view.cluster_id or '-'}, {len(one.view.brokers)} broker(s), "
        f"Kafka {releases}, controller {one.view.controller}",
        Table(columns, one.view.brokers),
        f"upstream: {chain or '-'}",
        *([f"no heartbeats from: {', '.join(one.silent)}"] if one.silent else []),
        "",
    ]
