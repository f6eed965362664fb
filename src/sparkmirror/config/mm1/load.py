"""Reads MirrorMaker 1's consumer and producer files (0.7 to 3.9), and normalises topic lists."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkmirror.config.clients.security import unsafe
from sparkmirror.config.clients.typed import (
    client,
    fault_settings,
    fetch_settings,
    group_settings,
    position_interval_ms,
    produce_settings,
    record_settings,
)
from sparkmirror.config.files.origin import Kind, Origin
from sparkmirror.config.files.properties import Entry, Properties, load_properties
from sparkmirror.config.files.providers import declares, resolve
from sparkmirror.config.files.throttle import throttle_rules
from sparkmirror.config.files.values import ValueReader, check, merge_errors, shown
from sparkmirror.config.mm1.legacy import BrokerLookup, TranslatedFile, translate
from sparkmirror.config.mm1.legacy_mode import LegacyMode, legacy_mode
from sparkmirror.config.mm2 import remarks
from sparkmirror.config.mm2.keys import KeyUse, family_of_clients, unknown_keys_error
from sparkmirror.config.mm2.overlaps import beside, check_names
from sparkmirror.config.mm2.slips import globs, repeated_keys
from sparkmirror.config.table.own import MM1_OWN_ROWS, RING, TOPICS_MAP
from sparkmirror.config.table.setting import java_int
from sparkmirror.config.table.settings import Scope, Status, Type, find, names
from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.names.replication_policy import KAFKAS_OWN
from sparkmirror.settings import (
    FlowSettings,
    GroupSettings,
    MirrorSettings,
    PolicySettings,
    ProduceSettings,
    RecordSettings,
    TopicSettings,
)

__all__ = ["Extras", "load_mm1", "load_mm1_consumer", "normalise_include", "read_file"]

# Topics that Kafka itself marks as internal; MirrorMaker 1 excludes them by default.
_DELIVERY_TIMEOUT_MS_DEFAULT = ProduceSettings().delivery_timeout_ms
_QUOTES = "\"'"
# Java's consumer ignores unknown keys, so MirrorMaker 1 can still use the same file.
_OWN_KEYS = frozenset(row.name for row in MM1_OWN_ROWS)
_NUMBER = RecordSettings()
_UNUSED = {
    (Scope.CONSUMER, "client.id"): "the consumer is named after its group, as in MirrorMaker",
    (Scope.PRODUCER, "transaction.timeout.ms"): "MirrorMaker 1 writes no transactions",
}


@dataclass(frozen=True, slots=True)
class Extras:
    """Options of MirrorMaker 1 that concern records and rebalances.

    ``keep_partitions``: records keep their partition number instead of being partitioned by key.
    ``handler``, ``listener``: ``module:name``, empty for none.
    """

    keep_partitions: bool = False
    handler: str = ""
    handler_args: str | None = None
    listener: str = ""
    listener_args: str | None = None
    abort_on_send_failure: bool = True


def normalise_include(raw: str) -> str:
    """The Java regex that MirrorMaker 1 builds from an include list.

    The steps are in its order: trim, replace commas by ``|``, remove all blanks, strip quotes at
    both ends.
    """
    return raw.strip().replace(",", "|").replace(" ", "").strip(_QUOTES)


def load_mm1(
    consumer_configs: Path | Sequence[Path],
    producer_config: Path,
    *,
    include: str | None = None,
    exclude: str | None = None,
    num_streams: int | None = None,
    offset_commit_interval_ms: int = 60_000,
    find_brokers: BrokerLookup | None = None,
    extras: Extras | None = None,
) -> MirrorSettings:
    """Read, check and join MirrorMaker 1's files into one flow per consumer file.

    The flow is ``source->target``; with several consumer files ``source-1->target`` and so on.
    ``include``: the raw text of ``--include`` or ``--whitelist``; ``exclude``: of ``--blacklist``;
    ``extras``: other options. ``num_streams=None``: as the consumer file says (0.7's streams or
    ``tasks.max``), else 1. ``find_brokers`` finds brokers in ZooKeeper if a file names only that.

    Raises ConfigError with the file, line and key of everything that is wrong, and the errors of
    ``find_brokers``.
    """
    paths = [consumer_configs] if isinstance(consumer_configs, Path) else list(consumer_configs)
    _check_streams(num_streams)
    more = extras or Extras()
    topics = _Topics(include, exclude)
    topics.check()
    files = [load_properties(path) for path in (*paths, producer_config)]
    read = [read_file(file, Scope.CONSUMER, find_brokers) for file in files[:-1]]
    producer, shared = read_file(files[-1], Scope.PRODUCER, find_brokers)
    consumers = [consumer for consumer, _ in read]
    modes = [mode.over(shared) for _, mode in read]
    uses = [
        *(use for consumer in consumers for use in _checked(consumer, Scope.CONSUMER)),
        *_checked(producer, Scope.PRODUCER),
    ]
    chosen = [topics.of(one, mode) for one, mode in zip(consumers, modes, strict=True)]
    flows = tuple(
        _flow(
            consumer,
            producer.file,
            wanted,
            alias="source" if len(consumers) == 1 else f"source-{number}",
            tasks_max=_streams(num_streams, consumer, mode),
            position_ms=position_interval_ms(1_000, offset_commit_interval_ms),
            records=record_settings(
                producer.file,
                keep_partitions=more.keep_partitions,
                handler=more.handler,
                handler_args=more.handler_args,
                drop_failed=not more.abort_on_send_failure,
            ),
            group=group_settings(
                consumer.file, listener=more.listener, listener_args=more.listener_args
            ),
            mode=mode,
        )
        for number, (consumer, wanted, mode) in enumerate(
            zip(consumers, chosen, modes, strict=True), 1
        )
    )
    _refuse_shared_groups(flows, consumers)
    flows = beside(flows)
    told = [line for wanted in dict.fromkeys(chosen) for line in wanted.remarks()]
    for file in files:
        told += repeated_keys(file)
    for translation in (*consumers, producer):
        told += translation.remarks
    for translation in (*consumers, producer):
        told += _remarks(translation.file, uses)
    for path, mode in zip(
        (*paths, producer_config), (*(one for _, one in read), shared), strict=True
    ):
        told += remarks.ignored_keys(mode.uses, str(path))
    told += _remarks_on_names(flows, consumers)
    told += [
        f"{entry.where}: {RING}=true has no effect, because every record is processed between"
        " source and sink."
        for flow, consumer in zip(flows, consumers, strict=True)
        if flow.ring and not flow.uses_ring and (entry := consumer.file.get(RING)) is not None
    ]
    told += unsafe(flows, ", ".join(str(path) for path in (*paths, producer_config)))
    return MirrorSettings(
        flows=flows,
        clusters=(*(flow.source.alias for flow in flows), "target"),
        mode=MirrorMode.MM1,
        warnings=tuple(told),
    )


def load_mm1_consumer(
    consumer_config: Path | None,
    *,
    include: str | None = None,
    find_brokers: BrokerLookup | None = None,
    options: Mapping[str, tuple[str, str]] | None = None,
    for_admin: bool = False,
) -> MirrorSettings:
    """Read a consumer file without a producer file, to show its group; target is the source.

    ``include=None``: no topic list is needed, because nothing is mirrored. ``options``: properties
    from the command line as (value, option name); they override the file and suffice without one.
    ``for_admin``: the file is one that Kafka's tools give to an admin client. Raises ConfigError.
    """
    topics = _Topics(include or "", None)
    topics.check()
    given = {
        key: Entry(key, text, Origin(Kind.COMMAND_LINE, option))
        for key, (text, option) in (options or {}).items()
    }
    file = (
        load_properties(consumer_config)
        if consumer_config is not None
        else Properties(Path("the command line"), {})
    )
    brokers = {"bootstrap.servers", "zookeeper.connect", "zk.connect"}
    # Brokers named on the command line replace all addresses in the file.
    replaced = brokers if brokers & given.keys() else frozenset[str]()
    kept = {key: entry for key, entry in file.items() if key not in replaced}
    file = Properties(file.path, kept | given, remarks=file.remarks)
    consumer, _ = read_file(file, Scope.CONSUMER, find_brokers)
    _checked(consumer, Scope.CONSUMER, *((Scope.ADMIN,) if for_admin else ()))
    known = names(Scope.PRODUCER) & names(Scope.ADMIN)
    same = {key: entry for key, entry in consumer.file.items() if key in known}
    target = Properties(consumer.file.path, same)
    flow = _flow(consumer, target, topics, alias="source", tasks_max=1, position_ms=1_000)
    return MirrorSettings((flow,), ("source",), mode=MirrorMode.MM1, warnings=consumer.remarks)


def read_file(
    given: Properties, scope: Scope, find_brokers: BrokerLookup | None
) -> tuple[TranslatedFile, LegacyMode]:
    """``given`` with current keys only, and the MirrorMaker 2 keys that were in it.

    Placeholders are resolved: Java's clients do it since KIP-421. Wrong keys are in
    ``TranslatedFile.errors``. Raises ConfigError for a placeholder or provider that cannot be
    resolved, and the errors of ``find_brokers``.
    """
    resolved, told = resolve(given, by_client=True)
    declared = {key: resolved.pop(key) for key in given if declares(key)}
    file, mode, errors = legacy_mode(Properties(given.path, resolved))
    translation = translate(file, scope, find_brokers)
    return replace(
        translation,
        remarks=(*given.remarks, *told, *translation.remarks),
        errors=(*translation.errors, *errors),
        providers=declared,
    ), mode


def _check_streams(num_streams: int | None) -> None:
    if num_streams is not None and num_streams < 1:
        where = "--num.streams"
        raise ConfigError(f"{num_streams} is too small.", where=where, do="Write at least 1.")


def _streams(option: int | None, consumer: TranslatedFile, mode: LegacyMode) -> int:
    if option is not None:
        return option
    if consumer.streams is not None:
        return java_int(consumer.streams.value.strip())
    return mode.tasks_max or 1


@dataclass(frozen=True, slots=True)
class _Topics:
    """The raw topic lists; at most one of them is set.

    ``secret``: it comes from a config provider, so it is never shown. ``because``: the key because
    of which a missing list means all topics, with its place.
    """

    include: str | None
    exclude: str | None
    include_where: str = "--include"
    exclude_where: str = "--blacklist"
    secret: bool = False
    because: tuple[str, str] = ("", "")

    def check(self) -> None:
        """Raise ConfigError if both lists are set, or for an invalid regex."""
        if self.include is not None and self.exclude is not None:
            raise ConfigError(
                "Exactly one of whitelist or blacklist is required.",
                where=f"{self.include_where}, {self.exclude_where}",
                do="Name the topics to mirror, or those to leave out.",
            )
        for text, where in (
            (self.include, self.include_where), (self.exclude, self.exclude_where)
        ):  # fmt: skip
            if text is None:
                continue
            try:
                compile_regex(normalise_include(text), where=where)
            except ConfigError as error:
                if not self.secret:
                    raise
                raise ConfigError(
                    "The value is an invalid regex.", where=where, do=error.do
                ) from None

    def of(self, consumer: TranslatedFile, mode: LegacyMode) -> _Topics:
        """These lists, or those of a 0.7 file or MirrorMaker 2's keys.

        Raises ConfigError if there is none.
        """
        if self.include is not None or self.exclude is not None:
            return self
        include, exclude = consumer.include, consumer.exclude
        if include is None and exclude is None:
            include = mode.include
        if include is None and exclude is None and mode.every_topic is not None:
            key = mode.every_topic
            return _Topics(".*", None, because=(key.where, key.key))
        if include is None and exclude is None:
            raise ConfigError(
                "include list must be specified.",
                where="--include",
                do="Name the topics to mirror, for example --include 'orders.*,payments', or all "
                "with --include '.*'.",
            )
        found = _Topics(
            include.value if include is not None else None,
            exclude.value if exclude is not None else None,
            f"{include.where}: {include.key}" if include is not None else "",
            f"{exclude.where}: {exclude.key}" if exclude is not None else "",
            secret=any(one is not None and one.secret for one in (include, exclude)),
        )
        found.check()
        return found

    @property
    def regexes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Regexes to include, and regexes to exclude."""
        if self.exclude is not None:
            regex = normalise_include(self.exclude)
            return (".*",), ((regex,) if regex else ())
        regex = normalise_include(self.include or "")
        return ((regex,) if regex else ()), ()

    def remarks(self) -> list[str]:
        """Warnings about lists that do not mean what they seem to mean."""
        excluded = self.exclude is not None
        raw = (self.exclude if excluded else self.include) or ""
        where = self.exclude_where if excluded else self.include_where
        regex = normalise_include(raw)
        told = []
        if self.because[0]:
            place, key = self.because
            told.append(
                f"{place}: {key} is a key of MirrorMaker 2, and no list of topics is given, so all "
                "topics are mirrored, as MirrorMaker 2 does. Write topics=.* to say so, or name "
                "them."
            )
        if set(regex) & set(_QUOTES):
            means = "" if self.secret else f": {raw} means the regex {regex}"
            told.append(
                f"{where}: quotes inside the list are part of the names, as in MirrorMaker{means}."
                " Write the list without quotes."
            )
        if not self.secret:
            told += globs(where, "the list", regex.split("|"))
        if not regex:
            told.append(
                f"{where}: the list is empty, so "
                + ("every topic is mirrored." if excluded else "no topic is mirrored.")
            )
        return told


