"""The effective settings of each flow of a file, and the line or default that each comes from.

The result contains no secrets and no values from config providers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkmirror.config.clients.security import idle_reason
from sparkmirror.config.files.origin import Kind
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.keys import OF_CONNECTOR, mm1_only
from sparkmirror.config.mm2.load import Mm2File, client_configs, own_settings, read_mm2
from sparkmirror.config.mm2.precedence import Part, given, scope_of
from sparkmirror.config.mm2.scoping import connector_config, worker_config
from sparkmirror.config.table.own import (
    TABLE_OPTION,
    TABLE_SCHEMA,
    TRANSFORM,
    transform_option,
)
from sparkmirror.config.table.settings import (
    CLIENT_SET,
    HIDDEN,
    SETTINGS,
    Setting,
    Status,
    Type,
    redact,
)
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.transform_settings import TransformSettings

__all__ = ["Effective", "ExplainedFile", "FlowSetup", "Place", "explain"]


@dataclass(frozen=True, slots=True)
class Place:
    """One line of the file: ``spelling`` is the key as written, ``scope`` what it applies to."""

    where: str
    spelling: str
    scope: str


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting of one part of a flow.

    ``value``: as in the file, a default, ``[hidden]``, or None if there is none. ``origin``: the
    file, a default, or derived. ``place``: the line that applies; ``overrides``: the lines
    that it overrides. ``ignored``: why it has no effect. ``remark``: more information.
    """

    part: Part
    key: str
    value: str | None
    origin: Kind
    place: Place | None = None
    overrides: tuple[Place, ...] = ()
    ignored: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class FlowSetup:
    """One flow with its settings, by part and in alphabetical order."""

    flow: str
    settings: tuple[Effective, ...]


@dataclass(frozen=True, slots=True)
class ExplainedFile:
    """A whole file: its flows with their settings, and the settings of a run with its warnings.

    ``entries``: what these were made from, for errors of files that it names. ``by_cluster``: the
    same by alias, if each cluster has a file of its own.
    """

    path: Path
    flows: tuple[FlowSetup, ...]
    settings: MirrorSettings
    entries: tuple[Entry, ...] = ()
    by_cluster: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)

    def entries_of(self, alias: str) -> tuple[Entry, ...]:
        """What the settings of the cluster's clients were made from."""
        return self.by_cluster.get(alias, self.entries)


def explain(
    path: Path, *, clusters: Sequence[str] = (), flows: Sequence[str] = ()
) -> ExplainedFile:
    """Read ``path`` as a run does, and return the settings of each flow.

    ``clusters``: only flows to these targets; ``flows``: only these (``A->B``); empty: all.
    Raises the same ConfigError as a run, and one for a flow that the file does not enable.
    """
    file = read_mm2(path, clusters=clusters)
    settings = file.settings
    names = [flow.name for flow in settings.flows]
    for wanted in flows:
        if wanted not in names:
            raise ConfigError(
                f"the file enables no flow {wanted}.",
                where=str(path),
                do=f"It enables {', '.join(names)}.",
            )
    explained = [
        FlowSetup(flow.name, tuple(_flow(file, flow)))
        for flow in settings.flows
        if not flows or flow.name in flows
    ]
    return ExplainedFile(path, tuple(explained), settings, tuple(file.raw.values()))


def _flow(file: Mm2File, flow: FlowSettings) -> Iterator[Effective]:
    source, target = flow.source.alias, flow.target.alias
    clients = client_configs(file.raw, source, target)
    syncs, checkpoints = flow.offset_syncs, flow.checkpoints
    parts: list[tuple[Part, Mapping[str, Entry], ClusterClient | None]] = [
        (Part.FLOW, connector_config(file.raw, source, target), None),
        (Part.CONSUMER, clients["consumer"], flow.source),
        (Part.PRODUCER, clients["producer"], flow.target),
        (Part.SOURCE_ADMIN, clients["source admin"], flow.source_admin),
        (Part.TARGET_ADMIN, clients["target admin"], flow.target_admin),
        (Part.WORKER, worker_config(file.raw, source, target), None),
        (Part.OWN, own_settings(file.raw, flow.name), None),
    ]
    if checkpoints.enabled:
        parts.insert(5, (Part.CHECKPOINTS, clients["checkpoints"], checkpoints.client))
    if syncs.enabled:
        parts.insert(5, (Part.SYNCS, clients["offset syncs"], syncs.client))
    ignored = {use.entry.key: _ignored(use.setting, use.ignored) for use in file.uses}
    for part, conf, client in parts:
        for row in (*_rows(part, flow), *_of_connector(part, conf)):
            places = given(file.raw, part, row.name, source, target, syncs.location)
            entry = conf.get(row.name)
            if places:
                yield _from_file(part, row, places, ignored, file.raw, flow)
            elif _counts(part, row, conf):
                yield _without_file(part, row, entry, file.raw, flow)
        if client is not None:
            for key in sorted(client.properties.keys() - conf.keys()):
                yield Effective(
                    part, key, redact(key, client.properties[key]), Kind.DERIVED,
                    remark="from Java's options in the environment (KAFKA_OPTS)",
                )  # fmt: skip


