"""MirrorMaker 2's keys inside MirrorMaker 1's files: the legacy mode of KIP-382.

Such files are run with MirrorMaker 1's command. Keys about topics apply. Keys that need MirrorMaker
2's internal topics (checkpoints, heartbeats) are reported as ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparkmirror.config.files.properties import Entry, Properties
from sparkmirror.config.files.values import ValueReader, check, shown
from sparkmirror.config.mm2.keys import OF_CONNECTOR, KeyUse
from sparkmirror.config.table.settings import RENAMED_KEYS, Scope, Status, find
from sparkmirror.errors import ConfigError
from sparkmirror.names.replication_policy import policy_kind
from sparkmirror.settings import TopicSettings

_ADD_IT_THERE = (
    "Remove the key. If you need it, have sparkmirror migrate-config write a MirrorMaker 2 file"
    " without it, and add it there."
)
_NOT_HERE = (
    "not supported with MirrorMaker 1's files (sparkmirror migrate-config converts these to a"
    " MirrorMaker 2 file)"
)
_ALREADY = "always so with MirrorMaker 1's files"
_COUNTS = frozenset(
    {
        "config.properties.exclude",
        "refresh.topics.enabled",
        "refresh.topics.interval.seconds",
        "replication.factor",
        "replication.policy.class",
        "tasks.max",
        "topics",
        "topics.exclude",
        "use.defaults.from",
    }
)


@dataclass(frozen=True, slots=True)
class LegacyMode:
    """The keys of MirrorMaker 2 in one of MirrorMaker 1's files, or in both.

    ``uses``: their meanings, for the remarks.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    uses: tuple[KeyUse, ...] = ()

    def over(self, other: LegacyMode) -> LegacyMode:
        """The keys of both; this one's override ``other``'s."""
        return LegacyMode({**other.entries, **self.entries}, (*self.uses, *other.uses))

    @property
    def include(self) -> Entry | None:
        """The topic list."""
        return self.entries.get("topics")

    @property
    def every_topic(self) -> Entry | None:
        """The first key that makes a missing topic list mean all topics; None if none does.

        A key without an effect here is no sign that MirrorMaker 2's way is meant.
        """
        return next((one for name, one in self.entries.items() if name in _COUNTS), None)

    @property
    def tasks_max(self) -> int | None:
        """``tasks.max``; None if it is not set."""
        return self._reader.integer("tasks.max") if "tasks.max" in self.entries else None

    def topics(self, settings: TopicSettings) -> TopicSettings:
        """``settings``, overridden by these keys."""
        given, reader = self.entries.keys(), self._reader
        if "topics.exclude" in given:
            exclude = (*settings.exclude, *reader.elements("topics.exclude"))
            settings = replace(settings, exclude=exclude)
        if "config.properties.exclude" in given:
            kept_out = reader.elements("config.properties.exclude")
            settings = replace(settings, config_properties_exclude=kept_out)
        if "use.defaults.from" in given and reader.text("use.defaults.from") == "source":
            settings = replace(settings, use_defaults_from="source")
        if "replication.factor" in given:
            settings = replace(settings, replication_factor=reader.integer("replication.factor"))
        if "refresh.topics.enabled" in given:
            settings = replace(settings, refresh_enabled=reader.boolean("refresh.topics.enabled"))
        if "refresh.topics.interval.seconds" in given:
            seconds = reader.integer("refresh.topics.interval.seconds")
            settings = replace(
                settings,
                refresh_enabled=settings.refresh_enabled and seconds >= 0,
                refresh_interval_s=max(1, seconds),
            )
        return settings

    @property
    def _reader(self) -> ValueReader:
        return ValueReader(self.entries, Scope.CONNECTOR)


def legacy_mode(file: Properties) -> tuple[Properties, LegacyMode, list[ConfigError]]:
    """(``file`` without MirrorMaker 2's keys, these keys, their errors). Pure."""
    rest: dict[str, Entry] = {}
    entries: dict[str, Entry] = {}
    uses: list[KeyUse] = []
    errors: list[ConfigError] = []
    for key, entry in file.items():
        name = RENAMED_KEYS.get(key, key)
        row = find(name, Scope.CONNECTOR)
        if row is None or find(name, Scope.CONSUMER, Scope.PRODUCER) is not None:
            rest[key] = entry
            continue
        try:
            check(entry, row)
            if row.status is Status.REFUSED and entry.value.strip():
                raise ConfigError(
                    f"{key} cannot be used: {row.reason}.", where=entry.where, do="Remove it."
                )
            if name in OF_CONNECTOR and entry.value.strip():
                # Without them, other records would be mirrored.
                raise ConfigError(
                    f"{key} cannot be used with MirrorMaker 1's files.",
                    where=entry.where,
                    do=_ADD_IT_THERE,
                )
            if name == "replication.policy.class" and policy_kind(entry.value) != "identity":
                raise ConfigError(
                    f"{entry.key}={shown(entry, entry.value.strip())} renames topics, which is not "
                    "supported with MirrorMaker 1's files.",
                    where=entry.where,
                    do=_ADD_IT_THERE,
                )
        except ConfigError as error:
            errors.append(error)
            continue
        entries[name] = entry
        reason = row.reason if row.status is not Status.SUPPORTED else ""
        if not reason and name not in _COUNTS:
            reason = _ALREADY if entry.value.strip().lower() == "false" else _NOT_HERE
        uses.append(KeyUse(entry, row, ignored=reason))
    return Properties(file.path, rest), LegacyMode(entries, tuple(uses)), errors
