"""Converts MirrorMaker 2's connectors, as Kafka Connect runs them, to one MirrorMaker 2 file. Pure.

A connector's own keys become keys of its flow; ``source.cluster.*`` and ``target.cluster.*`` become
keys of the clusters. Keys without a counterpart become a comment in the file, and a note.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkmirror.config.files.page import Migrated, Page
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.providers import REFERENCE
from sparkmirror.config.files.values import check, parse_boolean
from sparkmirror.config.mm2.keys import OF_CONNECTOR, KeyUse, Lost, classify, nearest, old_name
from sparkmirror.config.mm2.smts import smt_settings
from sparkmirror.config.placeholders import providers_of
from sparkmirror.config.table.setting import java_int
from sparkmirror.config.table.settings import (
    CLIENT_SET,
    DROPPED_KEYS,
    REMOVED_KEYS,
    RENAMED_KEYS,
    Scope,
    Setting,
    Status,
    Type,
    find,
    is_secret,
)
from sparkmirror.errors import ConfigError

__all__ = [
    "KINDS",
    "ClusterLines",
    "Connector",
    "ConnectorSetup",
    "Taken",
    "connector_kind",
    "mm2_file",
]

SOURCE, CHECKPOINT, HEARTBEAT = "MirrorSource", "MirrorCheckpoint", "MirrorHeartbeat"
KINDS = (SOURCE, CHECKPOINT, HEARTBEAT)
_SIDES = ("source.cluster.", "target.cluster.")
# Keys that are written elsewhere in the new file.
_PLACED = frozenset({"name", "connector.class", "source.cluster.alias", "target.cluster.alias"})
_ROLES = ("consumer", "producer", "admin")
_CONVERTERS = ("key.converter", "value.converter", "header.converter")
# Keys that determine topic names and locations. Connectors of one flow must have the same values.
_SHARED = (
    "replication.policy.class",
    "replication.policy.separator",
    "replication.policy.internal.topic.separator.enabled",
    "offset-syncs.topic.location",
)
# Keys that only one kind of connector reads.
_OWNED = {
    CHECKPOINT: ("groups", "emit.checkpoints.", "sync.group.offsets.", "refresh.groups.",
                 "checkpoints.topic.", "group.filter.class", "target.consumer."),
    HEARTBEAT: ("emit.heartbeats.", "heartbeats.topic."),
}  # fmt: skip
_DEFAULT_STORAGE = "mm2-offsets.{}.internal"


@dataclass(frozen=True, slots=True)
class Taken:
    """A setting for the file. ``reference``: we wrote it, and it refers to a secret."""

    entry: Entry
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Connector:
    """One connector. ``config``: its keys as given to Kafka Connect; ``where``: file and line."""

    kind: str
    name: str
    source: str
    target: str
    config: Mapping[str, Entry]
    where: str

    @property
    def flow(self) -> str:
        """``A->B``."""
        return f"{self.source}->{self.target}"


ClusterLines = dict[str, dict[str, Taken]]
"""The clusters' settings, by alias and by key without the alias."""


@dataclass
class ConnectorSetup:
    """What was read: connectors, clusters, and settings of neither.

    ``title``: the origin of the file. ``offset_topic``: the topic where Kafka Connect keeps the
    connectors' positions, by target alias. ``remarks``: paragraphs for the top of the file.
    ``notes``: settings without a counterpart, as ``file:line: key: reason``.
    """

    title: str
    connectors: list[Connector] = field(default_factory=list)
    clusters: ClusterLines = field(default_factory=dict)
    providers: dict[str, str] = field(default_factory=dict)
    offset_topic: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, entry: Entry, reason: str) -> None:
        """Note that ``entry`` is left out of the file, and the ``reason``."""
        note = f"{entry.where}: {entry.key}: {reason}"
        if note not in self.notes:
            self.notes.append(note)

    def take(self, alias: str, key: str, entry: Entry, *, reference: bool = False) -> None:
        """Add a setting of the cluster ``alias``. Raises ConfigError if it has another value."""
        lines = self.clusters.setdefault(alias, {})
        before = lines.get(key)
        if before is not None and before.entry.value.strip() != entry.value.strip():
            raise _differs(f"cluster {alias}", before.entry, entry)
        lines.setdefault(key, Taken(entry, reference))


