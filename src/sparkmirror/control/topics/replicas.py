"""Topics for whose replicas a cluster may have too few brokers.

Metadata lists the brokers that are alive. A KRaft controller also places replicas on those that are
down. So the controller is asked for the configured number, and only its answer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from sparkmirror.errors import MirrorError, TooFewBrokers
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import NewTopic

__all__ = ["alive", "ask_for", "fewer_told", "planned", "too_few_brokers"]


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

    Topics in ``fewer`` for which there are too few brokers are asked for again, with as many
    replicas as brokers are alive. Raises `MirrorError`.
    """
    asked = {new.name: new for new in topics}
    outcomes = dict(create(topics))
    short = [
        new
        for new in topics
        if new.name in fewer and isinstance(outcomes[new.name].error, TooFewBrokers)
    ]
    if short:
        brokers = alive(cluster)
        again = [
            replace(
                new,
                replication_factor=min(new.replication_factor, brokers)
                if new.replication_factor > 0
                else brokers,
            )
            for new in short
        ]
        outcomes |= create(again)
        asked |= {new.name: new for new in again}
    return outcomes, asked


def planned(
    cluster: Cluster, topics: Sequence[NewTopic], key: str, fewer: Container[str] = ()
) -> tuple[list[NewTopic], dict[str, TooFewBrokers]]:
    """``topics`` as `ask_for` would create them, and the errors of those it could not, by name.

    The controller makes a dry run of those that want more replicas than brokers are alive. ``key``:
    the setting with their number. Raises `MirrorError`.
    """
    if not topics:
        return [], {}
    brokers = alive(cluster)
    doubtful = [new for new in topics if new.replication_factor > brokers]
    if not doubtful:
        return list(topics), {}
    dry_run = partial(cluster.create_topics, validate_only=True, patience_s=0)
    outcomes, asked = ask_for(cluster, doubtful, dry_run, fewer)
    refused = {
        new.name: too_few_brokers(cluster.alias, new, key, brokers)
        for new in doubtful
        if isinstance(outcomes[new.name].error, TooFewBrokers)
    }
    kept = [asked.get(new.name, new) for new in topics if new.name not in refused]
    return kept, refused


def too_few_brokers(alias: str, new: NewTopic, key: str, brokers: int) -> TooFewBrokers:
    """The error of topic ``new``, whose number of replicas is that of the setting ``key``. Pure.

    ``alias``: of the cluster. ``brokers``: how many are alive.
    """
    return TooFewBrokers(
        f"the topic cannot be created: {key} is {new.replication_factor}, but the cluster has "
        f"{brokers} live broker{'s' if brokers != 1 else ''}.",
        where=f"cluster {alias}, topic {new.name}",
        do=f"Start the brokers that are down, set {key} to {brokers} or less (-1 takes the "
        "broker's default), or create the topic yourself.",
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