def _refuse_shared_groups(
    flows: Sequence[FlowSettings], consumers: Sequence[TranslatedFile]
) -> None:
    """Raise ConfigError if two flows read one cluster in one group: both would copy everything."""
    files = [consumer.file for consumer in consumers]
    for index, (flow, file) in enumerate(zip(flows, files, strict=True)):
        for other, beside_it in zip(flows[:index], files, strict=False):
            same = set(flow.source.bootstrap_servers) & set(other.source.bootstrap_servers)
            if same and flow.group_id == other.group_id:
                group = shown(file["group.id"], flow.group_id)
                server = shown(file["bootstrap.servers"], sorted(same)[0])
                raise ConfigError(
                    f"the group {group} on {server} is already used by {beside_it.path}: each "
                    "record would be mirrored twice.",
                    where=str(file.path),
                    do="Give one consumer file per source cluster; --num.streams adds streams.",
                )


def _checked(translation: TranslatedFile, scope: Scope, *others: Scope) -> list[KeyUse]:
    """The meaning of each key for the client ``scope``, or for one of ``others``.

    Raises ConfigError for unknown keys and wrong values.
    """
    file = translation.file
    uses: list[KeyUse] = []
    unknown: list[Entry] = []
    errors: list[ConfigError] = list(translation.errors)
    for entry in file.values():
        row = find(entry.key, scope, *others)
        if row is None and scope is Scope.CONSUMER and entry.key in _OWN_KEYS:
            row = find(entry.key, Scope.SPARKMIRROR)
        if row is None and (family := family_of_clients(entry.key, scope)) is not None:
            uses.append(KeyUse(entry, family, ignored=family.reason))
            continue
        if row is None:
            unknown.append(entry)
            continue
        try:
            check(entry, row)
        except ConfigError as error:
            errors.append(error)
            continue
        if row.status is Status.REFUSED and (entry.value.strip() or row.type is not Type.LIST):
            errors.append(
                ConfigError(
                    f"{entry.key} cannot be used: {row.reason}.",
                    where=entry.where,
                    do="Remove it.",
                )
            )
        uses.append(KeyUse(entry, row, ignored=_UNUSED.get((scope, row.name), "")))
    if unknown:

        def suggest(key: str, _clusters: Sequence[str]) -> str:
            known = names(scope, *others) | (_OWN_KEYS if scope is Scope.CONSUMER else frozenset())
            close = difflib.get_close_matches(key, sorted(known), 1, 0.7)
            return close[0] if close else ""

        errors.append(unknown_keys_error(unknown, str(file.path), (), suggest=suggest))
    if errors:
        raise merge_errors(errors, str(file.path))
    return uses


