"""The source topics that a flow mirrors, and their remote topics: observe, plan, apply.

`plan_topics` is pure: it compares both clusters and returns actions. A topic that cannot be
mirrored as configured does not stop the others. It becomes a `RefuseTopic`, or an error of
`apply_topics`; its partitions are halted in the `Assignment`, with the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from sparkmirror.control.topics.config_sync import config_to_create_with, known_configs
from sparkmirror.control.topics.replicas import alive, too_few_brokers
from sparkmirror.errors import (
    Denied,
    MirrorError,
    QuotaExceeded,
    TooFewBrokers,
    TopicError,
    Unreachable,
)
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.model import MirrorMode, Partitioner, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import ConfigEntry, NewTopic, TopicView

log = logging.getLogger(__name__)

FACTOR_KEY = "replication.factor"
"""The setting with the replicas of remote topics."""
_VISIBLE_TIMEOUT_S = 10.0
_NAMES_SHOWN_MAX = 8
_VISIBLE_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ObservedTopics:
    """The topics of one flow on both clusters.

    ``source``: the topics to mirror, by name. ``target``: their existing remote topics, by name.
    ``configs``: configs of source topics that have no remote topic yet, or the error of reading
    them. ``known_configs``: the topic configs that the target knows; None if unknown. These two are
    only read if a remote topic is missing.
    ``refused``: source topics that cannot have the name that a map gives them, and why.
    """

    source: Mapping[str, TopicView]
    target: Mapping[str, TopicView]
    configs: Mapping[str, Mapping[str, ConfigEntry] | MirrorError] = field(default_factory=dict)
    known_configs: frozenset[str] | None = None
    refused: Mapping[str, MirrorError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create the remote topic of ``topic``. ``left_out``: configs that the target does not know."""

    topic: str
    new: NewTopic
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """Raise the remote topic of ``topic`` from ``present`` to ``partitions`` partitions."""

    topic: str
    remote_topic: str
    present: int
    partitions: int


@dataclass(frozen=True, slots=True)
class RefuseTopic:
    """``topic`` cannot be mirrored as configured."""

    topic: str
    error: MirrorError


Action = CreateTopic | GrowTopic | RefuseTopic


