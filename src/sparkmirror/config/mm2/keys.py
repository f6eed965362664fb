"""The meaning of each key of a MirrorMaker 2 file: its scope and row in the table, or its fault.

There are four outcomes: a key is *used*; it is known but *lost* at this place (Java drops it
silently, we report the spelling that works); it is *refused*; or it is *unknown*.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sparkmirror.config.files.properties import Entry, may_be_secret
from sparkmirror.config.mm2.scoping import FLOW_ONLY
from sparkmirror.config.table.mirrormaker1 import GROUP_ROWS, RECORD_ROWS
from sparkmirror.config.table.settings import (
    CLIENT_SET,
    DROPPED_KEYS,
    OLD_CLIENT_KEYS,
    REMOVED_KEYS,
    RENAMED_KEYS,
    Scope,
    Setting,
    Status,
    find,
    names,
)
from sparkmirror.config.table.settings_clients import FETCH_ROWS
from sparkmirror.errors import ConfigError

# Keys of clients begin so in a flow's settings, and with the roles alone in a cluster's.
_CLIENTS = {
    "source.consumer.": Scope.CONSUMER,
    "source.admin.": Scope.ADMIN,
    "target.admin.": Scope.ADMIN,
    "producer.override.": Scope.PRODUCER,
    "source.producer.": Scope.PRODUCER,
    "target.producer.": Scope.PRODUCER,
    "target.consumer.": Scope.CONSUMER,
    "consumer.": Scope.CONSUMER,
    "admin.": Scope.ADMIN,
    "producer.": Scope.PRODUCER,
}
_ROLES = {"consumer": Scope.CONSUMER, "producer": Scope.PRODUCER, "admin": Scope.ADMIN}
_TOP = (Scope.DRIVER, Scope.CONNECTOR, Scope.SPARKMIRROR)
# Where clients of any cluster read a key, in the order of _ROLES.
_SPELLINGS = ("A.consumer.{}", "B.producer.{}", "A.admin.{}")
_SHOWN_MAX = 10
_WORKER_TOP_PREFIXES = ("offset.storage", "config.storage", "status.storage", "worker", "task.")
# Families of keys that contain names chosen by the user: prefix -> name of the row.
_FAMILIES = {
    "transforms.": "transforms",
    "predicates.": "predicates",
    "topic.creation.": "topic.creation.groups",
    "key.converter.": "key.converter",
    "value.converter.": "value.converter",
    "header.converter.": "header.converter",
}
_CONVERTERS = ("key.converter.", "value.converter.", "header.converter.")
# Families that nothing here reads, with the row that says why; clients have the last ones, too.
_METRICS = ("metrics.context.", "metrics.jmx.")
_WITHOUT_EFFECT = {
    "listeners.https.": "listeners",
    "admin.listeners.https.": "admin.listeners",
    **dict.fromkeys(_METRICS, "metric.reporters"),
}
# Topics of Connect's workers. Their further keys are configs of these topics (KIP-605).
_STORAGES = ("offset.storage.", "config.storage.", "status.storage.")
_OWN_CONFIGS = "the mirror creates this topic with configs of its own"
_MISSPELT = 0.7  # more alike than any config of a topic is to a key

# Families whose keys a connector reads; Java drops them at the top level.
OF_CONNECTOR = frozenset({"transforms", "predicates"})

_SYNCS_AS_THEY_ARE = (
    "offset syncs are written one by one, as they are, to the one partition of their topic"
)
_OWN_WAY_TO_READ = "the control plane reads checkpoints with its own fetch settings"
# Client keys that only MirrorMaker 1 uses, and why MirrorMaker 2 does not.
_NO_GROUP = "the mirror assigns partitions to slots, not a consumer group"
MM1_ONLY = {row.name: _NO_GROUP for row in GROUP_ROWS if row.status is Status.SUPPORTED} | {
    "partitioner.class": "records keep their partition number",
    "partitioner.ignore.keys": "records keep their partition number",
    "batch.size": "raw batches keep the source's batches (sparkmirror.join.bytes joins small ones)",
    **dict.fromkeys(
        ("compression.type", *(f"compression.{name}.level" for name in ("gzip", "lz4", "zstd"))),
        "raw batches keep the source's compression",
    ),
    "group.id": "positions are kept in the group __mirror.A->B on the target",
    "exclude.internal.topics": "internal topics are never mirrored",
}


_FETCH = frozenset(row.name for row in FETCH_ROWS)
_UNUSED_BY_SYNCS = frozenset(row.name for row in RECORD_ROWS) | {
    "linger.ms",
    "transaction.timeout.ms",
}


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key that has a meaning at its place.

    ``alias``: the cluster that it is for; ``flow``: the flow; both are empty at the top level.
    ``family``: the key contains a name of the user's, and ``setting`` is the list of such names.
    ``ignored``: why it is ignored at this place although its row is supported. ``checked``: its
    value is checked all the same, because a client of Java's reads it.
    """

    entry: Entry
    setting: Setting
    alias: str = ""
    flow: str = ""
    ignored: str = ""
    family: bool = False
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A known key at a place where Java drops it; ``instead`` is the spelling that works.

    ``others``: further spellings, of which one may work where the first one has no effect either.
    ``effect``: what the key does at this place, as the warning says it. ``setting``: its row, if it
    applies to some clients.
    """

    entry: Entry
    instead: str
    effect: str = "has no effect here"
    setting: Setting | None = None
    others: tuple[str, ...] = ()


Outcome = KeyUse | Lost | ConfigError | None


def modern(raw: Mapping[str, Entry], clusters: Sequence[str]) -> tuple[dict[str, Entry], list[str]]:
    """``raw`` with current names for keys of 2.4 to 3.x, and a remark for each of them. Pure."""
    found: dict[str, Entry] = {}
    told: list[str] = []
    for key, entry in raw.items():
        name = old_name(key, clusters)
        prefix = key[: len(key) - len(name)]
        if name in DROPPED_KEYS:
            told.append(f"{entry.where}: {key} has no effect: {DROPPED_KEYS[name]}.")
        elif name not in RENAMED_KEYS:
            found[key] = entry
        elif (now := prefix + RENAMED_KEYS[name]) in raw:
            told.append(f"{entry.where}: {key} is ignored because {now} is also set.")
        else:
            found[now] = replace(entry, key=now)
            told.append(f"{entry.where}: {key} is now called {now}.")
    return found, told


def old_name(key: str, clusters: Sequence[str] = ()) -> str:
    """The name of 2.4 to 3.x in ``key``, without a cluster or flow and a client; else ``key``.

    A flow's settings and the top level have renamed keys, and all places have dropped ones.
    """
    source, arrow, rest = key.rpartition("->")
    if arrow and source not in clusters:
        return key
    places = [f"{alias}." for alias in clusters]
    for place in places if arrow else ["", *places]:
        if not rest.startswith(place):
            continue
        name = rest.removeprefix(place)
        if name in RENAMED_KEYS and (arrow or not place):
            return name
        for client in ("", *_CLIENTS):
            if name.startswith(client) and name.removeprefix(client) in DROPPED_KEYS:
                return name.removeprefix(client)
    return key


def classify(entry: Entry, clusters: Sequence[str]) -> Outcome:
    """The meaning of one key; returns a ConfigError if it is refused, ``None`` if it is unknown.

    ``clusters``: all aliases of the file. A lost key whose other spellings have no effect either
    is ignored, with the reason.
    """
    outcome = _classify(entry, clusters)
    return _advised(outcome, clusters) if isinstance(outcome, Lost) else outcome


def _advised(lost: Lost, clusters: Sequence[str]) -> Lost | KeyUse:
    """``lost`` with a spelling that works, or why the key would be ignored or refused there."""
    ignored: KeyUse | None = None
    for text in (lost.instead, *lost.others):
        for key in re.split(" (?:or|and) ", text):
            # The spellings name a cluster or flow of the file, or A, B and A->B for any.
            use = _classify(replace(lost.entry, key=key), (*clusters, "A", "B"))
            if not isinstance(use, KeyUse):
                continue
            if not use.ignored and use.setting.status is Status.SUPPORTED:
                return replace(lost, instead=text)
            reason = use.ignored or ("" if lost.setting else use.setting.reason)
            checked = lost.setting is not None
            # The last reason, because that of a key of workers may recommend the other spellings.
            ignored = KeyUse(lost.entry, use.setting, ignored=reason, checked=checked)
    return ignored or lost


def _classify(entry: Entry, clusters: Sequence[str]) -> Outcome:
    if "->" in entry.key:
        return _flow_key(entry, clusters)
    top = _top_key(entry)
    if top is not None and not isinstance(top, Lost):
        return top
    # Longest alias first, because one alias may be a prefix of another. A cluster may be called
    # "source": then its keys are not those that have no effect there.
    for alias in sorted(clusters, key=len, reverse=True):
        if entry.key.startswith(alias + "."):
            return _cluster_key(entry, alias, entry.key[len(alias) + 1 :]) or top
    return top


def _removed(entry: Entry, name: str) -> ConfigError | None:
    if name not in REMOVED_KEYS:
        return None
    instead = REMOVED_KEYS[name]
    prefix = entry.key[: len(entry.key) - len(name)]
    return ConfigError(
        f"{entry.key} is not a key of MirrorMaker 4.3.",
        where=entry.where,
        do=f"Write {prefix}{instead}.",
    )


def _top_key(entry: Entry) -> Outcome:
    name = entry.key
    removed = _removed(entry, name)
    if removed is not None:
        return removed
    if name in FLOW_ONLY:
        return Lost(entry, f"A->B.{name}")
    row = find(name, *_TOP)
    if row is not None:
        return KeyUse(entry, row)
    family = _family(entry, name)
    if family is not None:
        lost = family.family or name.startswith("topic.creation.")
        return Lost(entry, f"A->B.{name}") if lost else family
    worker = find(name, Scope.WORKER)
    if worker is not None:
        if name.startswith(_WORKER_TOP_PREFIXES):
            return KeyUse(entry, worker)
        return _lost_client_key(entry, name, f"B.{name}", *_SPELLINGS)
    other = _storage(entry, name) or _without_effect(entry, name)
    if other is not None:
        return other
    for prefix, spelling in (
        ("producer.override.", "A->B.producer.override.{}"),
        ("source.", "A.{role}.{}"),
        ("target.", "B.{role}.{}"),
        ("", "A.{role}.{}"),
    ):
        role, _, rest = name.removeprefix(prefix).partition(".")
        if prefix == "producer.override.":
            role, rest = "producer", name.removeprefix(prefix)
        if name.startswith(prefix) and role in _ROLES and find(rest, _ROLES[role]):
            target = prefix == "" and role == "producer"
            instead = "B.{role}.{}" if target else spelling
            return Lost(entry, instead.format(rest, role=role))
    return _bare_client_key(entry, name, *_SPELLINGS)


def _bare_client_key(entry: Entry, name: str, *spellings: str) -> Lost | None:
    known = [
        spelling.replace("{}", name)
        for scope, spelling in zip(_ROLES.values(), spellings, strict=True)
        if find(name, scope)
    ]
    return Lost(entry, known[0], others=tuple(known[1:])) if known else None


def _lost_client_key(entry: Entry, name: str, instead: str, *spellings: str) -> Lost:
    """A key of workers that may be meant for a client."""
    bare = _bare_client_key(entry, name, *spellings)
    return Lost(entry, instead, others=(bare.instead, *bare.others) if bare else ())


def _family(entry: Entry, name: str, flow: str = "", alias: str = "") -> KeyUse | None:
    """The meaning of a key that contains names chosen by the user; None for other keys."""
    if name.startswith("config.providers."):
        row = find("config.providers", Scope.DRIVER)
        return KeyUse(entry, row, flow=flow) if row else None
    for prefix, row_name in _FAMILIES.items():
        if name.startswith(prefix):
            row = find(row_name, Scope.CONNECTOR)
            if row is not None and row_name in OF_CONNECTOR:
                return KeyUse(entry, row, flow=flow, family=True)
            reason = "records are copied as raw batches and never decoded"
            ignored = (row.reason or reason) if row else reason
            return KeyUse(entry, row, alias=alias, flow=flow, ignored=ignored) if row else None
    return None


def _without_effect(entry: Entry, name: str, flow: str = "", alias: str = "") -> KeyUse | None:
    """The meaning of a key that only Connect's REST server or JMX reads; None for other keys."""
    of_client = next((name[len(one) :] for one in _CLIENTS if name.startswith(one)), "")
    for prefix, row_name in _WITHOUT_EFFECT.items():
        row = find(row_name)
        mine = name.startswith(prefix) or (prefix in _METRICS and of_client.startswith(prefix))
        if mine and row is not None:
            return KeyUse(entry, row, alias=alias, flow=flow, ignored=row.reason)
    return None