def connector_kind(name: str) -> str:
    """The kind of MirrorMaker 2 connector that the class ``name`` is; empty if it is none."""
    simple = name.strip().rpartition(".")[2].removesuffix("Connector")
    return simple if simple in KINDS else ""


def mm2_file(setup: ConnectorSetup) -> Migrated:
    """The MirrorMaker 2 file that replaces the connectors of ``setup``.

    Raises ConfigError, with file, line and key, for wrong settings and for settings that cannot be
    taken over because the mirror would then write other records.
    """
    flows = _flows(setup)
    aliases = list(dict.fromkeys(alias for one in setup.connectors for alias in _ends(one)))
    for one in setup.connectors:
        _cluster_keys(setup, one)
    _check_addresses(setup)
    _find_providers(setup)
    body = {name: _flow_lines(setup, connectors, aliases) for name, connectors in flows.items()}
    page = Page()
    page.comment(f"MirrorMaker 2 file, created from {setup.title}.")
    for remark in setup.remarks:
        page.comment(remark)
    for note in setup.notes:
        page.comment(f"Left out: {_short(note)}")
    page.gap()
    _providers(page, setup)
    page.put("clusters", ", ".join(aliases), setup.connectors[0].where)
    for alias in aliases:
        _cluster(page, setup, alias, {flow[0].target for flow in flows.values()})
    for name, connectors in flows.items():
        page.gap()
        told = ", ".join(f"{one.kind}Connector {one.name}" for one in connectors)
        page.comment(f"Flow {name}, from {told}.")
        for key, taken in body[name].items():
            _put(page, f"{name}.{key}", taken)
    page.gap()
    page.comment("Heartbeats only for flows with a heartbeat connector.")
    page.put("emit.heartbeats.enabled", "false")
    return page.migrated(tuple(setup.notes))


def _put(page: Page, key: str, taken: Taken) -> None:
    value = taken.entry.value if is_secret(key) else taken.entry.value.strip()
    origin = f"{taken.entry.where}: {taken.entry.key}" if taken.entry.where else ""
    reference = taken.reference or bool(REFERENCE.fullmatch(value.strip()))
    page.put(key, value, origin, reference=reference)


def _ends(connector: Connector) -> tuple[str, str]:
    return connector.source, connector.target


def _short(note: str) -> str:
    """``note`` without the directory of the file."""
    place, mark, rest = note.partition(": ")
    return f"{place.rpartition('/')[2]}{mark}{rest}"


def _flows(setup: ConnectorSetup) -> dict[str, list[Connector]]:
    """Connectors by flow, those of each flow in the order of `KINDS`. Raises ConfigError."""
    if not setup.connectors:
        raise ConfigError(
            "it contains no MirrorMaker 2 connector.",
            where=setup.title,
            do="Name the files of the connectors.",
        )
    found: dict[str, list[Connector]] = {}
    for connector in sorted(setup.connectors, key=lambda one: KINDS.index(one.kind)):
        found.setdefault(connector.flow, []).append(connector)
    for name, connectors in found.items():
        kinds = [one.kind for one in connectors]
        if CHECKPOINT in kinds and SOURCE not in kinds:
            raise ConfigError(
                f"{name} has checkpoints, but no MirrorSourceConnector: here one flow does both.",
                where=next(one.where for one in connectors if one.kind == CHECKPOINT),
                do="Give that connector's file, too.",
            )
        for one, other in itertools.pairwise(connectors):
            if one.kind == other.kind != SOURCE:
                raise ConfigError(
                    f"{name} has two {one.kind}Connectors, {one.name} and {other.name}.",
                    where=other.where,
                    do="Leave out one of them.",
                )
    if all(one.kind == HEARTBEAT for one in setup.connectors):
        raise ConfigError(
            "no MirrorSourceConnector is given, so the new file would mirror nothing.",
            where=setup.connectors[0].where,
            do="Give that connector's file, too.",
        )
    return found


