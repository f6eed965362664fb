"""Flows with conflicting topic names: endless loops, and two topics with one remote name.

The topic lists alone show both (see ``names.regex_overlap``), before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from sparkmirror.errors import ConfigError
from sparkmirror.model import PolicySettings, TopicSettings
from sparkmirror.names.regex_overlap import Names, Undecided, common_name

# Limit of the loops that are searched; a file with more has failed or warned before.
_RINGS_MAX = 200
_PAIRS_TOLD_MAX = 3


@dataclass(frozen=True, slots=True)
class Lane:
    """The names of an enabled flow; also of one that only other nodes run."""

    source: str
    target: str
    policy: PolicySettings
    topics: TopicSettings

    @property
    def name(self) -> str:
        """``A->B``."""
        return f"{self.source}->{self.target}"


def check_names(flows: Sequence[Lane], path: str) -> list[str]:
    """Remarks on conflicting names. Pure.

    Raises ConfigError for flows that keep names (IdentityReplicationPolicy) and form a loop, if a
    topic is in the lists of all of them: each record would be copied in an endless loop.
    """
    return [
        *_loops(flows, path),
        *_collisions(flows, path),
        *_aliases_with_separators(flows, path),
    ]


# --- loops --------------------------------------------------------------------------------------


def _loops(flows: Sequence[Lane], path: str) -> Iterator[str]:
    for ring in _rings([flow for flow in flows if flow.policy.kind == "identity"]):
        way = "->".join([*(flow.source for flow in ring), ring[0].source])
        what = f"IdentityReplicationPolicy keeps topic names, and the flows {way} form a loop"
        topics = ", ".join(f"{flow.name}.topics" for flow in ring)
        try:
            name = common_name([_unrenamed(flow) for flow in ring])
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


def _rings(flows: Sequence[Lane]) -> Iterator[list[Lane]]:
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


def _unrenamed(flow: Lane) -> Names:
    """The topics that a flow with the identity policy mirrors without renaming."""
    mark = _mark(flow)
    never = (
        "__.*",
        "[.].*",
        f"mm2.*{mark}internal",
        f".*{mark}checkpoints{mark}internal",
        ".*heartbeats",  # every policy renames these
    )
    return Names(flow.topics.include, never + flow.topics.exclude)


def _mark(flow: Lane) -> str:
    return rf"\Q{flow.policy.separator if flow.policy.internal_separator_enabled else '.'}\E"


# --- two topics under one name ------------------------------------------------------------------


def _collisions(flows: Sequence[Lane], path: str) -> Iterator[str]:
    for target in dict.fromkeys(flow.target for flow in flows):
        into = [flow for flow in flows if flow.target == target]
        met = []
        for one, other in combinations(into, 2):
            try:
                name = common_name([_remote(one), _remote(other)])
            except Undecided:
                continue
            if name is not None:
                met.append(f"{_topic(one, name)} and {_topic(other, name)} as {name}")
        if met:
            more = f" (and {len(met) - _PAIRS_TOLD_MAX} more)" if len(met) > _PAIRS_TOLD_MAX else ""
            yield (
                f"{path}: topics of different clusters become one topic on {target}, where their "
                f"records mix: for example {'; '.join(met[:_PAIRS_TOLD_MAX])}{more}. If that is "
                "not intended, give the flows topics that do not overlap, or use "
                "DefaultReplicationPolicy and aliases of which none is a prefix of another."
            )


def _remote(flow: Lane) -> Names:
    """The target's names of the topics that a flow mirrors."""
    if flow.policy.kind == "identity":
        return _unrenamed(flow)
    mark = _mark(flow)
    never = ("__.*", "[.].*", f"mm2.*{mark}internal", f".*{mark}checkpoints{mark}internal")
    prefix = flow.source + flow.policy.separator
    back = rf"\Q{flow.target}{flow.policy.separator}\E.*"
    return Names(flow.topics.include, (*never, back, *flow.topics.exclude), prefix)


def _topic(flow: Lane, remote: str) -> str:
    """The source topic of ``remote``, with its cluster."""
    prefix = "" if flow.policy.kind == "identity" else flow.source + flow.policy.separator
    return f"{remote.removeprefix(prefix)} of {flow.source}"


# --- aliases ------------------------------------------------------------------------------------


def _aliases_with_separators(flows: Iterable[Lane], path: str) -> Iterator[str]:
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
