"""Writes a commented MirrorMaker 2 file that replaces MirrorMaker 1's files and options. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from re import Match

from sparkmirror.config.files.page import Migrated, Page
from sparkmirror.config.files.properties import Entry, Properties
from sparkmirror.config.files.providers import REFERENCE
from sparkmirror.config.files.values import parse_list, split_list
from sparkmirror.config.mm1.legacy import TranslatedFile
from sparkmirror.config.mm1.legacy_mode import LegacyMode
from sparkmirror.config.mm1.load import normalise_include
from sparkmirror.config.mm2.keys import MM1_ONLY, family_of_clients
from sparkmirror.config.table.setting import java_int
from sparkmirror.config.table.settings import CLIENT_SET, HIDDEN, Scope, Status, find, is_secret
from sparkmirror.settings import FlowSettings, MirrorSettings

__all__ = ["Migrated", "migrate"]

_OFFSET_SYNCS = "emit.offset-syncs.enabled"
# Keys that are written elsewhere in the new file, or that only MirrorMaker 1 uses.
_PLACED = frozenset({"bootstrap.servers", "client.id", "auto.offset.reset"} | MM1_ONLY.keys())
_TOLD_ELSEWHERE = frozenset({"group.id", "exclude.internal.topics"})
_ABSENT_IN_MM1 = (
    "emit.heartbeats.enabled",
    "emit.checkpoints.enabled",
    _OFFSET_SYNCS,
    "sync.topic.configs.enabled",
    "sync.topic.acls.enabled",
    "heartbeats.replication.enabled",
)
# Keys of legacy mode that are written from the flow's settings.
_IN_SETTINGS = frozenset(
    {
        "enabled",
        "refresh.topics.enabled",
        "refresh.topics.interval.seconds",
        "replication.factor",
        "replication.policy.class",
        "tasks.max",
        "topics",
        "topics.exclude",
    }
)
# What is enabled -> what it needs.
_NEEDS = {
    "sync.group.offsets.enabled": "emit.checkpoints.enabled",
    "emit.checkpoints.enabled": _OFFSET_SYNCS,
}
_SHARED = Scope.ADMIN


def migrate(
    settings: MirrorSettings,
    consumers: Sequence[TranslatedFile],
    producer: TranslatedFile,
    modes: Sequence[LegacyMode],
    *,
    offset_commit_interval_ms: int | None = None,
) -> Migrated:
    """The file for ``settings``, which were loaded from these translated files.

    ``modes``: MirrorMaker 2's keys in the files, for each consumer file. The new file has one
    ``source->target`` flow per consumer file, in the same order, with the aliases of ``settings``.
    Topic names are kept (IdentityReplicationPolicy). What config providers return is not in it: it
    refers to the providers.
    """
    page = Page()
    names = ", ".join(one.file.path.name for one in (*consumers, producer))
    page.comment(f"MirrorMaker 2 file, created from MirrorMaker 1's {names}.")
    providers = _Providers((*consumers, producer))
    for flow, consumer in zip(settings.flows, consumers, strict=True):
        _say_positions(page, flow, consumer.file, providers)
    page.gap()
    page.put("clusters", ", ".join(settings.clusters))
    providers.declare(page)
    target = settings.flows[0].target.alias
    for flow, consumer in zip(settings.flows, consumers, strict=True):
        page.gap()
        page.comment(f"Cluster '{flow.source.alias}', from {consumer.file.path.name}.")
        servers, reset = ",".join(flow.source.bootstrap_servers), flow.fetch.auto_offset_reset
        servers = providers.instead_of(servers, consumer.file.get("bootstrap.servers"))
        reset = providers.instead_of(reset, consumer.file.get("auto.offset.reset"))
        page.put(f"{flow.source.alias}.bootstrap.servers", servers)
        if "auto.offset.reset" not in consumer.file:
            page.comment("MirrorMaker 1's default; MirrorMaker 2's is earliest.")
        page.put(f"{flow.source.alias}.consumer.auto.offset.reset", reset)
        _client_keys(page, consumer.file, Scope.CONSUMER, flow.source.alias, providers)
        _left_out(page, consumer)
    page.gap()
    page.comment(f"Cluster '{target}', from {producer.file.path.name}.")
    servers = ",".join(settings.flows[0].target.bootstrap_servers)
    servers = providers.instead_of(servers, producer.file.get("bootstrap.servers"))
    page.put(f"{target}.bootstrap.servers", servers)
    _client_keys(page, producer.file, Scope.PRODUCER, target, providers)
    page.comment("For the mirror's own topics; -1 is the brokers' default.")
    page.put(f"{target}.offset.storage.replication.factor", "-1")
    if offset_commit_interval_ms is not None:
        page.comment("--offset.commit.interval.ms")
        page.put(f"{target}.offset.flush.interval.ms", str(max(1, offset_commit_interval_ms)))
    _left_out(page, producer)
    every = []
    for flow, consumer, mode in zip(settings.flows, consumers, modes, strict=True):
        own = {key: one for key, one in consumer.file.items() if find(key, Scope.SPARKMIRROR)}
        include = consumer.include or mode.include
        exclude = mode.entries.get("topics.exclude") or consumer.exclude
        _flow(page, flow, own, providers, include, exclude)
        every.append(_legacy_keys(page, flow.name, mode, providers))
    page.gap()
    page.comment("Features that MirrorMaker 1 does not have. Set a line to true to enable it.")
    for key in _ABSENT_IN_MM1:
        if not all(key in written for written in every):
            page.put(key, "false")
    return page.migrated()


class _Providers:
    """The config providers of ``files``, and placeholders as they are in the new file.

    Providers that differ between files get different names in it.
    """

    def __init__(self, files: Iterable[TranslatedFile]) -> None:
        self._declared: dict[str, dict[str, str]] = {}
        self._names: dict[str, dict[str, str]] = {}
        for one in files:
            names = self._names.setdefault(str(one.file.path), {})
            listed = one.providers.get("config.providers")
            for name in parse_list(listed) if listed else ():
                prefix = f"config.providers.{name}."
                mine = {
                    key.removeprefix(prefix): entry.value.strip()
                    for key, entry in one.providers.items()
                    if key.startswith(prefix)
                }
                free = chain([name], (f"{name}-{number}" for number in count(2)))
                names[name] = next(
                    each for each in free if self._declared.setdefault(each, mine) == mine
                )

    def declare(self, page: Page) -> None:
        """Write the declarations."""
        if self._declared:
            page.put("config.providers", ", ".join(self._declared))
        for name, keys in self._declared.items():
            for key, value in keys.items():
                page.put(f"config.providers.{name}.{key}", value, reference=True)

    def text(self, entry: Entry) -> str:
        """The value of ``entry`` for the new file."""
        if not entry.written:
            return entry.value
        names = self._names.get(entry.where.rpartition(":")[0], {})

        def renamed(match: Match[str]) -> str:
            name = match[1]
            return "${" + names.get(name, name) + match[0][len(name) + 2 :]

        return REFERENCE.sub(renamed, entry.written)

    def instead_of(self, value: str, entry: Entry | None) -> str:
        """The text of ``entry`` if it has placeholders, else ``value``, which is made from it."""
        return self.text(entry).strip() if entry is not None and entry.written else value

    def put(self, page: Page, key: str, entry: Entry, origin: str = "") -> None:
        """Write ``entry`` as ``key``."""
        value = self.text(entry)
        if not is_secret(key):
            value = value.strip()
        alone = bool(entry.written) and REFERENCE.fullmatch(value.strip()) is not None
        page.put(key, value, origin, reference=alone)

    def put_list(self, page: Page, key: str, regexes: tuple[str, ...], entry: Entry | None) -> None:
        """Write ``regexes``, of which the last ones are made from ``entry`` if a file has it.

        Its placeholders stay if MirrorMaker 2 makes regexes of the same meaning from it.
        """
        listed = list(regexes)
        if entry is not None and entry.written:
            elements, regex = split_list(entry.value), normalise_include(entry.value)
            made = [regex] if listed[-1:] == [regex] else elements
            if "|".join(elements) == regex and listed[-len(made) :] == made:
                listed[-len(made) :] = [self.text(entry).strip()]
            else:
                page.secrets.append(key)
        page.put(key, ",".join(listed))


def _say_positions(
    page: Page, flow: FlowSettings, consumer: Properties, providers: _Providers
) -> None:
    group = providers.instead_of(flow.group_id, consumer.get("group.id"))
    reset = providers.instead_of(flow.fetch.auto_offset_reset, consumer.get("auto.offset.reset"))
    page.comment(
        f"Positions: MirrorMaker 1 keeps them in the group {group} on the source, MirrorMaker 2 in "
        f"the group __mirror.{flow.name} on the target. Without positions a flow begins at {reset}:"
        " to continue where MirrorMaker 1 stopped, stop it, then run the command that wrote this "
        "file again with --take-positions."
    )


def _client_keys(
    page: Page, file: Properties, scope: Scope, alias: str, providers: _Providers
) -> None:
    """Write the keys that still have an effect, where MirrorMaker 2 reads them."""
    for key, entry in file.items():
        row = find(key, scope)
        if key in _PLACED or row is None or row.status is not Status.SUPPORTED:
            continue
        if key in CLIENT_SET:
            providers.put(page, f"{alias}.{key}", entry)
            continue
        providers.put(page, f"{alias}.{scope.value}.{key}", entry)
        shared = find(key, _SHARED)
        if shared is not None and shared.status is Status.SUPPORTED:
            providers.put(page, f"{alias}.{_SHARED.value}.{key}", entry)


def _left_out(page: Page, translation: TranslatedFile) -> None:
    scope = Scope.CONSUMER if "group.id" in translation.file else Scope.PRODUCER
    for line in translation.remarks:
        page.comment(f"From {_short(line)}")
    for key, entry in translation.file.items():
        row = find(key, scope) or family_of_clients(key, scope)
        if row is not None and row.status is Status.IGNORED:
            page.comment(f"Left out: {key} (line {entry.line}): {row.reason}.")
        elif key in MM1_ONLY and key not in _TOLD_ELSEWHERE:
            page.comment(f"Left out: {key} (line {entry.line}): {MM1_ONLY[key]}.")
        elif key == "client.id":
            page.comment(f"Left out: {key} (line {entry.line}): MirrorMaker 2 names its clients.")


def _short(line: str) -> str:
    place, mark, rest = line.partition(": ")
    return f"{place.rpartition('/')[2]}{mark}{rest}"


def _flow(
    page: Page,
    flow: FlowSettings,
    own: Mapping[str, Entry],
    providers: _Providers,
    include: Entry | None,
    exclude: Entry | None,
) -> None:
    name = flow.name
    page.gap()
    page.comment(f"Flow {name}.")
    page.put(f"{name}.enabled", "true")
    page.comment("--include, --whitelist or topics: Java regexes, matched against whole names.")
    providers.put_list(page, f"{name}.topics", flow.topics.include, include)
    page.comment(
        "Kafka's own topics, the mirror's own, and --blacklist. MirrorMaker 2 always excludes "
        "topics that begin with __ or a dot."
    )
    excluded = (r"mm2.*\.internal", *flow.topics.exclude)
    providers.put_list(page, f"{name}.topics.exclude", excluded, exclude)
    page.comment("Topics keep their names, as with MirrorMaker 1.")
    page.put(f"{name}.replication.policy.class", "IdentityReplicationPolicy")
    page.comment("--num.streams or tasks.max")
    page.put(f"{name}.tasks.max", str(flow.tasks_max))
    if flow.topics.replication_factor == -1:
        page.comment("Topics that the target lacks are created with the brokers' default.")
    page.put(f"{name}.replication.factor", str(flow.topics.replication_factor))
    page.comment("metadata.max.age.ms or refresh.topics.interval.seconds")
    page.put(f"{name}.refresh.topics.interval.seconds", str(flow.topics.refresh_interval_s))
    if not flow.topics.refresh_enabled:
        page.put(f"{name}.refresh.topics.enabled", "false")
    for key, entry in own.items():
        providers.put(page, f"{name}.{key}", entry)


def _legacy_keys(page: Page, name: str, mode: LegacyMode, providers: _Providers) -> set[str]:
    """Write MirrorMaker 2's keys that were in MirrorMaker 1's files, and the keys that they need.

    Returns the keys that were written.
    """
    given = {key: entry for key, entry in mode.entries.items() if key not in _IN_SETTINGS}
    enabled = {key for key, entry in given.items() if entry.value.strip().lower() == "true"}
    written = set()
    for key, needed in _NEEDS.items():
        if key in enabled and needed not in given:
            page.comment(f"{key} needs it.")
            page.put(f"{name}.{needed}", "true")
            enabled.add(needed)
            written.add(needed)
    for key, entry in given.items():
        row = find(key, Scope.CONNECTOR)
        reason = row.reason if row is not None and row.status is not Status.SUPPORTED else ""
        if key.startswith("offset-syncs.") and _OFFSET_SYNCS not in enabled:
            reason = f"{_OFFSET_SYNCS} is false"
        if reason:
            page.comment(f"Left out: {entry.key} (line {entry.line}): {reason}.")
            continue
        providers.put(page, f"{name}.{key}", entry, entry.where)
        written.add(key)
    return written