def _rows(part: Part, flow: FlowSettings) -> list[Setting]:
    rows = [row for row in SETTINGS if part.scope in row.scopes]
    # Each transform of the flow has the rows of the placeholder NAME.
    named = [row for row in rows if transform_option(row.name)[0]]
    rows = [row for row in rows if row not in named]
    for one in flow.transforms:
        for row in named if one.topics else ():
            for option in _options(transform_option(row.name)[1], one):
                rows.append(replace(row, name=f"{TRANSFORM}{one.name}.{option}"))
    if part in (Part.FLOW, Part.WORKER):  # their clients show these rows
        rows = [row for row in rows if row.name not in CLIENT_SET]
    return sorted(rows, key=lambda row: row.name)


def _options(option: str, one: TransformSettings) -> list[str]:
    """``option`` of a transform; for each of its tables, if it is one of a table's."""
    if option == TABLE_SCHEMA:
        return [f"table.{table.name}.schema" for table in one.tables]
    if option == TABLE_OPTION:
        return [
            f"table.{table.name}.option.{name}" for table in one.tables for name, _ in table.options
        ]
    return [option]


def _of_connector(part: Part, conf: Mapping[str, Entry]) -> list[Setting]:
    """Rows for the settings of SMTs and predicates, whose keys contain names of the user's."""
    found = []
    for row in SETTINGS if part is Part.FLOW else ():
        if row.name in OF_CONNECTOR:
            keys = sorted(key for key in conf if key.startswith(f"{row.name}."))
            found += [replace(row, name=key, type=Type.STRING) for key in keys]
    return found


def _ignored(setting: Setting, reason: str) -> str:
    if reason or setting.status is Status.SUPPORTED:
        return reason
    return setting.reason


def _counts(part: Part, row: Setting, conf: Mapping[str, Entry]) -> bool:
    """Whether a default has any effect in this part."""
    if row.status is not Status.SUPPORTED:
        return False
    if part in (Part.CONSUMER, Part.CHECKPOINTS) and mm1_only("consumer", row.name):
        return False
    return not (row.name.startswith(("ssl.", "sasl.")) and idle_reason(row.name, conf))


def _from_file(
    part: Part,
    row: Setting,
    places: Sequence[Entry],
    ignored: Mapping[str, str],
    raw: Mapping[str, Entry],
    flow: FlowSettings,
) -> Effective:
    first = places[0]
    value, remark = redact(first.key, first.value.strip()), ""
    adapted = _adapted(part, row, raw, flow)
    if first.secret:
        # The rest of the line may contain other secrets.
        value, remark = HIDDEN, f"resolved from {', '.join(first.placeholders)}"
    elif adapted is not None and adapted[0] != value.lower():
        value, remark = adapted
    return Effective(
        part,
        row.name,
        value,
        Kind.FILE,
        _place(first, row),
        tuple(_place(entry, row) for entry in places[1:]),
        ignored.get(first.key, ""),
        remark,
    )


def _place(entry: Entry, row: Setting) -> Place:
    return Place(entry.where, entry.key, scope_of(entry.key, row.name))


def _without_file(
    part: Part, row: Setting, entry: Entry | None, raw: Mapping[str, Entry], flow: FlowSettings
) -> Effective:
    adapted = _adapted(part, row, raw, flow)
    if adapted is not None and adapted[0] != row.default:
        return Effective(part, row.name, adapted[0], Kind.DERIVED, remark=adapted[1])
    if entry is not None and entry.origin.kind in (Kind.MIRRORMAKER, Kind.DERIVED):
        return Effective(part, row.name, entry.value, Kind.DERIVED)
    return Effective(part, row.name, row.default, Kind.DEFAULT)


# Settings whose values are made from those of other keys, which may come from a config provider.
_MADE_FROM = {
    "client.id": (Part.FLOW, "name"),
    "sparkmirror.position.interval.ms": (Part.WORKER, "offset.flush.interval.ms"),
}


def _adapted(
    part: Part, row: Setting, raw: Mapping[str, Entry], flow: FlowSettings
) -> tuple[str, str] | None:
    """(value, remark) of a setting that other settings change; None for all others."""
    adapted = _changed(part, row, flow)
    if adapted is None or row.name not in _MADE_FROM:
        return adapted
    made_from = given(raw, *_MADE_FROM[row.name], flow.source.alias, flow.target.alias)
    return (HIDDEN, adapted[1]) if made_from and made_from[0].secret else adapted


def _changed(part: Part, row: Setting, flow: FlowSettings) -> tuple[str, str] | None:
    if part is Part.PRODUCER and row.name == "enable.idempotence":
        value = str(flow.produce.enable_idempotence).lower()
        return value, "disabled by acks or max.in.flight.requests.per.connection"
    if part is Part.OWN and row.name == "sparkmirror.position.interval.ms":
        return str(flow.position_interval_ms), "lowered by offset.flush.interval.ms of the target"
    if row.name == "client.id":
        client = {
            Part.CONSUMER: flow.source,
            Part.PRODUCER: flow.target,
            Part.SOURCE_ADMIN: flow.source_admin,
            Part.TARGET_ADMIN: flow.target_admin,
            Part.SYNCS: flow.offset_syncs.client,
            Part.CHECKPOINTS: flow.checkpoints.client,
        }.get(part)
        return (client.client_id, "") if client is not None else None
    return None
