"""Reads a MirrorMaker 2 properties file.

``load_mm2`` works in this order: lines (``properties``), placeholders (``providers``), the meaning
of each key (``keys``), values (``values``), then per flow one derived configuration (``scoping``),
which ``_flow`` turns into typed settings. One error reports all faults of one kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkmirror.config.clients.security import unsafe
from sparkmirror.config.clients.typed import (
    bootstrap_servers,
    client,
    fault_settings,
    fetch_settings,
    position_interval_ms,
    produce_settings,
)
from sparkmirror.config.files.properties import Entry, load_properties
from sparkmirror.config.files.providers import resolve
from sparkmirror.config.files.throttle import throttle_rules
from sparkmirror.config.files.values import (
    ValueReader,
    check,
    merge_errors,
    parse_list,
    shown,
    split_list,
)
from sparkmirror.config.mm2 import remarks
from sparkmirror.config.mm2.exactly_once import (
    control_secret,
    exact_slots,
    transaction_times_ms,
    wants_exactly_once,
)
from sparkmirror.config.mm2.groups import (
    checkpoint_settings,
    group_remarks,
    heartbeat_settings,
    offset_sync_settings,
)
from sparkmirror.config.mm2.idle import idle
from sparkmirror.config.mm2.keys import KeyUse, Lost, classify, modern, unknown_keys_error
from sparkmirror.config.mm2.metrics import metrics_settings
from sparkmirror.config.mm2.overlaps import beside, check_names, returns
from sparkmirror.config.mm2.registry import plain_logins, registry_settings
from sparkmirror.config.mm2.scoping import (
    admin_config,
    cluster_pairs,
    connector_config,
    consumer_config,
    data_producer_config,
    producer_config,
    worker_config,
)
from sparkmirror.config.mm2.slips import flow_slips, one_address, repeated_keys
from sparkmirror.config.mm2.smts import SMTS, smt_settings, smt_transforms
from sparkmirror.config.mm2.transforms import hash_salt, routed, transform_settings
from sparkmirror.config.table.own import RING, ROUTED_CREATE, ROUTED_MAX, TOPICS_MAP
from sparkmirror.config.table.settings import Scope, Status, Type, names
from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.names.replication_policy import policy_kind
from sparkmirror.settings import (
    FlowNaming,
    FlowSettings,
    MirrorSettings,
    PolicySettings,
    TopicSettings,
)

__all__ = ["Mm2File", "client_configs", "load_mm2", "own_settings", "read_mm2"]

_TOPIC_CHARS = re.compile(r"[A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Mm2File:
    """A file that was read and checked.

    ``raw``: its settings with placeholders resolved. ``uses``: the meaning of each key; keys that
    nothing reads are marked ignored. ``settings``: the settings of a run.
    """

    path: Path
    raw: Mapping[str, Entry]
    uses: tuple[KeyUse, ...]
    settings: MirrorSettings


def load_mm2(
    path: Path,
    *,
    clusters: Sequence[str] = (),
    exactly_once: bool = False,
    heartbeats_will_do: bool = False,
) -> MirrorSettings:
    """Read, check and split a MirrorMaker 2 file into its enabled flows.

    ``clusters``: only flows to these targets (empty: all). ``exactly_once``: in all flows,
    regardless of the file. Raises ConfigError with the file, line and key of everything that is
    wrong, and if no flow remains; with ``heartbeats_will_do`` only if no heartbeats remain either.
    """
    file = read_mm2(
        path,
        clusters=clusters,
        exactly_once=exactly_once,
        heartbeats_will_do=heartbeats_will_do,
    )
    return file.settings


def read_mm2(
    path: Path,
    *,
    clusters: Sequence[str] = (),
    exactly_once: bool = False,
    heartbeats_will_do: bool = False,
) -> Mm2File:
    """Like `load_mm2`, but also returns what the settings were made from."""
    file = load_properties(path)
    raw, told = resolve(file)
    told += file.remarks
    aliases = _aliases(raw, path)
    raw, renamed = modern(raw, aliases)
    told += renamed
    told += remarks.odd_aliases(raw["clusters"], aliases)
    uses, lost = _classify_all(raw, aliases, path)
    in_part = [KeyUse(one.entry, one.setting) for one in lost if one.setting is not None]
    _check_values([*uses, *in_part], path)
    pairs = list(cluster_pairs(raw, aliases))
    enabled = [pair for pair in pairs if _enabled(raw, *pair)]
    selected = [pair for pair in enabled if not clusters or pair[1] in clusters]
    if not (selected or heartbeats_will_do):
        raise _no_flows(enabled, aliases, clusters, path)
    namings = [_naming(raw, *pair, aliases) for pair in enabled]
    flows = beside(_flows(raw, selected, aliases, path, forced=exactly_once))
    flows = returns(flows, namings)
    alive = [pair for pair in pairs if not clusters or pair[1] in clusters]
    heartbeats, without = heartbeat_settings(raw, alive, selected, str(path))
    if not (selected or heartbeats):
        raise _no_flows(enabled, aliases, clusters, path)
    confs = {
        f"{source}->{target}": connector_config(raw, source, target) for source, target in selected
    }
    clients = [conf for pair in selected for conf in client_configs(raw, *pair).values()]
    lists = [(use.entry, split_list(use.entry.value)) for use in uses if _is_list(use)]
    by_line = told + remarks.lost_keys(lost) + remarks.repeated_elements(lists)
    by_line += group_remarks(confs.values()) + without
    uses = remarks.mark_idle(idle(uses, enabled, flows, heartbeats, confs), clients)
    by_line += remarks.capped(uses)
    by_line += repeated_keys(file) + flow_slips(confs.values()) + one_address(raw, aliases)
    maps = {
        naming.name: entry for naming in namings if (entry := _names_from(raw, naming)) is not None
    }
    warnings = [
        *sorted(by_line, key=_line),
        *remarks.ignored_keys(uses, str(path)),
        *unsafe(flows, str(path), heartbeats),
        *check_names(namings, str(path), maps),
        *routed(flows),
        *plain_logins(flows),
    ]
    settings = MirrorSettings(
        flows=flows,
        clusters=aliases,
        mode=MirrorMode.MM2,
        heartbeats=heartbeats,
        warnings=tuple(warnings),
        metrics=metrics_settings(raw, path),
        file=str(path.absolute()),
    )
    return Mm2File(path, raw, tuple(uses), settings)


def _line(remark: str) -> float:
    """The line number of a remark; infinity for a remark about the whole file."""
    match = re.search(r":(\d+): ", remark)
    return int(match.group(1)) if match else math.inf


def _is_list(use: KeyUse) -> bool:
    return use.setting.type is Type.LIST and not use.family


def _aliases(raw: Mapping[str, Entry], path: Path) -> tuple[str, ...]:
    entry = raw.get("clusters")
    if entry is None:
        raise ConfigError(
            "clusters is missing: this is not a MirrorMaker 2 file.",
            where=str(path),
            do="Add clusters=A,B and A.bootstrap.servers, B.bootstrap.servers and A->B.enabled; "
            "for MirrorMaker 1's files use --consumer.config and --producer.config.",
        )
    aliases = parse_list(entry)
    if not aliases:
        raise ConfigError("clusters is empty.", where=entry.where, do="Write clusters=A,B.")
    for alias in aliases:
        # Java also accepts blanks. If no key starts with such an alias, a comma was forgotten.
        named = any(key.startswith(f"{alias}.") for key in raw)
        if "->" in alias or (re.search(r"\s", alias) and not named):
            raise ConfigError(
                f"clusters contains '{shown(entry, alias)}', which is not an alias.",
                where=entry.where,
                do="Separate aliases by commas; an alias must not contain '->' and should not"
                " contain blanks.",
            )
    return aliases


def _classify_all(
    raw: Mapping[str, Entry], aliases: Sequence[str], path: Path
) -> tuple[list[KeyUse], list[Lost]]:
    uses: list[KeyUse] = []
    lost: list[Lost] = []
    errors: list[ConfigError] = []
    unknown: list[Entry] = []
    for entry in raw.values():
        outcome = classify(entry, aliases)
        if outcome is None:
            unknown.append(entry)
        elif isinstance(outcome, KeyUse):
            uses.append(outcome)
        elif isinstance(outcome, Lost):
            lost.append(outcome)
        else:
            errors.append(outcome)
    if unknown:
        errors.append(unknown_keys_error(unknown, str(path), aliases))
    if errors:
        raise merge_errors(errors, str(path))
    return uses, lost


def _check_values(uses: Sequence[KeyUse], path: Path) -> None:
    errors: list[ConfigError] = []
    for use in uses:
        ignored = use.ignored and not use.checked
        if ignored or use.family or use.entry.key.startswith("config.providers."):
            continue
        try:
            _check_value(use)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise merge_errors(errors, str(path))


def _check_value(use: KeyUse) -> None:
    entry, setting = use.entry, use.setting
    check(entry, setting)
    value = entry.value.strip()
    if setting.status is Status.REFUSED and (value or setting.type is not Type.LIST):
        raise ConfigError(
            f"{entry.key} cannot be used: {setting.reason}.", where=entry.where, do="Remove it."
        )
    if setting.name == "bootstrap.servers":
        bootstrap_servers(entry)
    elif setting.name == "replication.policy.separator" and not _TOPIC_CHARS.fullmatch(value):
        raise ConfigError(
            f"{entry.key} contains characters that are not allowed in topic names.",
            where=entry.where,
            do="Use letters, digits, '.', '_' and '-' only.",
        )


def _enabled(raw: Mapping[str, Entry], source: str, target: str) -> bool:
    return ValueReader(connector_config(raw, source, target), Scope.CONNECTOR).boolean("enabled")


def _no_flows(
    enabled: Sequence[tuple[str, str]],
    aliases: Sequence[str],
    clusters: Sequence[str],
    path: Path,
) -> ConfigError:
    if enabled:
        do = (
            f"--clusters {' '.join(clusters)} keeps only flows to these targets; the file enables "
            f"{', '.join('->'.join(pair) for pair in enabled)}."
        )
    elif len(aliases) < 2:
        do = "Name at least two clusters, and enable a flow between them: A->B.enabled=true."
    else:
        do = f"Enable one, for example {aliases[0]}->{aliases[1]}.enabled=true."
    return ConfigError("No source->target replication flows.", where=str(path), do=do)


def _flows(
    raw: Mapping[str, Entry],
    selected: Sequence[tuple[str, str]],
    aliases: tuple[str, ...],
    path: Path,
    *,
    forced: bool,
) -> tuple[FlowSettings, ...]:
    flows: list[FlowSettings] = []
    errors: list[ConfigError] = []
    for source, target in selected:
        try:
            flows.append(_flow(raw, source, target, aliases, str(path), forced=forced))
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise merge_errors(errors, str(path))
    return tuple(flows)


def _flow(
    raw: Mapping[str, Entry],
    source: str,
    target: str,
    aliases: tuple[str, ...],
    path: str,
    *,
    forced: bool,
) -> FlowSettings:
    conf = connector_config(raw, source, target)
    worker = worker_config(raw, source, target)
    flow = ValueReader(conf, Scope.CONNECTOR)
    storage = ValueReader(worker, Scope.WORKER)
    own = ValueReader(own_settings(raw, f"{source}->{target}"), Scope.SPARKMIRROR)
    topics = _topics(flow, own, f"{source}->{target}")
    clients = client_configs(raw, source, target)
    consumer, producer = clients["consumer"], clients["producer"]
    source_admin, target_admin = clients["source admin"], clients["target admin"]
    produce = produce_settings(producer, own)
    exact = wants_exactly_once(
        (source, target),
        worker=worker,
        connector=conf,
        consumer=consumer,
        producer=producer,
        produce=produce,
        forced=forced,
    )
    interval_ms, timeout_ms = transaction_times_ms(
        own, ValueReader(producer, Scope.PRODUCER), target, exact=exact
    )
    source_key, target_key = f"{source}.bootstrap.servers", f"{target}.bootstrap.servers"
    return FlowSettings(
        source=client(
            source, consumer, Scope.CONSUMER, consumer["client.id"].value,
            path=path, key=source_key,
        ),
        target=client(
            target, producer, Scope.PRODUCER, producer["client.id"].value.strip(),
            path=path, key=target_key,
        ),
        source_admin=client(
            source, source_admin, Scope.ADMIN, source_admin["client.id"].value,
            path=path, key=source_key,
        ),
        target_admin=client(
            target, target_admin, Scope.ADMIN, target_admin["client.id"].value,
            path=path, key=target_key,
        ),
        tasks_max=exact_slots(flow, exact=exact),
        policy=_policy(flow, aliases),
        topics=topics,
        fetch=fetch_settings(consumer, own),
        produce=produce,
        faults=fault_settings(own),
        offset_syncs=offset_sync_settings(conf, source, target, path),
        checkpoints=checkpoint_settings(conf, target, path),
        position_interval_ms=position_interval_ms(
            own.integer("sparkmirror.position.interval.ms"),
            storage.integer("offset.flush.interval.ms"),
        ),
        exactly_once=exact,
        transaction_interval_ms=interval_ms,
        transaction_commit_percent=own.integer("sparkmirror.transaction.commit.percent"),
        transaction_bytes=own.integer("sparkmirror.transaction.bytes"),
        transaction_timeout_ms=timeout_ms,
        control_secret=control_secret(own),
        session_ms=own.integer("sparkmirror.session.timeout.ms"),
        throttles=throttle_rules(own),
        epoch_s=own.integer("sparkmirror.epoch.seconds"),
        offset_storage_topic=storage.text("offset.storage.topic"),
        offset_storage_partitions=storage.integer("offset.storage.partitions"),
        offset_storage_replication_factor=storage.integer("offset.storage.replication.factor"),
        transforms=(
            *smt_transforms(topics.smts, conf, own.conf),
            *transform_settings(raw, f"{source}->{target}", own),
        ),
        hash_salt=hash_salt(own),
        routed_topics_max=own.integer(ROUTED_MAX) if own.boolean(ROUTED_CREATE) else 0,
        registry=registry_settings(own),
        ring=own.boolean(RING),
    )  # fmt: skip


def _naming(
    raw: Mapping[str, Entry], source: str, target: str, aliases: tuple[str, ...]
) -> FlowNaming:
    flow = ValueReader(connector_config(raw, source, target), Scope.CONNECTOR)
    own = ValueReader(own_settings(raw, f"{source}->{target}"), Scope.SPARKMIRROR)
    return FlowNaming(
        source,
        target,
        _policy(flow, aliases),
        _topics(flow, own, f"{source}->{target}"),
        mirror=source,
    )


def _names_from(raw: Mapping[str, Entry], naming: FlowNaming) -> Entry | None:
    """What gives the flow's topics other names than the policy does; None if nothing does."""
    by_map = own_settings(raw, naming.name).get(TOPICS_MAP)
    if by_map is not None or not naming.topics.renamed:
        return by_map
    return connector_config(raw, naming.source, naming.target)[SMTS]


