"""One-line remarks on a file that is right but does not do all it seems to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparkmirror.config.keys import KeyUse, Lost
from sparkmirror.config.properties import Entry
from sparkmirror.config.settings import SETTINGS, Setting, Status
from sparkmirror.model import FlowSettings

__all__ = ["ignored_keys", "loops", "lost_keys", "repeated_elements", "unavailable_features"]

_FEATURES: tuple[Setting, ...] = tuple(row for row in SETTINGS if row.feature)
_REGEX_MARKS = frozenset("*+?[](){}|^$\\")


def ignored_keys(uses: Iterable[KeyUse], path: str) -> list[str]:
    """At most one line: every ignored key with its line, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for use in uses:
        ignored = use.ignored or (use.setting.reason if _is_ignored(use.setting) else "")
        if ignored:
            place = f"{use.entry.key} (line {use.entry.line})"
            by_reason.setdefault(ignored, []).append(place)
    if not by_reason:
        return []
    told = "; ".join(f"{', '.join(keys)}: {reason}" for reason, keys in by_reason.items())
    return [f"{path}: ignored: {told}."]


def _is_ignored(setting: Setting) -> bool:
    # The switches of absent features are told apart: on is a remark, off is what happens anyway.
    return setting.status is Status.IGNORED and not setting.feature


def lost_keys(lost: Iterable[Lost]) -> list[str]:
    """One line per key that has no effect where it stands."""
    return [
        f"{each.entry.where}: {each.entry.key} has no effect here, as in MirrorMaker; "
        f"write {each.instead}."
        for each in lost
    ]


def unavailable_features(confs: Mapping[str, Mapping[str, Entry]], path: str) -> list[str]:
    """What the flows ask for, or would get from Java by default, and do not get in this release.

    ``confs``: connector configuration by flow name.
    """
    asked: dict[Entry, str] = {}
    by_default: dict[str, str] = {}
    for row in _FEATURES:
        for conf in confs.values():
            entry = conf.get(row.name)
            if entry is None and row.default == "true":
                by_default[row.feature] = row.name
            elif entry is not None and entry.value.strip().lower() == "true":
                asked[entry] = row.feature
    lines = [
        f"{entry.where}: {entry.key}=true: {feature} {_is(feature)} not done in this release."
        for entry, feature in asked.items()
    ]
    if by_default:
        features = list(by_default)
        lines.append(
            f"{path}: not done in this release, though MirrorMaker 2 does so by default: "
            f"{', '.join(features)}. To leave out this remark, set "
            f"{', '.join(f'{name}=false' for name in by_default.values())}."
        )
    return lines


def _is(feature: str) -> str:
    return "are" if feature.endswith("s") else "is"


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