def _cluster_keys(setup: ConnectorSetup, connector: Connector) -> None:
    """Add ``source.cluster.*`` and ``target.cluster.*`` of one connector to their clusters."""
    for side, alias in zip(_SIDES, _ends(connector), strict=True):
        for key, entry in connector.config.items():
            name = key.removeprefix(side)
            if name == key or key in _PLACED:
                continue
            if name not in CLIENT_SET and name != "bootstrap.servers":
                setup.leave_out(entry, "Java's connector does not read it either")
                continue
            _check(entry, f"{alias}.{name}", (alias,))
            setup.take(alias, name, entry)


def _check_addresses(setup: ConnectorSetup) -> None:
    """Raise ConfigError for a cluster without an address. Heartbeats only need their target's."""
    for connector in setup.connectors:
        for side, alias in zip(_SIDES, _ends(connector), strict=True):
            needed = connector.kind != HEARTBEAT or alias == connector.target
            if needed and "bootstrap.servers" not in setup.clusters.get(alias, {}):
                raise ConfigError(
                    f"{side}bootstrap.servers of connector {connector.name} is missing.",
                    where=connector.where,
                    do=f"Add it: the brokers of cluster {alias}.",
                )


def _check(entry: Entry, key: str, clusters: Sequence[str]) -> KeyUse | Lost | None:
    """The meaning of ``key`` in a MirrorMaker 2 file.

    Raises ConfigError if the key or its value is refused.
    """
    outcome = classify(Entry(key, entry.value, entry.origin, entry.secret), clusters)
    if isinstance(outcome, ConfigError):
        raise ConfigError(f"{entry.key}: {outcome.what}", where=entry.where, do=outcome.do)
    if not isinstance(outcome, KeyUse) or outcome.ignored:
        return outcome
    if outcome.setting.status is Status.REFUSED:
        raise ConfigError(
            f"{entry.key} cannot be taken over: {outcome.setting.reason}.",
            where=entry.where,
            do="Remove it from the file if the mirror does not need it.",
        )
    supported = outcome.setting.status is Status.SUPPORTED and not outcome.family
    if supported and not REFERENCE.search(entry.value):
        check(entry, outcome.setting)
    return outcome


def _flow_lines(
    setup: ConnectorSetup, connectors: Sequence[Connector], clusters: Sequence[str]
) -> dict[str, Taken]:
    """The flow's keys, without its name."""
    name = connectors[0].flow
    for one in connectors:
        if one.kind == SOURCE and _disabled(one):
            raise ConfigError(
                f"connector {one.name} is disabled (enabled=false), so it mirrors nothing.",
                where=one.config["enabled"].where,
                do="Leave that connector out, or enable it.",
            )
    # A heartbeat connector does not read the key, and beats all the same.
    kinds = {one.kind for one in connectors if one.kind != CHECKPOINT or not _disabled(one)}
    lines: dict[str, Taken] = {}
    if SOURCE in kinds:
        lines["enabled"] = _own("enabled", "true")
    _add_defaults([one for one in connectors if one.kind == SOURCE], lines)
    for connector in connectors:
        for key, entry in connector.config.items():
            if key in _PLACED or key == "enabled" or key.startswith(_SIDES):
                continue
            if key in _CONVERTERS and entry.value.strip().endswith("ByteArrayConverter"):
                continue  # all records are copied as bytes anyway
            if REMOVED_KEYS.get(key):
                hint = f"MirrorMaker 2 does not read it; its key is {REMOVED_KEYS[key]}"
                setup.leave_out(entry, hint)
                continue
            key = RENAMED_KEYS.get(key, key)  # noqa: PLW2901 (older ones)
            if (old := old_name(key)) in DROPPED_KEYS:
                setup.leave_out(entry, f"it has no replacement ({DROPPED_KEYS[old]})")
                continue
            for place in _places(key, connector):
                outcome = _check(entry, f"{name}.{place}", clusters)
                reason = _no_counterpart(outcome, name, place, clusters)
                if not reason and connector.kind != _owner(place, connector.kind):
                    reason = f"a {connector.kind}Connector does not read it"
                if not reason and connector.kind != SOURCE and _of_smts(place):
                    reason = "checkpoints and heartbeats do not pass single message transforms here"
                if reason:
                    setup.leave_out(entry, reason)
                else:
                    _merge(setup, lines, place, entry, connector)
    _check_smts(name, [one for one in connectors if one.kind == SOURCE])
    # Connect runs only features with a connector; here a flow runs all that are not disabled.
    if CHECKPOINT not in kinds and SOURCE in kinds:
        lines["emit.checkpoints.enabled"] = _own("emit.checkpoints.enabled", "false")
    if HEARTBEAT in kinds:
        lines.setdefault("emit.heartbeats.enabled", _own("emit.heartbeats.enabled", "true"))
    return lines