def client_configs(
    raw: Mapping[str, Entry], source: str, target: str
) -> dict[str, dict[str, Entry]]:
    """The Java client properties of each client of one flow, by role."""
    conf = connector_config(raw, source, target)
    syncs_on = ValueReader(conf, Scope.CONNECTOR).text("offset-syncs.topic.location")
    return {
        "consumer": consumer_config(conf, "source", "replication-consumer"),
        "producer": data_producer_config(worker_config(raw, source, target), conf),
        "source admin": admin_config(conf, "source", "replication-source-admin"),
        "target admin": admin_config(conf, "target", "replication-target-admin"),
        "offset syncs": producer_config(conf, syncs_on, f"offset-syncs-{syncs_on}-producer"),
        "checkpoints": consumer_config(conf, "target", "checkpoints-target-consumer"),
    }


def own_settings(raw: Mapping[str, Entry], flow: str) -> dict[str, Entry]:
    """The file's ``sparkmirror.*`` settings for one flow, without the prefix ``A->B.``."""
    own: dict[str, Entry] = {}
    for name in names(Scope.SPARKMIRROR):
        entry = raw.get(f"{flow}.{name}", raw.get(name))
        if entry is not None:
            own[name] = entry
    return own


def _policy(flow: ValueReader, aliases: tuple[str, ...]) -> PolicySettings:
    return PolicySettings(
        kind=policy_kind(flow.text("replication.policy.class")),
        separator=flow.text("replication.policy.separator"),
        internal_separator_enabled=flow.boolean(
            "replication.policy.internal.topic.separator.enabled"
        ),
        aliases=aliases,
    )


