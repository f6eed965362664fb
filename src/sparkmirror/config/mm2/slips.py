"""Remarks on lines that are valid in Java but most likely mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparkmirror.config.files.properties import Entry, Properties
from sparkmirror.config.files.values import shown, split_list
from sparkmirror.names.regex_overlap import Names, Undecided, common_name

# A star after a plain character, as in orders-*. In a regex it repeats that character.
_GLOB = re.compile(r"(?<![\\\w-])[\w-]*[\w-]\*")
_QUOTES = ('"', "'")
_KEYS_SHOWN_MAX = 10
_REGEX_LISTS = ("topics", "topics.exclude", "groups", "groups.exclude")


def repeated_keys(file: Properties) -> list[str]:
    """One line per key that the file contains more than once; ten at most, then a count."""
    told = [
        f"{file.where(key)}: {key} is set again here; the value in line {line} has no effect."
        for key, line in file.repeated[:_KEYS_SHOWN_MAX]
    ]
    more = len(file.repeated) - len(told)
    if more > 0:
        told.append(f"{file.path}: {more} more lines are overridden by later ones of the same key.")
    return told


def flow_slips(confs: Iterable[Mapping[str, Entry]]) -> list[str]:
    """Remarks on the settings of flows, each once. Pure."""
    told: dict[str, None] = {}
    for conf in confs:
        told |= dict.fromkeys(_flow_slips(conf))
    return list(told)


def _flow_slips(conf: Mapping[str, Entry]) -> Iterator[str]:
    factor = conf.get("replication.factor")
    if factor is not None and factor.value.strip() in ("0", "+0", "-0"):
        yield (
            f"{factor.where}: {factor.key}=0: brokers cannot create a topic without a replica. "
            "Write -1 for their default, or at least 1."
        )
    for name in _REGEX_LISTS:
        if name in conf:
            where, key = conf[name].where, conf[name].key
            regexes = split_list(shown_text(conf[name]))
            yield from globs(where, key, regexes)
            if any(regex.startswith(_QUOTES) or regex.endswith(_QUOTES) for regex in regexes):
                yield (
                    f"{where}: {key} contains quotes, which are part of the names, as in "
                    "MirrorMaker. Write the list without quotes."
                )
    topics = conf.get("topics")
    if topics is None:
        return
    if not topics.value.strip():
        yield f"{topics.where}: {topics.key} is empty, so no topic is mirrored. Write .* for all."
        return
    exclude = conf.get("topics.exclude")
    if exclude is not None and _nothing(split_list(topics.value), split_list(exclude.value)):
        yield (
            f"{topics.where}: {exclude.key} (line {exclude.line}) excludes all topics of "
            f"{topics.key}, so no topic is mirrored."
        )


def shown_text(entry: Entry) -> str:
    """The value; empty if it must not be shown."""
    return "" if entry.secret else entry.value


def _nothing(include: Sequence[str], exclude: Sequence[str]) -> bool:
    try:
        return common_name([Names(tuple(include), tuple(exclude))]) is None
    except Undecided:
        return False


def globs(where: str, key: str, regexes: Iterable[str]) -> Iterator[str]:
    """Remarks on ``regexes`` that look like shell patterns. Pure."""
    for regex in regexes:
        if _GLOB.search(regex):
            instead = re.sub(r"(?<=[\w-])\*", ".*", regex)
            yield (
                f"{where}: {key} contains {regex}, a regex in which * repeats the character before "
                f"it. To match any text there, write {instead}."
            )


def one_address(raw: Mapping[str, Entry], aliases: Sequence[str]) -> list[str]:
    """Remarks on aliases that name the same bootstrap server. Pure."""
    told = []
    first: dict[str, str] = {}
    for alias in aliases:
        entry = raw.get(f"{alias}.bootstrap.servers")
        if entry is None:
            continue
        servers = [server.strip().lower() for server in split_list(entry.value)]
        both = next((server for server in servers if server in first), None)
        if both is not None:
            told.append(
                f"{entry.where}: {entry.key} names {shown(entry, both)}, as cluster "
                f"'{first[both]}' does: two aliases of one cluster mirror it onto itself."
            )
        for server in servers:
            first.setdefault(server, alias)
    return told