def family_of_clients(name: str, scope: Scope) -> Setting | None:
    """The row that says why a client's key with a name of the user's has no effect."""
    return find("metric.reporters", scope) if name.startswith(_METRICS) else None


def _storage(entry: Entry, name: str, alias: str = "") -> KeyUse | None:
    """The meaning of a config of a topic of Connect's workers; None for other keys."""
    for prefix in _STORAGES:
        if not name.startswith(prefix):
            continue
        row = find(f"{prefix}topic", Scope.WORKER)
        known = [one[len(prefix) :] for one in names(Scope.WORKER) if one.startswith(prefix)]
        if row is None or difflib.get_close_matches(name[len(prefix) :], known, 1, _MISSPELT):
            return None
        return KeyUse(entry, row, alias=alias, ignored=row.reason or _OWN_CONFIGS)
    return None


def _cluster_key(entry: Entry, alias: str, name: str) -> Outcome:
    removed = _removed(entry, name)
    if removed is not None:
        return removed
    role, _, rest = name.partition(".")
    if role in _ROLES:
        row = find(rest, _ROLES[role])
        if row is not None:
            return KeyUse(entry, row, alias=alias, ignored=mm1_only(role, rest))
    row = find(name, Scope.WORKER)
    if row is not None and not name.startswith(("replication.policy.", "config.providers")):
        return KeyUse(entry, row, alias=alias)
    worker = _storage(entry, name, alias)
    if worker is None and name.startswith(_CONVERTERS):
        worker = _family(entry, name, alias=alias)
    worker = worker or _without_effect(entry, name, alias=alias)
    if worker is not None:
        return worker
    if name in FLOW_ONLY:
        return Lost(entry, f"A->B.{name}")
    if find(name, *_TOP) is not None:
        where = name if find(name, Scope.DRIVER) else f"{name} or A->B.{name}"
        return Lost(entry, where)
    if name.startswith("config.providers."):
        return Lost(entry, name)
    return _bare_client_key(
        entry, name, f"{alias}.consumer.{{}}", f"{alias}.producer.{{}}", f"{alias}.admin.{{}}"
    )


