"""Topics for whose replicas a cluster may have too few brokers.

Metadata lists the brokers that are alive. A KRaft controller also places replicas on those that are
down. So the controller is asked for the configured number, and only its answer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from sparkmirror.errors import MirrorError, TooFewBrokers, TopicError
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import NewTopic

__all__ = ["alive", "ask_for", "fewer_told", "planned", "said_of_brokers", "too_few_brokers"]

_STEPS_MAX = 4
_CODE = "INVALID_REPLICATION_FACTOR: "


class _Outcome(Protocol):
    @property
    def error(self) -> MirrorError | None: ...


Outcome = TypeVar("Outcome", bound=_Outcome)


def ask_for(
    cluster: Cluster,
    topics: Sequence[NewTopic],
    create: Callable[[Sequence[NewTopic]], Mapping[str, Outcome]],
    fewer: Container[str] = (),
) -> tuple[dict[str, Outcome], dict[str, NewTopic]]:
    """Call ``create`` with ``topics``; returns the outcomes, and what was asked for last, by name.

    Topics in ``fewer`` for which there are too few brokers are asked for again, with one replica
    less each time, down to as many as brokers are alive. Raises `MirrorError`.
    """
    asked = {new.name: new for new in topics}
    outcomes = dict(create(topics))
    short = [new for new in topics if new.name in fewer and _is_short(outcomes[new.name])]
    brokers = alive(cluster) if short else 0
    steps = {new.name: iter(_fewer(new.replication_factor, brokers)) for new in short}
    while short:
        again = [
            replace(new, replication_factor=count)
            for new in short
            if (count := next(steps[new.name], 0))
        ]
        if again:
            outcomes |= create(again)
            asked |= {new.name: new for new in again}
        short = [new for new in again if _is_short(outcomes[new.name])]
    return outcomes, asked


def _is_short(outcome: _Outcome) -> bool:
    return isinstance(outcome.error, TooFewBrokers)


def _fewer(factor: int, brokers: int) -> Sequence[int]:
    # The controller may count more brokers than are alive, and fewer than are wanted.
    if factor < 1:
        return [brokers]
    return range(factor - 1, brokers - 1, -1)[-_STEPS_MAX:]


def planned(
    cluster: Cluster, topics: Sequence[NewTopic], key: str, fewer: Container[str] = ()
) -> tuple[list[NewTopic], dict[str, MirrorError]]:
    """``topics`` as `ask_for` would create them, and the errors of those it could not, by name.

    The controller makes a dry run of those that want more replicas than brokers are alive: of one
    topic for all that want as many, because dry runs count for a quota (controller_mutation_rate).
    ``key``: the setting with their number. Raises `MirrorError`.
    """
    if not topics:
        return [], {}
    brokers = alive(cluster)
    alike: dict[tuple[int, bool], list[NewTopic]] = {}
    for new in topics:
        if new.replication_factor > brokers:
            alike.setdefault((new.replication_factor, new.name in fewer), []).append(new)
    counts: dict[str, int] = {}
    refused: dict[str, MirrorError] = {}
    for group in alike.values():
        one = min(group, key=lambda new: new.partitions)
        error, count = _dry_run(cluster, one, fewer)
        for new in group:
            if error is None:
                counts[new.name] = count
            elif isinstance(error, TooFewBrokers):
                refused[new.name] = too_few_brokers(cluster.alias, new, key, brokers, error)
            else:
                refused[new.name] = _not_asked(cluster.alias, new, key, brokers, error)
    kept = [
        replace(new, replication_factor=counts.get(new.name, new.replication_factor))
        for new in topics
        if new.name not in refused
    ]
    return kept, refused


def _dry_run(
    cluster: Cluster, new: NewTopic, fewer: Container[str]
) -> tuple[MirrorError | None, int]:
    """The error of a dry run of the creation of ``new``, or its number of replicas."""
    dry_run = partial(cluster.create_topics, validate_only=True, patience_s=0)
    try:
        outcomes, asked = ask_for(cluster, [new], dry_run, fewer)
    except MirrorError as error:
        return error, 0
    return outcomes[new.name].error, asked[new.name].replication_factor


def too_few_brokers(
    alias: str, new: NewTopic, key: str, brokers: int, error: MirrorError
) -> TooFewBrokers:
    """The error of topic ``new``, whose number of replicas is that of the setting ``key``. Pure.

    ``alias``: of the cluster. ``brokers``: how many are alive. ``error``: the controller's answer.
    """
    factor, where = new.replication_factor, f"cluster {alias}, topic {new.name}"
    if factor <= brokers:  # the broker's default, or there is another reason
        known = "-1, the broker's default" if factor < 1 else str(factor)
        return TooFewBrokers(
            error.what,
            where=where,
            do=f"{key} is {known}. Start the brokers that are down, set a number that there are "
            "brokers for, or create the topic yourself.",
        )
    return TooFewBrokers(
        f"the topic cannot be created: {key} is {factor}, but the cluster has "
        f"{brokers} live broker{'s' if brokers != 1 else ''}{said_of_brokers(error)}.",
        where=where,
        do=f"Start the brokers that are down, set {key} to {brokers} or less (-1 takes the "
        "broker's default), or create the topic yourself.",
    )


def said_of_brokers(error: MirrorError) -> str:
    """The controller's own text in its answer ``error``, to append; empty if it gave none. Pure."""
    _, _, said = error.what.partition(_CODE)
    said = said.removesuffix(".").removesuffix(")").removesuffix(".")
    return f" ({said})" if said else ""


def _not_asked(alias: str, new: NewTopic, key: str, brokers: int, error: MirrorError) -> TopicError:
    return TopicError(
        f"{key} is {new.replication_factor}, the cluster has {brokers} live "
        f"broker{'s' if brokers != 1 else ''}, and whether it takes more could not be asked: "
        f"{error.what}",
        where=f"cluster {alias}, topic {new.name}",
        do=error.do,
    )


def fewer_told(wanted: NewTopic, made: NewTopic) -> str:
    """The end of a notice about ``made``; empty if it has as many replicas as ``wanted``. Pure."""
    count, factor = made.replication_factor, wanted.replication_factor
    if count == factor:
        return ""
    replicas = "1 replica" if count == 1 else f"{count} replicas"
    there = "the broker's default" if factor < 0 else str(factor)
    return f" with {replicas}: the cluster has too few brokers for {there}"


def alive(cluster: Cluster) -> int:
    """How many brokers are alive. Raises `MirrorError`."""
    return len(cluster.describe().brokers)
