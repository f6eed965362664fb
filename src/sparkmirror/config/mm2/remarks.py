"""One-line remarks on a valid file that does not do everything it seems to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparkmirror.config.clients.security import idle_reason
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import shown
from sparkmirror.config.mm2.keys import KeyUse, Lost
from sparkmirror.config.table.setting import java_int
from sparkmirror.config.table.settings import Status
from sparkmirror.settings import FETCH_BYTES_MAX

_KEYS_SHOWN_MAX = 30
_NOT_OF_TOPICS = re.compile(r"[^A-Za-z0-9._-]")


def ignored_keys(uses: Iterable[KeyUse], path: str) -> list[str]:
    """At most one line, with every ignored key and its line number, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for use in uses:
        known = use.setting.status is Status.IGNORED
        ignored = use.ignored or (use.setting.reason if known else "")
        if ignored:
            place = f"{use.entry.key} (line {use.entry.line})"
            by_reason.setdefault(ignored, []).append(place)
    if not by_reason:
        return []
    told = "; ".join(f"{_listed(keys)}: {reason}" for reason, keys in by_reason.items())
    return [f"{path}: ignored: {told}."]


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _KEYS_SHOWN_MAX:,} more" if len(keys) > _KEYS_SHOWN_MAX else ""
    return ", ".join(keys[:_KEYS_SHOWN_MAX]) + more


def lost_keys(lost: Iterable[Lost]) -> list[str]:
    """One line per key that has no effect at its place."""
    return [
        f"{each.entry.where}: {each.entry.key} {each.effect}, as in MirrorMaker; "
        f"write {each.instead}."
        for each in lost
    ]


def capped(uses: Iterable[KeyUse]) -> list[str]:
    """One line per ``fetch.max.bytes`` above the maximum that is used."""
    return [
        f"{use.entry.where}: {use.entry.key}={shown(use.entry, use.entry.value.strip())} is limited"
        f" to {FETCH_BYTES_MAX}: larger responses bring no benefit."
        for use in uses
        if use.setting.name == "fetch.max.bytes"
        and not use.ignored
        and java_int(use.entry.value.strip()) > FETCH_BYTES_MAX
    ]


def repeated_elements(entries: Iterable[tuple[Entry, Sequence[str]]]) -> list[str]:
    """One line per list (entry, its elements) that names an element twice."""
    lines = []
    for entry, elements in entries:
        repeated = sorted({each for each in elements if elements.count(each) > 1})
        if repeated:
            named = "[hidden]" if entry.secret else ", ".join(repeated)
            lines.append(f"{entry.where}: {entry.key} names more than once: {named}.")
    return lines


def odd_aliases(clusters: Entry, aliases: Iterable[str]) -> list[str]:
    """One line per alias with a character that is not allowed in topic names."""
    lines = []
    for alias in aliases:
        odd = _NOT_OF_TOPICS.search(alias)
        if odd is not None:
            named = "[hidden]" if clusters.secret else alias
            char = f"'{odd.group()}'" if not clusters.secret else "a character"
            char = "a blank" if odd.group().isspace() else char
            lines.append(
                f"{clusters.where}: the alias '{named}' contains {char}, which is not allowed in "
                "topic names: topics named after it cannot be created."
            )
    return lines


def mark_idle(uses: Iterable[KeyUse], confs: Iterable[Mapping[str, Entry]]) -> list[KeyUse]:
    """``uses``, with security keys that no client uses marked as ignored.

    ``confs``: the configuration of every client of every flow.
    """
    clients = list(confs)
    return [_marked(use, clients) for use in uses]


def _marked(use: KeyUse, clients: list[Mapping[str, Entry]]) -> KeyUse:
    name = use.setting.name
    if use.ignored or use.setting.status is not Status.SUPPORTED:
        return use
    if not name.startswith(("ssl.", "sasl.")):
        return use
    reasons = {idle_reason(name, conf) for conf in clients if conf.get(name) is use.entry}
    if not reasons or "" in reasons:
        return use
    return replace(use, ignored="; ".join(sorted(reasons)))