def mm1_only(role: str, name: str) -> str:
    """Why a client key that only MirrorMaker 1 uses has no effect; ``""`` for other keys."""
    return MM1_ONLY.get(name, "") if role in ("consumer", "producer") else ""


def _unused(prefix: str, name: str) -> str:
    """Why a client key of a flow has no effect after ``prefix``; ``""`` if it has."""
    if prefix in ("source.producer.", "target.producer.") and name in _UNUSED_BY_SYNCS:
        return _SYNCS_AS_THEY_ARE
    if prefix == "target.consumer." and name in _FETCH:
        return _OWN_WAY_TO_READ
    return mm1_only("producer" if "producer." in prefix else prefix.split(".")[-2], name)


def _flow_key(entry: Entry, clusters: Sequence[str]) -> Outcome:
    source, _, rest = entry.key.partition("->")
    if "->" in rest:
        return _no_flow(entry, source, rest, clusters)
    target = next(
        (
            alias
            for alias in sorted(clusters, key=len, reverse=True)
            if rest.startswith(alias + ".")
        ),
        rest.partition(".")[0],
    )
    flow = f"{source}->{target}"
    for alias in (source, target):
        if alias not in clusters:
            return _unknown_cluster(entry, alias, clusters)
    if source == target:
        return ConfigError(
            f"{entry.key}: a flow cannot lead from a cluster to itself.",
            where=entry.where,
            do="Name two different clusters.",
        )
    name = rest[len(target) + 1 :]
    if not name:
        return None
    return _flow_setting(entry, flow, target, name)