def _flow(
    translation: TranslatedFile,
    producer: Properties,
    wanted: _Topics,
    *,
    alias: str,
    tasks_max: int,
    position_ms: int,
    records: RecordSettings = _NUMBER,
    group: GroupSettings | None = None,
    mode: LegacyMode | None = None,
) -> FlowSettings:
    consumer = translation.file
    include, exclude = wanted.regexes
    named = consumer.get("group.id")
    if named is None or not named.value.strip():
        raise ConfigError(
            "group.id is missing: the group's offsets on the source are the mirror's positions.",
            where=consumer.where("group.id"),
            do="Add group.id=NAME; use the old MirrorMaker's group to continue where it stopped.",
        )
    group_id = named.value.strip()
    settings = ValueReader(consumer, Scope.CONSUMER)
    own = ValueReader(consumer, Scope.SPARKMIRROR)
    internal = KAFKAS_OWN if settings.boolean("exclude.internal.topics") else ()
    client_id = ValueReader(producer, Scope.PRODUCER).text("client.id") or f"{group_id}-producer"
    consumer_path, producer_path = str(consumer.path), str(producer.path)
    key = "bootstrap.servers"
    return FlowSettings(
        source=client(
            alias, consumer, Scope.CONSUMER, group_id, path=consumer_path, key=key
        ),
        target=client(
            "target", producer, Scope.PRODUCER, client_id, path=producer_path, key=key
        ),
        # The files have no admin clients; these use the connections of consumer and producer.
        source_admin=client(
            alias, _shared(consumer), Scope.ADMIN, f"{group_id}-source-admin",
            path=consumer_path, key=key,
        ),
        target_admin=client(
            "target", _shared(producer), Scope.ADMIN, f"{group_id}-target-admin",
            path=producer_path, key=key,
        ),
        mode=MirrorMode.MM1,
        tasks_max=tasks_max,
        group_id=group_id,
        policy=PolicySettings(kind="identity"),
        topics=(mode or LegacyMode()).topics(
            TopicSettings(
                include=include,
                exclude=internal + exclude,
                replication_factor=-1,
                refresh_interval_s=max(1, settings.integer("metadata.max.age.ms") // 1_000),
                map=own.rules(TOPICS_MAP),
                heartbeats_replication_enabled=False,
            )
        ),
        fetch=fetch_settings(consumer, own, offset_reset="latest"),
        group=group or GroupSettings(),
        produce=produce_settings(producer, own),
        faults=fault_settings(own, by_record=records.used),
        position_interval_ms=position_ms,
        records=records,
        throttles=throttle_rules(own),
        zookeeper=translation.zookeeper,
        ring=own.boolean(RING),
    )  # fmt: skip


def _shared(file: Properties) -> Mapping[str, Entry]:
    """The properties of a client file that admin clients have, too."""
    known = names(Scope.ADMIN) - {"client.id"}
    return {key: entry for key, entry in file.items() if key in known}


def _remarks_on_names(
    flows: Sequence[FlowSettings], consumers: Sequence[TranslatedFile]
) -> list[str]:
    """Remarks on conflicting names, if a file has a map of topic names; else none."""
    entries = (one.file.get(TOPICS_MAP) for one in consumers)
    maps = {
        flow.name: entry
        for flow, entry in zip(flows, entries, strict=True)
        if entry is not None and flow.topics.map
    }
    paths = ", ".join(str(one.file.path) for one in consumers)
    return check_names([flow.naming for flow in flows], paths, maps) if maps else []


def _remarks(file: Properties, uses: Sequence[KeyUse]) -> list[str]:
    own = remarks.mark_idle([use for use in uses if file.get(use.entry.key) is use.entry], [file])
    return [*_weakened(file), *remarks.capped(own), *remarks.ignored_keys(own, str(file.path))]


def _weakened(file: Properties) -> list[str]:
    """One line per key that is less safe than MirrorMaker 1's default."""
    unsafe: dict[str, Callable[[str], bool]] = {
        "acks": lambda value: value not in ("all", "-1"),
        "enable.idempotence": lambda value: value.lower() == "false",
        "delivery.timeout.ms": lambda value: java_int(value) < _DELIVERY_TIMEOUT_MS_DEFAULT,
    }
    lines = []
    for key, is_unsafe in unsafe.items():
        entry = file.get(key)
        if entry is not None and is_unsafe(entry.value.strip()):
            lines.append(
                f"{entry.where}: {key} is overridden to {shown(entry, entry.value.strip())} - data "
                "loss or message reordering is possible."
            )
    return lines