@dataclass(frozen=True)
class Assignment:
    """The source partitions of one flow, in topic order, and the halted ones with the reason.

    A partition is in one of the two, never in both.
    """

    flow: str
    partitions: tuple[SourcePartition, ...] = ()
    halted: Mapping[TopicPartition, Halt] = field(default_factory=dict)

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The source topics of which at least one partition is mirrored."""
        return tuple(dict.fromkeys(p.topic for p in self.partitions))

    @cached_property
    def sources(self) -> frozenset[TopicPartition]:
        """The source partitions that are mirrored."""
        return frozenset(p.source for p in self.partitions)

    @property
    def remote_topics(self) -> Mapping[str, str]:
        """Remote topic by source topic."""
        return {p.topic: p.remote_topic for p in self.partitions}


# --- observe ------------------------------------------------------------------------------------


def observe_topics(
    source: Cluster,
    target: Cluster,
    wanted: FlowTopics,
    own_topics: Sequence[str] = (),
    refuse: Callable[[Collection[str]], Mapping[str, MirrorError]] = lambda _: {},
    seen: Mapping[str, TopicView] | None = None,
) -> ObservedTopics:
    """Read the topics of both clusters. Raises `MirrorError` if one does not respond.

    ``own_topics``: internal topics on the target. They show which configs the target knows: a flow
    that only creates topics needs no right to describe the remote ones. ``refuse``: returns the
    topics that are left out, and why (`control.topics.remote_names`). ``seen``: the source topics
    of an earlier observation, which are then not read again.
    """
    with ThreadPoolExecutor(1, "topics") as pool:
        there = pool.submit(target.topics)
        found = seen
        if found is None:
            found = {
                name: view
                for name, view in source.topics().items()
                if wanted.mirrors(name, internal=view.internal)
            }
        refused = refuse(found)
        remote = {wanted.remote(name): name for name in found if name not in refused}
        present = {name: view for name, view in there.result().items() if name in remote}
    missing = [topic for name, topic in remote.items() if name not in present]
    if not missing:
        return ObservedTopics(found, present, refused=refused)
    return ObservedTopics(
        found,
        present,
        source.topic_configs(missing),
        known_configs(target, [*own_topics, *sorted(present)]),
        refused,
    )


# --- plan ---------------------------------------------------------------------------------------


def plan_topics(
    observed: ObservedTopics, flow: FlowSettings, wanted: FlowTopics | None = None
) -> list[Action]:
    """Actions on the target that mirroring needs, in topic order. Pure.

    A missing remote topic is created with the source's partition count and configs. One with fewer
    partitions than the source is grown (MirrorMaker 2) or refused (MirrorMaker 1 with
    ``--keep.partitions``: other producers may hash keys by its partition count). If records are
    partitioned by key, partition counts may differ. No topic ever shrinks.
    """
    wanted = wanted or FlowTopics(flow)
    actions: list[Action] = []
    by_key = flow.records.partitioner is not Partitioner.NUMBER
    for name in sorted(observed.source):
        view = observed.source[name]
        if name in observed.refused:
            actions.append(RefuseTopic(name, observed.refused[name]))
            continue
        remote = wanted.remote(name)
        present = observed.target.get(remote)
        if present is None:
            actions.append(plan_creation(view, remote, observed, flow))
        elif present.partitions < view.partitions and not by_key:
            if flow.mode is MirrorMode.MM1:
                actions.append(RefuseTopic(name, _too_few(view, present, flow)))
            else:
                actions.append(GrowTopic(name, remote, present.partitions, view.partitions))
    return actions


def plan_creation(
    view: TopicView, remote: str, observed: ObservedTopics, flow: FlowSettings
) -> CreateTopic | RefuseTopic:
    """How topic ``remote`` is created for the records of the source topic ``view``. Pure."""
    configs = observed.configs.get(view.name, {})
    if isinstance(configs, MirrorError):
        return RefuseTopic(view.name, configs)
    keep, left_out = config_to_create_with(configs, flow, observed.known_configs)
    new = NewTopic(remote, view.partitions, flow.topics.replication_factor, keep)
    return CreateTopic(view.name, new, left_out)


def _too_few(view: TopicView, present: TopicView, flow: FlowSettings) -> TopicError:
    return TopicError(
        f"the target topic has {_count(present.partitions, 'partition')}, the source topic "
        f"{view.name} on {flow.source.alias} has {view.partitions}.",
        where=f"cluster {flow.target.alias}, topic {present.name}",
        do=f"Raise the target topic to {view.partitions} partitions (kafka-topics.sh --alter), "
        "leave out --keep.partitions, or leave the topic out of the include list.",
    )


# --- apply --------------------------------------------------------------------------------------


def apply_topics(
    target: Cluster, actions: Sequence[Action], *, patience_s: float | None = None
) -> tuple[dict[str, MirrorError], list[str]]:
    """Apply ``actions``; returns errors by source topic, and one notice per change.

    ``patience_s``: see `Cluster.create_topics`. Waits at most ten seconds until the new partitions
    are visible and have leaders. After that the data path meets the missing ones as errors, and
    retries. Raises `MirrorError`.
    """
    errors = {action.topic: action.error for action in actions if isinstance(action, RefuseTopic)}
    done: list[str] = []
    expected: dict[str, int] = {}
    creations = [action for action in actions if isinstance(action, CreateTopic)]
    short: list[tuple[CreateTopic, TooFewBrokers]] = []
    outcomes = target.create_topics([one.new for one in creations], patience_s=patience_s)
    for creation in creations:
        outcome = outcomes[creation.new.name]
        if isinstance(outcome.error, TooFewBrokers):
            short.append((creation, outcome.error))
            continue
        if outcome.error is not None:
            errors[creation.topic] = outcome.error
            continue
        expected[creation.new.name] = creation.new.partitions
        if not outcome.existed:
            count = _count(creation.new.partitions, "partition")
            copied = _names(sorted(creation.new.configs))
            done.append(
                f"{target.alias}: created topic {creation.new.name} with {count}"
                + (f" and the source's {copied}" if copied else "")
            )
        if creation.left_out and not outcome.existed:
            names = ", ".join(creation.left_out)
            log.info(
                "%s: topic %s has no %s: the cluster does not know it",
                target.alias, creation.new.name, names,
            )  # fmt: skip
    brokers = alive(target) if short else 0
    for one, said in short:
        errors[one.topic] = too_few_brokers(target.alias, one.new, FACTOR_KEY, brokers, said)
    growths = [action for action in actions if isinstance(action, GrowTopic)]
    outcomes = target.grow_topics(
        {action.remote_topic: action.partitions for action in growths}, patience_s=patience_s
    )
    for growth in growths:
        error = outcomes[growth.remote_topic].error
        if error is not None:
            # Another mirror, or an administrator, may have grown the topic meanwhile.
            present = target.topics([growth.remote_topic]).get(growth.remote_topic)
            if present is None or present.partitions < growth.partitions:
                errors[growth.topic] = error
            continue
        expected[growth.remote_topic] = growth.partitions
        done.append(
            f"{target.alias}: topic {growth.remote_topic} grew from {growth.present} to "
            f"{growth.partitions} partitions"
        )
    hidden = _await_visible(target, expected)
    errors |= {one.topic: hidden[one.new.name] for one in creations if one.new.name in hidden}
    return errors, done


def passing(error: MirrorError) -> bool:
    """Whether an error of `apply_topics` may be over soon. Pure.

    A quota, no answer in time, or a broker that is down.
    """
    return isinstance(error, QuotaExceeded | Unreachable | TooFewBrokers)


def _await_visible(target: Cluster, expected: Mapping[str, int]) -> dict[str, MirrorError]:
    """Wait for ``expected`` partition counts; returns errors of topics that may not be seen."""
    hidden: dict[str, MirrorError] = {}
    deadline = time.monotonic() + _VISIBLE_TIMEOUT_S
    waiting = dict(expected)
    while waiting:
        views = target.topics(waiting)
        for name, view in views.items():
            if view.partitions >= waiting[name] and not view.leaderless:
                del waiting[name]
        unseen = [name for name in waiting if name not in views]
        if unseen:  # permission to create a topic does not include permission to describe it
            for name, error in target.literal_errors(unseen, operation="Write").items():
                if isinstance(error, Denied):
                    hidden[name] = error
                    del waiting[name]
        if not waiting or time.monotonic() > deadline:
            break
        time.sleep(_VISIBLE_POLL_S)
    return hidden


# --- result -------------------------------------------------------------------------------------


def assign(
    observed: ObservedTopics,
    flow: FlowSettings,
    errors: Mapping[str, MirrorError],
    wanted: FlowTopics | None = None,
) -> Assignment:
    """The assignment after `apply_topics`. ``errors``: by source topic. Pure.

    A topic that could not be created, or cannot have its name, is halted. Of a topic that could not
    grow, the partitions that the target lacks are halted (MirrorMaker 2), or all (MirrorMaker 1).
    """
    wanted = wanted or FlowTopics(flow)
    partitions: list[SourcePartition] = []
    halted: dict[TopicPartition, Halt] = {}
    for name in sorted(observed.source):
        view = observed.source[name]
        remote = wanted.remote(name)
        usable = view.partitions
        if name in errors:
            present = observed.target.get(remote)
            grown = flow.mode is MirrorMode.MM2 and name not in observed.refused
            usable = present.partitions if grown and present is not None else 0
        for number in range(view.partitions):
            if number < usable:
                partitions.append(SourcePartition(name, number, remote, view.topic_id))
            else:
                error = errors[name]
                halted[TopicPartition(name, number)] = Halt(error.code, str(error), retriable=True)
    return Assignment(flow.name, tuple(partitions), halted)


def describe_changes(before: Assignment, after: Assignment) -> Iterable[str]:
    """One line per topic that was added, deleted, grown or recreated between two assignments."""
    old, new = _by_topic(before), _by_topic(after)
    flow = after.flow
    for name in sorted(old.keys() - new.keys()):
        yield f"{flow}: topic {name} is gone from the source, it is no longer mirrored"
    for name in sorted(new.keys() - old.keys()):
        yield f"{flow}: mirroring topic {name} ({_count(len(new[name]), 'partition')})"
    for name in sorted(old.keys() & new.keys()):
        if len(new[name]) != len(old[name]):
            yield f"{flow}: topic {name} has {len(new[name])} partitions now (was {len(old[name])})"
        if new[name][0].topic_id != old[name][0].topic_id:
            yield f"{flow}: topic {name} was deleted and recreated on the source"


def _by_topic(assignment: Assignment) -> dict[str, list[SourcePartition]]:
    topics: dict[str, list[SourcePartition]] = {}
    for partition in assignment.partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN_MAX
    return ", ".join(names[:_NAMES_SHOWN_MAX]) + (f" and {more} more settings" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