def _no_flow(entry: Entry, source: str, rest: str, clusters: Sequence[str]) -> Lost:
    """A key with more than one ``->``: no alias contains ``->``, so the key names no flow."""
    near = [alias for alias in clusters if rest.startswith(alias) and alias != source]
    flow = f"{source}->{max(near, key=len)}" if source in clusters and near else "A->B"
    name = rest.rpartition("->")[2].partition(".")[2]
    return Lost(entry, f"{flow}.{name or 'enabled'}", "names no flow and is ignored")


def _unknown_cluster(entry: Entry, alias: str, clusters: Sequence[str]) -> ConfigError:
    if not alias or alias != alias.strip():
        what = f"{entry.key} is not a flow: it needs an alias on each side of '->'."
    else:
        what = f"{entry.key} names the cluster '{alias}', which is not in clusters="
        what += ",".join(clusters) + "."
    close = difflib.get_close_matches(alias, clusters, 1, 0.5)
    do = f"Did you mean '{close[0]}'? Otherwise add" if close else "Add"
    return ConfigError(
        what, where=entry.where, do=f"{do} the alias to clusters, with its bootstrap.servers."
    )


def _flow_setting(entry: Entry, flow: str, target: str, name: str) -> Outcome:
    removed = _removed(entry, name)
    if removed is not None:
        return removed
    if name.startswith("config.providers"):
        return Lost(entry, name)
    row = find(name, Scope.CONNECTOR, Scope.SPARKMIRROR)
    if row is not None and name not in CLIENT_SET:
        return KeyUse(entry, row, flow=flow)
    family = _family(entry, name, flow) or _without_effect(entry, name, flow)
    if family is not None:
        return family
    for prefix, scope in _CLIENTS.items():
        if prefix == "producer.":  # see below
            continue
        bare = name.removeprefix(prefix)
        row = find(bare, scope) if name.startswith(prefix) else None
        if row is None:
            continue
        if bare == "bootstrap.servers" and prefix in ("consumer.", "admin."):
            return Lost(entry, f"{flow}.source.{name}", "is overridden by the cluster's address")
        return KeyUse(entry, row, flow=flow, ignored=_unused(prefix, bare))
    row = find(name.removeprefix("producer."), Scope.PRODUCER)
    if name.startswith("producer.") and row is not None:
        instead = f"{flow}.producer.override.{name[len('producer.') :]}"
        return Lost(entry, instead, "applies only to the producer of offset syncs", row)
    source = flow.partition("->")[0]
    for side, alias in (("source.cluster.", source), ("target.cluster.", target)):
        if name.startswith(side) and name[len(side) :] in CLIENT_SET:
            # Java's data producer belongs to the worker, which reads only the cluster's settings.
            return Lost(
                entry,
                f"{alias}.{name[len(side) :]}",
                "does not apply to all clients of the cluster, and to none with its own setting",
                find(name[len(side) :]),
            )
    if name in CLIENT_SET:
        return Lost(entry, f"{source}.{name} and {target}.{name}")
    if find(name, Scope.DRIVER):
        return Lost(entry, name)
    spellings = tuple(
        f"{flow}.{client}.{{}}"
        for client in ("source.consumer", "producer.override", "source.admin")
    )
    if find(name, Scope.WORKER):
        return _lost_client_key(entry, name, f"{target}.{name}", *spellings)
    return _bare_client_key(entry, name, *spellings)


