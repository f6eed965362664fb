"""Checks and steps before a flow starts: same cluster, Java mirrors, positions, frozen ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sparkmirror.control.coordination.status import is_paused
from sparkmirror.control.positions.first_positions import FirstPositions
from sparkmirror.control.positions.seeding import seed_positions
from sparkmirror.control.topics.internal_topics import offset_storage_topic
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import ConfigError, Denied, TopicError
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.topic_ways import copied_again
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

PAUSED = "PAUSED"
"""Halt code for the partitions of a paused flow, which a ``--once`` run leaves out."""


_FREEZE_TIMEOUT_S = 30.0
_FREEZE_POLL_S = 1.0


def refuse_mirroring_onto_itself(
    settings: FlowSettings, wanted: FlowTopics, source_admin: Cluster, target_admin: Cluster
) -> None:
    """Raise `ConfigError` if source and target are one cluster and topics keep their names.

    Raises other `MirrorError`.
    """
    with ThreadPoolExecutor(1, "describe") as pool:  # in parallel: both may be remote
        asked = pool.submit(target_admin.describe)
        source, target = source_admin.describe(), asked.result()
    if not source.cluster_id or source.cluster_id != target.cluster_id:
        return
    if settings.topics.renamed:
        again = copied_again(settings.naming) or _copied_again(wanted, source_admin)
        if again is not None:
            raise ConfigError(
                f"source and target are the same cluster (id {source.cluster_id}) and remote "
                f"topics would be mirrored again: for example, '{again[0]}' becomes '{again[1]}', "
                f"and that becomes '{again[2]}'.",
                where=f"flow {settings.name}",
                do="Exclude the names that sparkmirror.topics.map or RegexRouter gives, or check "
                "the bootstrap.servers of both clusters.",
            )
    elif settings.mode is MirrorMode.MM1 or wanted.remote("topic") == "topic":
        raise ConfigError(
            f"source and target are the same cluster (id {source.cluster_id}) and topics keep "
            "their names: every record would be copied onto itself for ever.",
            where=f"flow {settings.name}",
            do="Check the bootstrap.servers of both clusters.",
        )


def _copied_again(wanted: FlowTopics, cluster: Cluster) -> list[str] | None:
    """An existing topic, its remote topic, and the remote topic of that, if it is mirrored too."""
    for topic in sorted(cluster.topics()):
        if wanted.accepts(topic) and not wanted.fault(topic):
            copy = wanted.remote(topic)
            if wanted.accepts(copy):
                return [topic, copy, wanted.remote(copy)]
    return None


def warn_of_java(settings: FlowSettings, target: Cluster) -> list[str]:
    """Notices if the Connect group of a Java MirrorMaker 2 on the target has active members.

    Also a notice if the group may not be described. Raises other `MirrorError`.
    """
    if settings.mode is MirrorMode.MM1:
        return []
    group = f"{settings.source.alias}-mm2"
    try:
        members = target.group_members(group)
    except Denied as error:
        return [f"{settings.name}: cannot check whether a Java MirrorMaker 2 runs: {error}"]
    if not members:
        return []
    return [
        f"{settings.name}: the group {group} on {target.alias} has active members: if a "
        "Java MirrorMaker 2 still runs this flow, stop it, or records arrive twice"
    ]


def take_over_positions(
    keeper: Cluster,
    first_positions: FirstPositions,
    settings: FlowSettings,
    assignment: Assignment,
    notify: Callable[[str], None],
) -> None:
    """Take over the positions of a Java mirror on ``keeper``, and commit the first positions.

    Partitions that begin at the log end or at a time begin where that is now. Raises `MirrorError`.
    """
    seeding = seed_positions(keeper, settings, assignment)
    if seeding.seeded:
        place = (
            "the group's offsets in ZooKeeper"
            if settings.zookeeper
            else offset_storage_topic(settings)
        )
        notify(f"{settings.name}: {len(seeding.seeded)} positions taken over from {place}")
    if seeding.skipped:
        notify(f"{settings.name}: {seeding.skipped} stored offsets could not be read")
    begun = first_positions.settle(assignment.partitions)
    if begun:
        notify(
            f"{settings.name}: {begun} partitions had no position: they begin where "
            f"auto.offset.reset={settings.fetch.auto_offset_reset} is now"
        )


def leave_out_paused(settings: FlowSettings, target: Cluster, assignment: Assignment) -> Assignment:
    """For a ``--once`` run: if the flow is paused, halt all partitions, so that the run ends.

    Raises `ConfigError` for a paused MirrorMaker 1 flow: the group would wait for its share. Raises
    other `MirrorError`.
    """
    if not is_paused(target, settings):
        return assignment
    if settings.mode is MirrorMode.MM1:
        raise ConfigError(
            "the flow is paused: a run with --once would copy nothing and never end.",
            where=f"flow {settings.name}",
            do="Resume it first: sparkmirror resume.",
        )
    halt = Halt(PAUSED, "the flow is paused; sparkmirror resume continues it")
    halted = {p.source: halt for p in assignment.partitions}
    return replace(assignment, partitions=(), halted={**assignment.halted, **halted})


def freeze_ends(
    settings: FlowSettings, source: Cluster, assignment: Assignment
) -> dict[TopicPartition, int]:
    """End offsets (exclusive) up to which a ``--once`` run copies.

    Waits 30 s for partitions without a leader, then raises `TopicError`. Raises other
    `MirrorError`.
    """
    wanted = [p.source for p in assignment.partitions]
    deadline = time.monotonic() + _FREEZE_TIMEOUT_S
    while True:
        ends = source.end_offsets(wanted, settings.fetch.isolation_level)
        missing = [tp for tp in wanted if tp not in ends]
        if not missing:
            return ends
        if time.monotonic() > deadline:
            shown = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
            raise TopicError(
                f"no end offset for {len(missing)} partitions ({shown}): they have no leader.",
                where=f"cluster {source.alias}",
                do="Bring their brokers back, or leave these topics out.",
            )
        time.sleep(_FREEZE_POLL_S)