def _topics(flow: ValueReader, own: ValueReader, name: str) -> TopicSettings:
    # A negative interval means never, as in MirrorMaker.
    refresh_s, configs_s, acls_s = (
        flow.integer(f"{job}.interval.seconds")
        for job in ("refresh.topics", "sync.topic.configs", "sync.topic.acls")
    )
    return TopicSettings(
        include=flow.elements("topics"),
        exclude=flow.elements("topics.exclude"),
        config_properties_exclude=flow.elements("config.properties.exclude"),
        map=own.rules(TOPICS_MAP),
        smts=smt_settings(flow.conf, name),
        # Java compares with "source" exactly; anything else means the target's defaults.
        use_defaults_from="source" if flow.text("use.defaults.from") == "source" else "target",
        replication_factor=flow.integer("replication.factor"),
        refresh_enabled=flow.boolean("refresh.topics.enabled") and refresh_s >= 0,
        refresh_interval_s=max(1, refresh_s),
        heartbeats_replication_enabled=flow.boolean("heartbeats.replication.enabled"),
        sync_configs_enabled=flow.boolean("sync.topic.configs.enabled") and configs_s >= 0,
        sync_configs_interval_s=max(1, configs_s),
        sync_configs_keep=own.elements("sync.topic.configs.keep"),
        sync_acls_enabled=flow.boolean("sync.topic.acls.enabled") and acls_s >= 0,
        sync_acls_interval_s=max(1, acls_s),
    )