def nearest(key: str, clusters: Sequence[str]) -> str:
    """The known key that is most similar to ``key``; ``""`` if none is similar."""
    prefix, candidates, name = _neighbourhood(key, clusters)
    close = difflib.get_close_matches(name, sorted(candidates), 1, 0.7)
    return prefix + close[0] if close else ""


def _neighbourhood(key: str, clusters: Sequence[str]) -> tuple[str, frozenset[str], str]:
    """(valid prefix of ``key``, known keys that may follow it, what follows it in ``key``)."""
    clients = frozenset(f"{role}.{name}" for role, scope in _ROLES.items() for name in names(scope))
    if "->" in key:
        source, _, rest = key.partition("->")
        target = next((alias for alias in clusters if rest.startswith(alias + ".")), "")
        known = names(Scope.CONNECTOR, Scope.SPARKMIRROR) - CLIENT_SET
        known |= {f"source.{name}" for name in clients if name.startswith(("consumer", "admin"))}
        known |= {f"target.{name}" for name in clients if name.startswith("admin")}
        known |= {f"producer.override.{name}" for name in names(Scope.PRODUCER)}
        return f"{source}->{target}.", known, rest[len(target) + 1 :]
    for alias in sorted(clusters, key=len, reverse=True):
        if key.startswith(alias + "."):
            return f"{alias}.", names(Scope.WORKER) | clients, key[len(alias) + 1 :]
    return "", names(*_TOP) - FLOW_ONLY, key


