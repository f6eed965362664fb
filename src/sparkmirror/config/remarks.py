"""One-line remarks on a file that is right but does not do all it seems to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparkmirror.config.keys import KeyUse, Lost
from sparkmirror.config.properties import Entry
from sparkmirror.config.settings import Status
from sparkmirror.model import FlowSettings

__all__ = ["ignored_keys", "loops", "lost_keys", "repeated_elements"]

_REGEX_MARKS = frozenset("*+?[](){}|^$\\")


def ignored_keys(uses: Iterable[KeyUse], path: str) -> list[str]:
    """At most one line: every ignored key with its line, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for use in uses:
        known = use.setting.status is Status.IGNORED
        ignored = use.ignored or (use.setting.reason if known else "")
        if ignored:
            place = f"{use.entry.key} (line {use.entry.line})"
            by_reason.setdefault(ignored, []).append(place)
    if not by_reason:
        return []
    told = "; ".join(f"{', '.join(keys)}: {reason}" for reason, keys in by_reason.items())
    return [f"{path}: ignored: {told}."]


def lost_keys(lost: Iterable[Lost]) -> list[str]:
    """One line per key that has no effect where it stands."""
    return [
        f"{each.entry.where}: {each.entry.key} has no effect here, as in MirrorMaker; "
        f"write {each.instead}."
        for each in lost
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


def loops(flows: Sequence[FlowSettings], path: str) -> list[str]:
    """A line for every ring of flows in which topics keep their names and come back."""
    ways = {
        flow.source.alias: [
            other
            for other in flows
            if other.source.alias == flow.source.alias and other.policy.kind == "identity"
        ]
        for flow in flows
    }
    rings: dict[frozenset[str], str] = {}
    for flow in flows:
        if flow.policy.kind == "identity":
            ring = _way_back(flow, ways)
            if ring:
                rings.setdefault(frozenset(ring), "->".join([*ring, ring[0]]))
    return [
        f"{path}: IdentityReplicationPolicy keeps topic names, and the flows {ring} lead in a "
        "circle: a topic that all of them mirror goes round without end. Give the flows topics "
        "that do not overlap, or use DefaultReplicationPolicy."
        for ring in rings.values()
    ]


def _way_back(first: FlowSettings, ways: Mapping[str, Sequence[FlowSettings]]) -> list[str]:
    """Aliases of the shortest ring that ``first`` is part of, ``[]`` if there is none."""
    home = first.source.alias
    queue = [[first]]
    seen = {first.target.alias}
    while queue:
        path = queue.pop(0)
        for flow in ways.get(path[-1].target.alias, ()):
            if not _may_overlap(path[-1], flow):
                continue
            if flow.target.alias == home:
                return [each.source.alias for each in [*path, flow]]
            if flow.target.alias not in seen:
                seen.add(flow.target.alias)
                queue.append([*path, flow])
    return []


def _may_overlap(one: FlowSettings, other: FlowSettings) -> bool:
    """Whether some topic may be mirrored by both; plain names are compared, regexes may always."""
    include, other_include = one.topics.include, other.topics.include
    if _REGEX_MARKS & set("".join(include + other_include)):
        return bool(include and other_include)
    return bool(set(include) & set(other_include))