def _places(key: str, connector: Connector) -> list[str]:
    """The flow's keys for ``key`` of a connector.

    In Java, ``consumer.sasl.*`` and the like override the logins of the clusters. In the file,
    clients have the login of their cluster, and only keys of one side override it.
    """
    role, _, name = key.partition(".")
    if role not in _ROLES or name not in CLIENT_SET or name == "bootstrap.servers":
        return [key]
    both = [f"source.{key}", f"target.{key}"]
    return [
        place
        for place in both
        if place not in connector.config and connector.kind == _owner(place, connector.kind)
    ]


def _disabled(connector: Connector) -> bool:
    """Whether ``enabled=false`` keeps the connector from having tasks."""
    entry = connector.config.get("enabled")
    return entry is not None and not REFERENCE.search(entry.value) and not parse_boolean(entry)


def _add_defaults(sources: Sequence[Connector], lines: dict[str, Taken]) -> None:
    """What a connector has by default counts beside what another one of its flow sets.

    Only topics and tasks can be added. Raises ConfigError for other keys.
    """
    given = [
        {RENAMED_KEYS.get(key, key): entry for key, entry in one.config.items()} for one in sources
    ]
    keys = dict.fromkeys(key for one in given for key in one)
    for one, key in itertools.product(given, keys):
        row = find(key, Scope.CONNECTOR)
        if key in one or key in _PLACED or key == "enabled" or row is None:
            continue
        if _of_smts(key) or _owner(key, SOURCE) != SOURCE:
            continue  # `_check_smts` compares the former, no source connector reads the latter
        if row.default is None or row.status is not Status.SUPPORTED:
            continue
        other = next(theirs[key] for theirs in given if key in theirs)
        if key not in ("topics", "tasks.max"):
            if _plain(key, other.value, row) != _plain(key, row.default, row):
                raise _differs(f"flow {sources[0].flow}", None, other)
        elif key == "topics":
            lines[key] = _own(key, row.default)  # all, so further ones are of no importance
        elif key in lines:
            lines[key] = _own(key, str(int(lines[key].entry.value) + int(row.default)))
        else:
            lines[key] = _own(key, row.default)


def _plain(key: str, value: str, row: Setting) -> str:
    """``value`` as it is compared with others of ``key``."""
    text = _simple(key, value.strip())
    return text.lower() if row.type is Type.BOOLEAN else text


def _of_smts(key: str) -> bool:
    return key.partition(".")[0] in OF_CONNECTOR


def _check_smts(flow: str, connectors: Sequence[Connector]) -> None:
    """Raise ConfigError for single message transforms that the flow cannot have."""
    for connector in connectors:
        smts = {key: one for key, one in connector.config.items() if _of_smts(key)}
        if not any(REFERENCE.search(one.value) for one in smts.values()):
            smt_settings(smts, flow)
        for other in connectors:
            theirs = {key: one.value for key, one in other.config.items() if _of_smts(key)}
            if theirs != {key: one.value for key, one in smts.items()}:
                entry = next(iter(smts.values()), None)
                raise ConfigError(
                    f"the connectors {connector.name} and {other.name} have different single "
                    f"message transforms; both belong to flow {flow}.",
                    where=entry.where if entry else connector.where,
                    do="Give both the same transforms, or take over only one of them.",
                )


def _own(key: str, value: str) -> Taken:
    return Taken(Entry(key, value))


def _owner(key: str, kind: str) -> str:
    """The kind of connector that reads ``key``; ``kind`` for keys that all of them read."""
    owners = (owner for owner, beginnings in _OWNED.items() if key.startswith(beginnings))
    return next(owners, kind)


