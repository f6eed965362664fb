"""Flows with conflicting topic names: endless loops, and two topics with one remote name.

The topic lists and the maps of names alone show both (see ``names.regex_overlap`` and
``names.topic_ways``), before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, cycle

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.table.settings import HIDDEN
from sparkmirror.errors import ConfigError
from sparkmirror.names.regex_overlap import Names, Undecided, common_name
from sparkmirror.names.topic_ways import (
    common_target,
    loop_example,
    one_target_twice,
    policy_way,
    rule_catches,
    rule_gives,
)
from sparkmirror.settings import FlowNaming, FlowSettings

# Limit of the loops that are searched; a file with more has failed or warned before.
_RINGS_MAX = 200
_PAIRS_SHOWN_MAX = 3
# A topic that passes so often through a ring that gives it another name each time passes for ever:
# lists name few topics that came back, if any.
_ROUNDS = 5

Maps = Mapping[str, Entry]
"""The entry of each flow's map of topic names, by the flow's name."""


def beside(flows: Sequence[FlowSettings]) -> tuple[FlowSettings, ...]:
    """``flows``, with `FlowSettings.beside` set where a target has a map of topic names. Pure."""
    found = []
    for flow in flows:
        into = [one for one in flows if one.target.alias == flow.target.alias]
        others = tuple(one.naming for one in into if one is not flow)
        mapped = any(one.topics.renamed for one in into)
        found.append(replace(flow, beside=others) if mapped and others else flow)
    return tuple(found)


def returns(
    flows: Sequence[FlowSettings], namings: Sequence[FlowNaming]
) -> tuple[FlowSettings, ...]:
    """``flows``, with `FlowSettings.returns` set where a transform routes records. Pure.

    ``namings``: all enabled flows of the file.
    """
    if not any(one.routes for flow in flows for one in flow.transforms):
        return tuple(flows)
    rings = list(_rings(namings))
    return tuple(
        replace(flow, returns=tuple(_after(ring, flow.name) for ring in rings if _has(ring, flow)))
        if any(one.routes for one in flow.transforms)
        else flow
        for flow in flows
    )


def _has(ring: Sequence[FlowNaming], flow: FlowSettings) -> bool:
    return any(one.name == flow.name for one in ring)


def _after(ring: Sequence[FlowNaming], name: str) -> tuple[FlowNaming, ...]:
    """The other flows of ``ring``, in order from the target of the flow ``name`` on."""
    at = next(number for number, one in enumerate(ring) if one.name == name)
    return (*ring[at + 1 :], *ring[:at])


def check_names(flows: Sequence[FlowNaming], path: str, maps: Maps | None = None) -> list[str]:
    """Remarks on conflicting names. Pure.

    Raises ConfigError for flows that form a loop, if a topic would be copied in an endless loop:
    one that is in the lists of all of them, if all keep names (IdentityReplicationPolicy), if a map
    gives names, or if the policies differ. Also for rules that give only names of internal topics.
    """
    maps = maps or {}
    return [
        *_rules(flows, maps),
        *_loops(flows, path),
        *_mixed_loops(flows, path),
        *_mapped_loops(flows, path, maps),
        *_own_collisions(flows, maps),
        *_collisions(flows, path, maps),
        *_aliases_with_separators(flows, path),
    ]


# --- rules of maps ------------------------------------------------------------------------------


def _rules(flows: Sequence[FlowNaming], maps: Maps) -> Iterator[str]:
    for flow in flows:
        entry = maps.get(flow.name)
        for index, rule in enumerate(flow.topics.map if entry is not None else ()):
            if entry is None:
                continue
            told = f"the rule '{rule.regex} => {rule.name}'"
            told = told if not entry.secret else f"rule {index + 1}, {HIDDEN},"
            try:
                gives, catches = rule_gives(flow, index), rule_catches(flow, index)
            except Undecided:
                continue
            if not gives:
                raise ConfigError(
                    f"{entry.key}: {told} gives only names of internal topics.",
                    where=entry.where,
                    do="Write a name that does not begin with '__', a dot or mm2, and is not the "
                    "name of a heartbeats or checkpoints topic.",
                )
            if not catches:
                yield (
                    f"{entry.where}: {entry.key}: {told} matches no topic that {flow.name} "
                    "mirrors: topics and topics.exclude leave them out, or an earlier rule "
                    "matches them. Correct or remove it."
                )


def _own_collisions(flows: Sequence[FlowNaming], maps: Maps) -> Iterator[str]:
    for flow in flows:
        entry = maps.get(flow.name)
        if entry is None or not flow.topics.renamed:
            continue
        try:
            met = one_target_twice(flow)
        except Undecided:
            continue
        if met is not None:
            first, second, name = met
            example = f": for example, '{first}' and '{second}' would both be '{name}'"
            yield (
                f"{entry.where}: {entry.key}: two topics of {flow.source} may get the same name"
                f"{'' if entry.secret else example}. If both exist, one of them is not mirrored, "
                "and the run reports it."
            )


# --- loops --------------------------------------------------------------------------------------


def _loops(flows: Sequence[FlowNaming], path: str) -> Iterator[str]:
    kept = [flow for flow in flows if flow.policy.kind == "identity" and not flow.topics.renamed]
    for ring in _rings(kept):
        way = _way(ring)
        what = f"IdentityReplicationPolicy keeps topic names, and the flows {way} form a loop"
        topics = ", ".join(f"{flow.name}.topics" for flow in ring)
        try:
            name = common_name([policy_way(flow).image for flow in ring])
        except Undecided:
            yield (
                f"{path}: {what}: a topic that all of them mirror is copied endlessly. Their lists "
                f"are too complex to compare; make sure that {topics} do not overlap."
            )
            continue
        if name is not None:
            raise ConfigError(
                f"{what}: each record of topic {name}, for example, would be copied endlessly.",
                where=path,
                do=f"Give {topics} lists that do not overlap (or exclude topics), or use "
                "DefaultReplicationPolicy.",
            )


def _mixed_loops(flows: Sequence[FlowNaming], path: str) -> Iterator[str]:
    """Loops without maps of flows with different policies or separators."""
    for ring in _rings(flows):
        pairs = list(zip(ring, [*ring[1:], ring[0]], strict=True))
        prefixing = [pair for pair in pairs if pair[0].policy.kind != "identity"]
        # What a flow put in front is hidden behind a prefix with another separator.
        one_separator = len({before.policy.separator for before, _ in prefixing}) == 1
        shown = one_separator and any(_shows(*pair) for pair in pairs)
        if shown or not prefixing or any(flow.topics.renamed for flow in ring):
            continue
        before, after = prefixing[0]
        what = (
            f"the flows {_way(ring)} form a loop, and their replication policies differ, so that "
            "names do not show where a topic has been"
        )
        do = (
            f"Leave what {before.name} creates out of {after.name} ({after.name}.topics.exclude), "
            "give the flows topics that do not overlap, or give all of them "
            "DefaultReplicationPolicy with one separator."
        )
        try:
            # Once round is no loop: a list may leave out the name with which a topic comes back.
            names = loop_example([*ring] * 2) and loop_example([*ring] * _ROUNDS)
        except Undecided:
            yield (
                f"{path}: {what}. Their lists are too complex to decide whether a topic is copied "
                f"endlessly. {do}"
            )
            continue
        if names is not None:
            raise ConfigError(
                f"{what}: a topic would be copied endlessly. For example, "
                f"{_hops(ring, names[: 2 * len(ring) + 1])}.",
                where=path,
                do=do,
            )


def _shows(flow: FlowNaming, following: FlowNaming) -> bool:
    """Whether a topic's name shows ``flow`` that the topic has passed through both flows.

    The second one puts the alias of its source in front, which is the target of the first one.
    """
    policies = flow.policy, following.policy
    prefixed = all(policy.kind != "identity" for policy in policies)
    return prefixed and policies[0].separator == policies[1].separator


def _mapped_loops(flows: Sequence[FlowNaming], path: str, maps: Maps) -> Iterator[str]:
    """Loops with a map: names of remote topics do not show where they come from."""
    for ring in _rings(flows):
        mapped = [flow.name for flow in ring if flow.topics.renamed]
        if not mapped:
            continue
        entry = next((maps[name] for name in mapped if name in maps), None)
        where = path if entry is None else f"{entry.where}: {entry.key}"
        way = _way(ring)
        do = (
            f"Exclude the topics that {ring[0].name} creates ({ring[-1].name}.topics.exclude, or "
            "the topics of a flow between them), or map them to names that no other of these flows "
            "mirrors."
        )
        try:
            names = loop_example(ring)
        except Undecided:
            yield (
                f"{where}: the flows {way} form a loop, and their maps and lists are too complex "
                "to decide whether a topic is copied endlessly. Make sure that no flow mirrors the "
                "remote topics of another one."
            )
            continue
        if names is not None:
            secret = any(maps[name].secret for name in mapped if name in maps)
            example = "" if secret else f": for example, {_hops(ring, names)}"
            raise ConfigError(
                f"the flows {way} form a loop, and a topic would be copied endlessly{example}.",
                where=where,
                do=do,
            )


def _hops(ring: Sequence[FlowNaming], names: Sequence[str]) -> str:
    """The way of a topic as text. ``names``: of `loop_example`, for any number of rounds."""
    first, *others = names
    stations = cycle(flow.target for flow in ring)
    hops = ", then ".join(
        f"'{name}' on {cluster}" for name, cluster in zip(others, stations, strict=False)
    )
    return f"'{first}' of {ring[0].source} becomes {hops}"


def _way(ring: Sequence[FlowNaming]) -> str:
    return "->".join([*(flow.source for flow in ring), ring[0].source])


def _rings(flows: Sequence[FlowNaming]) -> Iterator[list[FlowNaming]]:
    """Every loop of ``flows`` that returns to its first cluster, each once."""
    told = 0
    for first in sorted({flow.source for flow in flows}):
        # Visit only clusters that sort after the first one, so that each loop is found once.
        ways = [[flow] for flow in flows if flow.source == first]
        while ways and told < _RINGS_MAX:
            way = ways.pop()
            here = way[-1].target
            if here == first:
                told += 1
                yield way
            elif here > first:
                passed = {flow.source for flow in way} - {first}
                ways += [
                    [*way, flow]
                    for flow in flows
                    if flow.source == here and flow.target not in passed
                ]


# --- two topics under one name ------------------------------------------------------------------


def _collisions(flows: Sequence[FlowNaming], path: str, maps: Maps) -> Iterator[str]:
    for target in dict.fromkeys(flow.target for flow in flows):
        into = [flow for flow in flows if flow.target == target]
        met = []
        for one, other in combinations(into, 2):
            try:
                found = _meeting(one, other)
            except Undecided:
                continue
            if found is not None:
                first, second, name = found
                if any(maps[flow.name].secret for flow in (one, other) if flow.name in maps):
                    first = second = name = HIDDEN
                met.append(f"{first} of {one.source} and {second} of {other.source} as {name}")
        if met:
            more = (
                f" (and {len(met) - _PAIRS_SHOWN_MAX} more)" if len(met) > _PAIRS_SHOWN_MAX else ""
            )
            mapped = any(flow.topics.renamed for flow in into)
            instead = (
                "or map them to different names: a run does not start if two such topics exist"
                if mapped
                else "or use DefaultReplicationPolicy and aliases of which none is a prefix of "
                "another"
            )
            yield (
                f"{path}: topics of different clusters become one topic on {target}, where their "
                f"records mix: for example {'; '.join(met[:_PAIRS_SHOWN_MAX])}{more}. If that is "
                f"not intended, give the flows topics that do not overlap, {instead}."
            )


def _meeting(one: FlowNaming, other: FlowNaming) -> tuple[str, str, str] | None:
    """A topic of each of two flows that get the same name, and that name. Raises `Undecided`."""
    if one.topics.renamed or other.topics.renamed:
        return common_target(one, other)
    ways: list[Names] = [policy_way(flow).image for flow in (one, other)]
    name = common_name(ways)
    if name is None:
        return None
    first, second = (name.removeprefix(way.prefix) for way in ways)
    return first, second, name


# --- aliases ------------------------------------------------------------------------------------


def _aliases_with_separators(flows: Iterable[FlowNaming], path: str) -> Iterator[str]:
    told: set[str] = set()
    for flow in flows:
        separator, alias = flow.policy.separator, flow.source
        if flow.policy.kind == "identity" or not separator or separator not in alias:
            continue
        if alias not in told:
            told.add(alias)
            first = alias.partition(separator)[0]
            yield (
                f"{path}: the alias '{alias}' contains the separator '{separator}'. This mirror "
                f"knows its aliases and finds loops; Java's MirrorMaker and MirrorClient take "
                f"topics of '{alias}' for topics of '{first}'. For them, use another alias or set "
                "replication.policy.separator."
            )
