"""Offset syncs, checkpoints, group offsets and heartbeats of a MirrorMaker 2 file, as settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparkmirror.config.clients.typed import client, produce_settings
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader
from sparkmirror.config.mm2.scoping import (
    admin_config,
    connector_config,
    consumer_config,
    data_producer_config,
    producer_config,
    worker_config,
)
from sparkmirror.config.table.settings import Scope
from sparkmirror.errors import ConfigError
from sparkmirror.settings import CheckpointSettings, HeartbeatSettings, OffsetSyncSettings

Conf = Mapping[str, Entry]


def offset_sync_settings(conf: Conf, source: str, target: str, path: str) -> OffsetSyncSettings:
    """Offset-sync settings of one flow; ``conf`` is its connector configuration.

    Raises ConfigError, as Java does, if offset syncs are disabled but configured.
    """
    flow = ValueReader(conf, Scope.CONNECTOR)
    enabled = flow.boolean("emit.offset-syncs.enabled")
    given = next((entry for key, entry in conf.items() if key.startswith("offset-syncs")), None)
    if not enabled and given is not None:
        raise ConfigError(
            f"{given.key} cannot be combined with emit.offset-syncs.enabled=false.",
            where=given.where,
            do="Remove one of the two.",
        )
    location = flow.text("offset-syncs.topic.location")
    alias = source if location == "source" else target
    producer = producer_config(conf, location, f"offset-syncs-{location}-producer")
    return OffsetSyncSettings(
        enabled=enabled,
        location=location,
        lag_max=flow.integer("offset.lag.max"),
        replication_factor=flow.integer("offset-syncs.topic.replication.factor"),
        client=client(
            alias,
            producer,
            Scope.PRODUCER,
            producer["client.id"].value,
            path=path,
            key=f"{alias}.bootstrap.servers",
        ),
        produce=replace(
            produce_settings(producer, ValueReader({}, Scope.SPARKMIRROR)), join_bytes=0
        ),
    )


def checkpoint_settings(conf: Conf, target: str, path: str) -> CheckpointSettings:
    """Settings of one flow's checkpoints and group offsets, which need offset syncs."""
    flow = ValueReader(conf, Scope.CONNECTOR)
    interval_s = flow.integer("emit.checkpoints.interval.seconds")
    sync_interval_s = flow.integer("sync.group.offsets.interval.seconds")
    refresh_interval_s = flow.integer("refresh.groups.interval.seconds")
    possible = flow.boolean("emit.offset-syncs.enabled")
    enabled = possible and flow.boolean("emit.checkpoints.enabled") and interval_s >= 0
    consumer = consumer_config(conf, "target", "checkpoints-target-consumer")
    return CheckpointSettings(
        enabled=enabled,
        interval_s=max(1, interval_s),
        replication_factor=flow.integer("checkpoints.topic.replication.factor"),
        include=flow.elements("groups"),
        exclude=flow.elements("groups.exclude"),
        refresh_enabled=flow.boolean("refresh.groups.enabled") and refresh_interval_s >= 0,
        refresh_interval_s=max(1, refresh_interval_s),
        sync_enabled=(
            enabled and flow.boolean("sync.group.offsets.enabled") and sync_interval_s >= 0
        ),
        sync_interval_s=max(1, sync_interval_s),
        client=client(
            target,
            consumer,
            Scope.CONSUMER,
            consumer["client.id"].value,
            path=path,
            key=f"{target}.bootstrap.servers",
        ),
    )


def heartbeat_settings(
    raw: Conf, pairs: Iterable[tuple[str, str]], enabled: Sequence[tuple[str, str]], path: str
) -> tuple[tuple[HeartbeatSettings, ...], list[str]]:
    """Heartbeat settings of the ``pairs`` that emit them, and remarks on pairs that cannot.

    Raises ConfigError for an enabled flow only. Other pairs may include a cluster that the file
    names only for other nodes.
    """
    found: list[HeartbeatSettings] = []
    remarks: list[str] = []
    for source, target in pairs:
        conf = connector_config(raw, source, target)
        reader = ValueReader(conf, Scope.CONNECTOR)
        interval_s = reader.integer("emit.heartbeats.interval.seconds")
        if not reader.boolean("emit.heartbeats.enabled") or interval_s < 0:
            continue
        try:
            found.append(_heartbeats(raw, conf, source, target, path))
        except ConfigError as error:
            if (source, target) in enabled:
                raise
            remarks.append(
                f"{path}: no heartbeats for {source}->{target}: {error.what} "
                f"{source}->{target}.emit.heartbeats.enabled=false removes this warning."
            )
    return tuple(found), remarks


def _heartbeats(raw: Conf, conf: Conf, source: str, target: str, path: str) -> HeartbeatSettings:
    flow = ValueReader(conf, Scope.CONNECTOR)
    producer = data_producer_config(worker_config(raw, source, target), conf)
    admin = admin_config(conf, "target", "heartbeats-target-admin")
    key = f"{target}.bootstrap.servers"
    client_id = producer["client.id"].value.strip()
    return HeartbeatSettings(
        source=source,
        target=client(target, producer, Scope.PRODUCER, client_id, path=path, key=key),
        target_admin=client(
            target, admin, Scope.ADMIN, admin["client.id"].value, path=path, key=key
        ),
        interval_s=max(1, flow.integer("emit.heartbeats.interval.seconds")),
        replication_factor=flow.integer("heartbeats.topic.replication.factor"),
    )


def group_remarks(confs: Iterable[Conf]) -> list[str]:
    """Remarks on features that are enabled but have no effect, because they need a disabled one.

    ``confs``: connector configurations of the flows. MirrorMaker logs the same.
    """
    lines: dict[str, None] = {}
    for conf in confs:
        flow = ValueReader(conf, Scope.CONNECTOR)
        for wanted, needed in (
            ("emit.checkpoints.enabled", "emit.offset-syncs.enabled"),
            ("sync.group.offsets.enabled", "emit.checkpoints.enabled"),
        ):
            entry = conf.get(needed)
            if entry is not None and flow.boolean(wanted) and not flow.boolean(needed):
                lines[
                    f"{entry.where}: with {entry.key}=false, {wanted}=true has no effect, as in "
                    f"MirrorMaker; set {wanted}=false to remove this warning."
                ] = None
    return list(lines)
