"""Translates consumer and producer files of Kafka 0.7 to 0.11 to current keys.

Pure: takes a file, returns a file with current keys, and a line for each key that was renamed,
dropped or moved. If a file names only ZooKeeper, a function of the caller finds the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sparkmirror.config.files.origin import Kind, Origin
from sparkmirror.config.files.properties import Entry, Properties
from sparkmirror.config.files.values import split_list
from sparkmirror.config.table.legacy_keys import CONSUMER_KEYS, PRODUCER_KEYS, VALUES, Fate, OldKey
from sparkmirror.config.table.settings import Scope, redact
from sparkmirror.errors import ConfigError

# (zookeeper.connect, security.protocol) -> host:port texts; raises MirrorError.
BrokerLookup = Callable[[str, str], tuple[str, ...]]

_TABLES = {Scope.CONSUMER: CONSUMER_KEYS, Scope.PRODUCER: PRODUCER_KEYS}
_BOOTSTRAP = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class TranslatedFile:
    """One file, translated to current keys.

    ``file`` has only current keys, each with the line of the old one. ``remarks``: a line per old
    key. ``errors``: keys that cannot be translated. ``zookeeper``: the ensemble where an old
    consumer kept its group's offsets, empty if none. ``include``, ``exclude`` and ``streams``: keys
    of 0.7's mirroring inside the broker that are options today. ``providers``: what declares
    config providers, which have replaced their placeholders already.
    """

    file: Properties
    remarks: tuple[str, ...] = ()
    errors: tuple[ConfigError, ...] = ()
    zookeeper: str = ""
    include: Entry | None = None
    exclude: Entry | None = None
    streams: Entry | None = None
    providers: Mapping[str, Entry] = field(default_factory=dict)


@dataclass
class _Work:
    """A translation in progress."""

    entries: dict[str, Entry]
    remarks: list[str] = field(default_factory=list)
    errors: list[ConfigError] = field(default_factory=list)
    zookeeper: Entry | None = None
    options: dict[Fate, Entry] = field(default_factory=dict)
    eras: set[str] = field(default_factory=set)


def translate(file: Properties, scope: Scope, find_brokers: BrokerLookup | None) -> TranslatedFile:
    """``file`` with current keys; ``scope`` says whether a consumer or a producer reads it.

    Current keys are not changed. ``find_brokers`` is called only if the file names ZooKeeper but no
    brokers; its `MirrorError` is raised.
    """
    table = _TABLES[scope]
    work = _Work({key: entry for key, entry in file.items() if key not in table})
    for key, entry in file.items():
        row = table.get(key)
        if row is not None:
            _apply(work, entry, row)
    if scope is Scope.CONSUMER:
        _old_defaults(work)
    elif "0.7" in work.eras and "batch.size" in work.entries:
        entry = work.entries.pop("batch.size")
        _remark(
            work, entry, "has no effect: it counted messages in Kafka 0.7, today it counts bytes"
        )
    zookeeper = work.zookeeper
    if zookeeper is not None:
        _find_brokers(work, zookeeper, find_brokers)
    return TranslatedFile(
        file=Properties(file.path, work.entries),
        remarks=tuple(work.remarks),
        errors=tuple(work.errors),
        zookeeper=_offset_keeper(file, zookeeper),
        include=work.options.get(Fate.INCLUDE),
        exclude=work.options.get(Fate.EXCLUDE),
        streams=work.options.get(Fate.STREAMS),
    )


def _offset_keeper(file: Properties, zookeeper: Entry | None) -> str:
    """The ZooKeeper that may hold the group's offsets, which was old consumers' default."""
    if zookeeper is None or _BOOTSTRAP in file:  # only new consumers name brokers
        return ""
    storage, dual = file.get("offsets.storage"), file.get("dual.commit.enabled")
    in_kafka = storage is not None and storage.value.strip().lower() == "kafka"
    alone = dual is not None and dual.value.strip().lower() == "false"
    return "" if in_kafka and alone else zookeeper.value.strip()


def _apply(work: _Work, entry: Entry, row: OldKey) -> None:
    value = entry.value.strip()
    if entry.key == row.now and row.convert is not None and row.convert(value) == value:
        work.entries[entry.key] = entry  # the key still exists, and its value is a current one
        return
    work.eras.add(row.era)
    if row.fate is Fate.REFUSED:
        work.errors.append(_wrong(entry, f"cannot be used: {row.why}", "Remove it."))
    elif row.fate is Fate.DROPPED:
        allowed = VALUES.get(entry.key)
        if allowed is not None and value.lower() not in allowed:
            work.errors.append(
                _wrong(
                    entry,
                    "has a value that was never valid",
                    f"Remove the key: it no longer has an effect (it took {', '.join(allowed)}).",
                )
            )
        else:
            _remark(work, entry, f"has no effect: {row.why}")
    elif row.fate is Fate.RENAMED:
        _rename(work, entry, row, value)
    elif row.fate is Fate.ZOOKEEPER:
        # 0.8's spelling overrides 0.7's.
        if work.zookeeper is None or entry.key == "zookeeper.connect":
            work.zookeeper = entry
    else:
        _option(work, entry, row, value)


def _rename(work: _Work, entry: Entry, row: OldKey, value: str) -> None:
    try:
        now = row.convert(value) if row.convert is not None else value
    except ValueError as error:
        work.errors.append(
            _wrong(entry, f"{error} ({entry.key} is now {row.now})", "Correct or remove it.")
        )
        return
    if not now:
        _remark(work, entry, f"has no effect: {row.why}")
        return
    present = work.entries.get(row.now)
    if present is not None:
        _remark(work, entry, f"is ignored because {present.key} is also set (line {present.line})")
        return
    # Blanks around commas are no change: the placeholder means the same under the new key.
    written = entry.written if split_list(now) == split_list(value) else ""
    work.entries[row.now] = replace(entry, key=row.now, value=now, written=written)
    shown = redact(row.now, now) if not entry.secret else "[hidden]"
    remark = f" ({row.why})" if row.why else ""
    _remark(work, entry, f"is now {row.now}={shown}{remark}")


def _option(work: _Work, entry: Entry, row: OldKey, value: str) -> None:
    option = {
        Fate.INCLUDE: "--include", Fate.EXCLUDE: "--blacklist", Fate.STREAMS: "--num.streams",
    }[row.fate]  # fmt: skip
    if row.convert is not None:
        try:
            row.convert(value)
        except ValueError as error:
            work.errors.append(_wrong(entry, str(error), f"Remove it and give {option}."))
            return
    work.options[row.fate] = entry
    _remark(work, entry, f"is now the option {option}, which applies if both are given")


def _old_defaults(work: _Work) -> None:
    """Set 0.7's default: it began at the smallest offset, later consumers begin at the end."""
    if "0.7" in work.eras and "auto.offset.reset" not in work.entries:
        origin = Origin(Kind.RELEASE, "Kafka 0.7's default")
        work.entries["auto.offset.reset"] = Entry("auto.offset.reset", "earliest", origin)
        work.remarks.append(
            "auto.offset.reset=earliest: the consumer file is one of Kafka 0.7, which began at the "
            "smallest offset; write auto.offset.reset=latest to begin at the end."
        )


def _find_brokers(work: _Work, entry: Entry, find_brokers: BrokerLookup | None) -> None:
    present = work.entries.get(_BOOTSTRAP)
    if present is not None:
        what = f"names no brokers here, because {_BOOTSTRAP} is set (line {present.line})"
        _remark(work, entry, what)
        return
    if find_brokers is None:
        work.errors.append(
            _wrong(
                entry,
                "names a ZooKeeper, but brokers are needed",
                f"Write {_BOOTSTRAP}=host:port[,host:port…].",
            )
        )
        return
    protocol = work.entries.get("security.protocol")
    name = protocol.value.strip() if protocol is not None else "PLAINTEXT"
    servers = ",".join(find_brokers(entry.value.strip(), name or "PLAINTEXT"))
    work.entries[_BOOTSTRAP] = Entry(_BOOTSTRAP, servers, entry.origin)
    _remark(work, entry, f"is now {_BOOTSTRAP}={servers} (found in ZooKeeper)")


def _remark(work: _Work, entry: Entry, what: str) -> None:
    work.remarks.append(f"{entry.where}: {entry.key} {what}.")


def _wrong(entry: Entry, what: str, do: str) -> ConfigError:
    return ConfigError(f"{entry.key} {what}.", where=entry.where, do=do)
