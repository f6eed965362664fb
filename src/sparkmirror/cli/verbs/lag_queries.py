"""What ``sparkmirror lag`` reads: the flows of a file, or one group of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparkmirror.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from sparkmirror.cli.shared.connections import Connections
    from sparkmirror.control.positions.lag import LagView
    from sparkmirror.settings import FlowSettings

LagReader = Callable[[], "LagView"]

_ZOOKEEPER = "localhost:2181"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The options that name a consumer group and its cluster; None: as a file says."""

    name: str | None
    zookeeper: str | None
    bootstrap: str | None
    command_config: Path | None
    topics: tuple[str, ...]
    socket_timeout_ms: int | None = None
    retry_backoff_ms: int | None = None

    @property
    def given(self) -> bool:
        """Whether any of these options is given."""
        return bool(self.options() or self.command_config or self.topics)

    def options(self) -> dict[str, tuple[str, str]]:
        """The options as client properties: key to (value, option)."""
        given = (
            ("group.id", self.name, "--group"),
            ("bootstrap.servers", self.bootstrap, "--bootstrap-server"),
            ("zookeeper.connect", self.zookeeper, "--zkconnect"),
            ("request.timeout.ms", self.socket_timeout_ms, "--socket.timeout.ms"),
            ("retry.backoff.ms", self.retry_backoff_ms, "--retry.backoff.ms"),
        )
        return {key: (str(value), option) for key, value, option in given if value is not None}


def named(file: Path | None) -> Path:
    """``file``; raises ConfigError if it is None."""
    if file is None:
        raise ConfigError(
            "no file and no group is named.",
            where="FILE",
            do="Name a MirrorMaker 2 file or MirrorMaker 1's consumer file, or --group G with "
            "--bootstrap-server or --zkconnect.",
        )
    return file


def flow_readers(
    path: Path,
    clusters: Sequence[str],
    flows: Sequence[str],
    include: str | None,
    connections: Connections,
) -> list[LagReader]:
    """One function per flow that reads its lag, through ``connections``. Raises ConfigError."""
    from sparkmirror.cli.shared.secrets import hide_secrets  # noqa: PLC0415
    from sparkmirror.cli.shared.settings_options import (  # noqa: PLC0415
        choose_flows,
        look_up_brokers,
        needs_mm2,
        split_clusters,
    )
    from sparkmirror.config.files.properties import load_properties  # noqa: PLC0415
    from sparkmirror.config.mm1.load import load_mm1_consumer  # noqa: PLC0415
    from sparkmirror.config.mm2.load import load_mm2  # noqa: PLC0415
    from sparkmirror.model import MirrorMode  # noqa: PLC0415

    if "clusters" in load_properties(path):
        if include is not None:
            raise ConfigError(
                "this option is for MirrorMaker 1's consumer files; a MirrorMaker 2 file names its"
                " topics itself.",
                where="--include",
                do="Leave it out.",
            )
        settings = load_mm2(path, clusters=split_clusters(clusters))
    elif clusters:
        raise needs_mm2("--clusters")
    else:
        settings = load_mm1_consumer(path, include=include, find_brokers=look_up_brokers)
    hide_secrets(settings)
    readers: list[LagReader] = []
    for flow in choose_flows(settings, flows):
        connections.expect([flow.source])
        if flow.mode is MirrorMode.MM2:
            connections.expect([flow.target_admin])
        group = flow.mode is MirrorMode.MM1 and include is None
        readers.append(partial(_read_group if group else _read_flow, connections, flow))
    return readers


def _read_flow(connections: Connections, flow: FlowSettings) -> LagView:
    from sparkmirror.control.positions.lag import observe_flow  # noqa: PLC0415
    from sparkmirror.model import MirrorMode  # noqa: PLC0415

    source = connections.cluster(flow.source)
    mm2 = flow.mode is MirrorMode.MM2
    target = connections.cluster(flow.target_admin) if mm2 else source
    return observe_flow(source, target, flow)


def _read_group(connections: Connections, flow: FlowSettings) -> LagView:
    from sparkmirror.control.positions.lag import observe_group  # noqa: PLC0415

    view = observe_group(connections.cluster(flow.source), flow)
    if not view.partitions:
        raise ClusterError(
            f"the group {flow.group_id} has no offsets of topics that exist.",
            where=f"cluster {flow.source.alias}",
            do="Check group.id; --include also shows topics without offsets.",
        )
    return view


def group_readers(
    path: Path | None,
    wanted: GroupOptions,
    include: str | None,
    clusters: Sequence[str],
    connections: Connections,
) -> list[LagReader]:
    """The function that reads one group's lag, through ``connections``. Raises ConfigError."""
    from sparkmirror.cli.shared.secrets import hide_secrets  # noqa: PLC0415
    from sparkmirror.cli.shared.settings_options import look_up_brokers  # noqa: PLC0415
    from sparkmirror.config.files.properties import load_properties  # noqa: PLC0415
    from sparkmirror.config.mm1.load import load_mm1_consumer  # noqa: PLC0415

    for option, given in (
        ("--include", include is not None),
        ("--clusters, --flow", bool(clusters)),
    ):
        if given:
            raise ConfigError(
                "this option is for a mirror, not for a group.",
                where=option,
                do="Leave it out; --topic selects topics of the group.",
            )
    if path is not None and wanted.command_config is not None:
        raise ConfigError(
            "two files say how to connect to the group's cluster.",
            where=f"{path}, --command-config",
            do="Name one of them.",
        )
    file = path or wanted.command_config
    if file is not None and "clusters" in load_properties(file):
        raise ConfigError(
            "a MirrorMaker 2 file names several clusters, but a group belongs to one.",
            where=str(file),
            do="Name its cluster: --group G --bootstrap-server HOST:PORT. For the mirror's own "
            "positions, give only the file.",
        )
    if file is None and wanted.bootstrap is None and wanted.zookeeper is None:
        print(
            f"warning: the group's cluster is not named; using ZooKeeper at {_ZOOKEEPER}, "
            "ConsumerOffsetChecker's default. Name the cluster with --bootstrap-server HOST:PORT, "
            "or --zkconnect HOST:PORT for an old one.",
            file=sys.stderr,
        )
        wanted = replace(wanted, zookeeper=_ZOOKEEPER)
    settings = load_mm1_consumer(
        file,
        find_brokers=look_up_brokers,
        options=wanted.options(),
        for_admin=wanted.command_config is not None,
    )
    hide_secrets(settings)
    (flow,) = settings.flows
    if wanted.zookeeper is not None:  # if brokers are named too, it only provides offsets
        flow = replace(flow, zookeeper=wanted.zookeeper)
    connections.expect([flow.source])
    return [partial(_check, connections, flow, wanted.topics)]


def _check(connections: Connections, flow: FlowSettings, topics: Sequence[str]) -> LagView:
    from sparkmirror.control.positions.lag import check_group  # noqa: PLC0415

    return check_group(connections.cluster(flow.source), flow, topics)
