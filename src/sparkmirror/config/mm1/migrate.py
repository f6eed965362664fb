"""Writes a commented MirrorMaker 2 file that replaces MirrorMaker 1's files and options. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
    listed: bool = False,
) -> Migrated:
    """The file for ``settings``, which were loaded from these translated files.

    ``modes``: MirrorMaker 2's keys in the files, for each consumer file. ``listed``: options have
    the topic list, so that the files' lists do not count. The new file has one
    ``source->target`` flow per consumer file, in the same order, with the aliases of ``settings``.
    Topic names are kept (IdentityReplicationPolicy). What config providers return is not in it: it
    refers to the providers.
    """
    page = Page()
    names = ", ".join(one.file.path.name for one in (*consumers, producer))
    page.comment(f"MirrorMaker 2 file, created from MirrorMaker 1's {names}.")
    providers = _Providers((*consumers, producer), modes)
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
        named = consumer.file.get("bootstrap.servers")
        providers.put_made(page, f"{flow.source.alias}.bootstrap.servers", servers, named)
        if "auto.offset.reset" not in consumer.file:
            page.comment("MirrorMaker 1's default; MirrorMaker 2's is earliest.")
        begin = consumer.file.get("auto.offset.reset")
        providers.put_made(page, f"{flow.source.alias}.consumer.auto.offset.reset", reset, begin)
        _client_keys(page, consumer.file, Scope.CONSUMER, flow.source.alias, providers)
        _left_out(page, consumer)
    page.gap()
    page.comment(f"Cluster '{target}', from {producer.file.path.name}.")
    servers = ",".join(settings.flows[0].target.bootstrap_servers)
    named = producer.file.get("bootstrap.servers")
    providers.put_made(page, f"{target}.bootstrap.servers", servers, named)
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
        _flow(page, flow, consumer, mode, providers, listed=listed)
        _sizes(page, flow, consumer, mode, providers)
        for key, entry in own.items():
            providers.put(page, f"{flow.name}.{key}", entry)
        every.append(_legacy_keys(page, flow.name, mode, providers))
    page.gap()
    page.comment("Features that MirrorMaker 1 does not have. Set a line to true to enable it.")
    for key in _ABSENT_IN_MM1:
        if not all(key in written for written in every):
            page.put(key, "false")
    return page.migrated()


class _Providers:
    """The config providers of ``files``, and placeholders as they are in the new file.

    Providers that differ between files get different names in it. So do those that another file
    has placeholders of but does not declare: these are text, which must stay text.
    """

    def __init__(self, files: Sequence[TranslatedFile], modes: Sequence[LegacyMode]) -> None:
        self._declared: dict[str, dict[str, str]] = {}
        self._names: dict[str, dict[str, str]] = {}
        declared = {str(one.file.path): _declared(one) for one in files}
        texts = {
            name
            for entry in chain(*map(_entries, files), *(one.entries.values() for one in modes))
            for name in REFERENCE.findall(entry.written or entry.value)
            if name not in declared.get(_path(entry), ())
        }
        for path, found in declared.items():
            names = self._names.setdefault(path, {})
            for name, mine in found.items():
                free = chain([name], (f"{name}-{number}" for number in count(2)))
                names[name] = next(
                    each
                    for each in free
                    if each not in texts and self._declared.setdefault(each, mine) == mine
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
        names = self._names.get(_path(entry), {})

        def renamed(match: Match[str]) -> str:
            name = match[1]
            return "${" + names.get(name, name) + match[0][len(name) + 2 :]

        return REFERENCE.sub(renamed, entry.written)

    def shown(self, value: str, entry: Entry | None) -> str:
        """``value`` for a comment, or the placeholders of ``entry``, which it is made from."""
        if entry is None or not entry.secret:
            return value
        return self.text(entry).strip() if entry.written else HIDDEN

    def put_made(self, page: Page, key: str, value: str, entry: Entry | None) -> None:
        """Write ``value``, which is made from ``entry``, or the placeholders of that."""
        if entry is None or not entry.secret:
            page.put(key, value)
        elif entry.written:
            page.put(key, self.text(entry).strip(), entry.where)
        else:
            page.put(key, value, entry.where, secret=True)

    def put(self, page: Page, key: str, entry: Entry) -> None:
        """Write ``entry`` as ``key``."""
        value = self.text(entry)
        if not is_secret(key):
            value = value.strip()
        alone = bool(entry.written) and REFERENCE.fullmatch(value.strip()) is not None
        converted = entry.secret and not entry.written
        page.put(key, value, entry.where, reference=alone, secret=converted)

    def put_list(self, page: Page, key: str, regexes: tuple[str, ...], entry: Entry | None) -> None:
        """Write ``regexes``, of which the last ones are made from ``entry`` if a file has it.

        Its placeholders stay if MirrorMaker 2 makes regexes of the same meaning from it.
        """
        listed, secret = list(regexes), False
        if entry is not None and entry.written:
            elements, regex = split_list(entry.value), normalise_include(entry.value)
            made = [regex] if listed[-1:] == [regex] else elements
            if "|".join(elements) == regex and listed[-len(made) :] == made:
                listed[-len(made) :] = [self.text(entry).strip()]
            else:
                secret = True
        page.put(key, ",".join(listed), entry.where if entry else "", secret=secret)


def _declared(translation: TranslatedFile) -> dict[str, dict[str, str]]:
    """The settings of each config provider of a file; Java skips those without a class."""
    found: dict[str, dict[str, str]] = {}
    listed = translation.providers.get("config.providers")
    for name in parse_list(listed) if listed else ():
        prefix = f"config.providers.{name}."
        if f"{prefix}class" in translation.providers:
            found[name] = {
                key.removeprefix(prefix): entry.value.strip()
                for key, entry in translation.providers.items()
                if key.startswith(prefix)
            }
    return found


def _entries(one: TranslatedFile) -> Iterator[Entry]:
    yield from one.file.values()
    yield from (each for each in (one.include, one.exclude, one.streams) if each is not None)


def _path(entry: Entry) -> str:
    return entry.where.rpartition(":")[0]


def _say_positions(
    page: Page, flow: FlowSettings, consumer: Properties, providers: _Providers
) -> None:
    group = providers.shown(flow.group_id, consumer.get("group.id"))
    reset = providers.shown(flow.fetch.auto_offset_reset, consumer.get("auto.offset.reset"))
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
    consumer: TranslatedFile,
    mode: LegacyMode,
    providers: _Providers,
    *,
    listed: bool,
) -> None:
    name = flow.name
    include, exclude, own = consumer.include, consumer.exclude, mode.entries.get("topics.exclude")
    if listed:
        include = exclude = None
    elif include is None and exclude is None:
        include = mode.include
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
    providers.put_list(page, f"{name}.topics.exclude", excluded, own or exclude)
    if own and exclude and exclude.secret:  # only the last one can stay a placeholder
        page.secrets.append(f"{name}.topics.exclude")
    page.comment("Topics keep their names, as with MirrorMaker 1.")
    page.put(f"{name}.replication.policy.class", "IdentityReplicationPolicy")


def _sizes(
    page: Page,
    flow: FlowSettings,
    consumer: TranslatedFile,
    mode: LegacyMode,
    providers: _Providers,
) -> None:
    """Write the flow's numbers."""
    given, topics = mode.entries, flow.topics

    def put(key: str, value: str, entry: Entry | None) -> None:
        if entry is not None and entry.value.strip().lower() != value:  # it was converted
            entry = replace(entry, written="")
        providers.put_made(page, f"{flow.name}.{key}", value, entry)

    page.comment("--num.streams or tasks.max")
    streams = consumer.streams or given.get("tasks.max")
    if streams is not None and java_int(streams.value.strip()) != flow.tasks_max:
        streams = None  # the option overrides it
    put("tasks.max", str(flow.tasks_max), streams)
    if topics.replication_factor == -1:
        page.comment("Topics that the target lacks are created with the brokers' default.")
    put("replication.factor", str(topics.replication_factor), given.get("replication.factor"))
    page.comment("metadata.max.age.ms or refresh.topics.interval.seconds")
    interval = given.get("refresh.topics.interval.seconds")
    age = consumer.file.get("metadata.max.age.ms")
    interval = interval or (age and replace(age, written=""))
    put("refresh.topics.interval.seconds", str(topics.refresh_interval_s), interval)
    if not topics.refresh_enabled:
        put("refresh.topics.enabled", "false", given.get("refresh.topics.enabled"))


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
        providers.put(page, f"{name}.{key}", entry)
        written.add(key)
    return written