def unknown_keys_error(
    unknown: Sequence[Entry],
    path: str,
    clusters: Sequence[str],
    *,
    suggest: Callable[[str, Sequence[str]], str] = nearest,
) -> ConfigError:
    """One error that names unknown keys, each with its line and the most similar known key.

    It names ten of them and counts the rest: many unknown keys mean another kind of file.
    """
    hidden = _lines_of_secrets(unknown)
    told = "; ".join(
        _describe_hidden(entry)
        if entry.line in hidden
        else _describe_unknown(entry, clusters, suggest)
        for entry in unknown[:_SHOWN_MAX]
    )
    number = len(unknown)
    if number > _SHOWN_MAX:
        told += f"; and {number - _SHOWN_MAX:,} more"
    return ConfigError(
        f"{told}." if number == 1 else f"{number:,} keys are unknown: {told}.",
        where=unknown[0].where if number == 1 else path,
        do="Correct or remove "
        + ("it: " if number == 1 else "them: ")
        + "a key that nothing reads is most likely a mistake."
        + (" End each line of a value but the last with a backslash." if hidden else ""),
    )


def _lines_of_secrets(unknown: Sequence[Entry]) -> set[int]:
    """The lines that may be parts of a value, such as those of a PEM key without backslashes."""
    hidden = set[int]()
    for entry in unknown:
        # The last line of a key may be short.
        if may_be_secret(entry.key) or (entry.line - 1 in hidden and "." not in entry.key):
            hidden.add(entry.line)
    return hidden


def _describe_hidden(entry: Entry) -> str:
    return (
        f"line {entry.where.rpartition(':')[2]}: a text of {len(entry.key)} characters is unknown, "
        "which may be a part of a secret"
    )


def _describe_unknown(
    entry: Entry, clusters: Sequence[str], suggest: Callable[[str, Sequence[str]], str]
) -> str:
    line = entry.where.rpartition(":")[2]
    told = f"line {line}: {entry.key} is unknown"
    if entry.value.lstrip().startswith("->"):
        return f"{told} (a flow is written without blanks, as in A->B.enabled=true)"
    if entry.key in OLD_CLIENT_KEYS:
        instead = OLD_CLIENT_KEYS[entry.key]
        return f"{told} (a key of clients before Kafka 0.9; " + (
            f"now {instead})" if instead else "it has no replacement)"
        )
    head, _, rest = entry.key.partition(".")
    known = rest and (find(rest, Scope.WORKER) or find(rest.partition(".")[2], *_ROLES.values()))
    if clusters and head not in clusters and known:
        return f"{told} ('{head}' is not in clusters={','.join(clusters)})"
    close = suggest(entry.key, clusters)
    if close:
        return f"{told} (did you mean {close}?)"
    hint = " (and has no value: write key=value, or # in front of a comment)"
    return told if entry.value else told + hint