def _no_counterpart(
    outcome: KeyUse | Lost | None, flow: str, key: str, clusters: Sequence[str]
) -> str:
    """Why a key is left out of the file; empty if it is not."""
    if outcome is None:
        close = nearest(f"{flow}.{key}", clusters).removeprefix(f"{flow}.")
        return "not a key of MirrorMaker 2" + (f" (did you mean {close}?)" if close else "")
    if isinstance(outcome, Lost):
        return f"it {outcome.effect} (use {outcome.instead})"
    if outcome.ignored:
        return outcome.ignored
    return outcome.setting.reason if outcome.setting.status is Status.IGNORED else ""


def _merge(
    setup: ConnectorSetup, lines: dict[str, Taken], key: str, entry: Entry, connector: Connector
) -> None:
    """Merge a connector's value into the flow's keys; a MirrorSourceConnector's come first."""
    before = lines.get(key)
    new = entry.value.strip()
    if connector.kind != SOURCE and "enabled" in lines and not _is_owned(key):
        # In Java, connectors are independent of each other; here the source connector's value
        # applies to the flow.
        old = before.entry.value.strip() if before else _default(key)
        if _simple(key, old) != _simple(key, new):
            if key in _SHARED:
                raise _differs(f"flow {connector.flow}", before.entry if before else None, entry)
            setup.leave_out(entry, "the flow uses the value of its MirrorSourceConnector")
    elif before is None:
        lines[key] = Taken(entry)
    elif connector.kind == SOURCE and key in ("topics", "tasks.max"):
        # Several source connectors share the topics of one flow, so their values are added.
        old = before.entry.value.strip()
        if key == "topics":
            lines[key] = Taken(Entry(key, f"{old},{new}", entry.origin))
        elif REFERENCE.search(old) or REFERENCE.search(new):  # unknown until the mirror starts
            raise _differs(f"flow {connector.flow}", before.entry, entry)
        else:
            lines[key] = Taken(Entry(key, str(java_int(old) + java_int(new)), entry.origin))
    elif before.entry.value.strip() != new:
        raise _differs(f"flow {connector.flow}", before.entry, entry)


def _is_owned(key: str) -> bool:
    return any(key.startswith(beginnings) for beginnings in _OWNED.values())


def _default(key: str) -> str:
    row = find(key, Scope.CONNECTOR)
    return (row.default or "") if row else ""


def _simple(key: str, value: str) -> str:
    """A class without its package; other values unchanged."""
    return value.rpartition(".")[2] if key.endswith(".class") else value


def _differs(what: str, one: Entry | None, other: Entry) -> ConfigError:
    """The error for two different values; ``one`` None: the other connector has the default."""
    there = f"{one.key} in {one.where}" if one else "the default, which the other connector has"
    return ConfigError(
        f"{other.key} differs from {there}; both apply to {what}.",
        where=other.where,
        do="Give both the same value.",
    )


def _find_providers(setup: ConnectorSetup) -> None:
    """Declare the config providers that values use; in Connect the workers declare them."""
    clusters = (one for lines in setup.clusters.values() for one in lines.values())
    of_clusters = (one.entry for one in clusters if not one.reference)
    of_connectors = (entry for one in setup.connectors for entry in one.config.values())
    providers, notes = providers_of([*of_clusters, *of_connectors])
    setup.providers |= providers
    setup.notes += notes


def _providers(page: Page, setup: ConnectorSetup) -> None:
    if setup.providers:
        page.put("config.providers", ", ".join(setup.providers))
        for name, kind in setup.providers.items():
            page.put(f"config.providers.{name}.class", kind, reference=True)
        page.gap()


def _cluster(page: Page, setup: ConnectorSetup, alias: str, targets: Iterable[str]) -> None:
    page.gap()
    page.comment(f"Cluster {alias}.")
    for key, taken in setup.clusters.get(alias, {}).items():
        _put(page, f"{alias}.{key}", taken)
    topic = setup.offset_topic.get(alias)
    if topic and alias in targets:
        page.comment(
            f"The topic where Kafka Connect keeps the connectors' positions (offset.storage.topic "
            f"of its workers); a first start continues from them. A dedicated MirrorMaker 2 uses "
            f"{_DEFAULT_STORAGE.format('SOURCE')}."
        )
        page.put(f"{alias}.offset.storage.topic", topic)
