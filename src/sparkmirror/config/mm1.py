"""Read MirrorMaker 1's consumer and producer files, and normalise its include list."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sparkmirror.config import remarks
from sparkmirror.config.flow import (
    client,
    fetch_settings,
    position_interval_ms,
    produce_settings,
)
from sparkmirror.config.keys import KeyUse, unknown_keys_error
from sparkmirror.config.properties import Entry, Properties, load_properties
from sparkmirror.config.security import mark_idle
from sparkmirror.config.settings import Scope, Status, Type, find, names
from sparkmirror.config.values import Reader, check, merge_errors
from sparkmirror.errors import ConfigError
from sparkmirror.java_regex import compile_regex
from sparkmirror.model import (
    FlowSettings,
    MirrorMode,
    MirrorSettings,
    PolicySettings,
    ProduceSettings,
    TopicSettings,
)

__all__ = ["load_mm1", "normalise_include"]

# What Kafka itself marks as internal, and MirrorMaker 1 leaves out by default.
_KAFKA_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_DELIVERY_TIMEOUT_MS_DEFAULT = ProduceSettings().delivery_timeout_ms
_QUOTES = "\"'"


def normalise_include(raw: str) -> str:
    """The Java regex that MirrorMaker 1 makes of an include list.

    In its order: trim, commas to ``|``, no blanks anywhere, no quotes at either end.
    """
    return raw.strip().replace(",", "|").replace(" ", "").strip(_QUOTES)


def load_mm1(
    consumer_config: Path,
    producer_config: Path,
    *,
    include: str,
    num_streams: int = 1,
    offset_commit_interval_ms: int = 60_000,
) -> MirrorSettings:
    """Read, check and join MirrorMaker 1's two files into one flow ``source->target``.

    ``include``: the raw ``--include`` or ``--whitelist`` text. Raises ConfigError with the file,
    line and key of everything that is wrong.
    """
    regex = normalise_include(include)
    compile_regex(regex, where="--include")
    for option, value in (
        ("--num.streams", num_streams),
        ("--offset.commit.interval.ms", offset_commit_interval_ms),
    ):
        if value < 1:
            raise ConfigError(f"{value} is too small.", where=option, do="Write at least 1.")
    consumer_file = load_properties(consumer_config)
    producer_file = load_properties(producer_config)
    uses = [
        *_checked(consumer_file, Scope.CONSUMER),
        *_checked(producer_file, Scope.PRODUCER),
    ]
    flow = _flow(
        consumer_file,
        producer_file,
        regex,
        tasks_max=num_streams,
        position_ms=position_interval_ms(1_000, offset_commit_interval_ms),
    )
    return MirrorSettings(
        flows=(flow,),
        clusters=("source", "target"),
        mode=MirrorMode.MM1,
        warnings=tuple(_remarks(include, regex, uses, consumer_file, producer_file)),
    )


def _checked(file: Properties, scope: Scope) -> list[KeyUse]:
    uses: list[KeyUse] = []
    unknown: list[Entry] = []
    errors: list[ConfigError] = []
    for entry in file.values():
        row = find(entry.key, scope)
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
        uses.append(KeyUse(entry, row))
    if unknown:

        def suggest(key: str, _clusters: Sequence[str]) -> str:
            close = difflib.get_close_matches(key, sorted(names(scope)), 1, 0.7)
            return close[0] if close else ""

        errors.append(unknown_keys_error(unknown, str(file.path), (), suggest=suggest))
    if errors:
        raise merge_errors(errors, str(file.path))
    return uses


def _flow(
    consumer: Properties,
    producer: Properties,
    regex: str,
    *,
    tasks_max: int,
    position_ms: int,
) -> FlowSettings:
    group = consumer.get("group.id")
    if group is None or not group.value.strip():
        raise ConfigError(
            "group.id is missing: the group's offsets on the source are the mirror's positions.",
            where=consumer.where("group.id"),
            do="Add group.id=NAME; take the old MirrorMaker's to go on where it stopped.",
        )
    group_id = group.value.strip()
    settings = Reader(consumer, Scope.CONSUMER)
    internal = _KAFKA_INTERNAL if settings.boolean("exclude.internal.topics") else ()
    client_id = Reader(producer, Scope.PRODUCER).text("client.id") or f"{group_id}-producer"
    consumer_path, producer_path = str(consumer.path), str(producer.path)
    key = "bootstrap.servers"
    return FlowSettings(
        source=client(
            "source", consumer, Scope.CONSUMER, group_id, path=consumer_path, key=key
        ),
        target=client(
            "target", producer, Scope.PRODUCER, client_id, path=producer_path, key=key
        ),
        # The files describe no admin clients: they connect as the consumer and producer do.
        source_admin=client(
            "source", _shared(consumer), Scope.ADMIN, f"{group_id}-source-admin",
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
        topics=TopicSettings(
            include=(regex,) if regex else (),
            exclude=internal,
            config_properties_exclude=(),
            replication_factor=-1,
            refresh_interval_s=max(1, settings.integer("metadata.max.age.ms") // 1_000),
            heartbeats_replication_enabled=False,
        ),
        fetch=fetch_settings(consumer, offset_reset="latest"),
        produce=produce_settings(
            producer, join_bytes=Reader({}, Scope.SPARKMIRROR).integer("sparkmirror.join.bytes")
        ),
        position_interval_ms=position_ms,
    )  # fmt: skip


def _shared(file: Properties) -> Mapping[str, Entry]:
    """Those properties of a client file that admin clients know too."""
    known = names(Scope.ADMIN) - {"client.id"}
    return {key: entry for key, entry in file.items() if key in known}


def _remarks(
    include: str, regex: str, uses: Sequence[KeyUse], consumer: Properties, producer: Properties
) -> list[str]:
    told = []
    if set(regex) & set(_QUOTES):
        told.append(
            f"--include: quotes inside the list are part of the names, as in MirrorMaker: {include}"
            f" means the regex {regex}. Write the list without quotes."
        )
    if not regex:
        told.append("--include: the list is empty, so no topic is mirrored.")
    for file in (consumer, producer):
        told += _weakened(file)
        own = [use for use in uses if file.get(use.entry.key) is use.entry]
        told += remarks.ignored_keys(mark_idle(own, [file]), str(file.path))
    return told


def _weakened(file: Properties) -> list[str]:
    """One line per key that gives up safety which MirrorMaker 1 has by default."""
    unsafe: dict[str, Callable[[str], bool]] = {
        "acks": lambda value: value not in ("all", "-1"),
        "enable.idempotence": lambda value: value.lower() == "false",
        "delivery.timeout.ms": lambda value: int(value) < _DELIVERY_TIMEOUT_MS_DEFAULT,
    }
    lines = []
    for key, is_unsafe in unsafe.items():
        entry = file.get(key)
        if entry is not None and is_unsafe(entry.value.strip()):
            lines.append(
                f"{entry.where}: {key} is overridden to {entry.value.strip()} - data loss or "
                "message reordering is possible."
            )
    return lines
