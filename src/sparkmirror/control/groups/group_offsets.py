"""Group offset sync: commits checkpoints for groups without active members on the target.

A group with active members on the target is left alone. A group that the target does not know gets
all its checkpoints. A committed offset is never moved back, because consumers may have read further
on the target. The exception is an offset that equals a withdrawn checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkmirror.control.groups.checkpoints import CheckpointStore
from sparkmirror.errors import ClusterError, MirrorError
from sparkmirror.model import TopicPartition
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.groups import IDLE_STATES
from sparkmirror.wire.cluster.views import Committed, GroupView

Commits = dict[TopicPartition, tuple[int, str]]


def plan_group_offsets(
    store: CheckpointStore,
    groups: Iterable[str],
    committed: Mapping[str, Mapping[TopicPartition, Committed] | MirrorError],
) -> dict[str, Commits]:
    """Offsets to commit on the target, by group. Pure.

    ``groups``: groups without active members. ``committed``: their offsets on the target; a group
    whose offsets could not be read is skipped.
    """
    plan: dict[str, Commits] = {}
    for group in sorted(groups):
        present = committed.get(group, {})
        if isinstance(present, MirrorError):
            continue
        commits = {
            remote: (checkpoint.downstream, checkpoint.metadata)
            for remote, checkpoint in store.of(group).items()
            if remote not in present
            or present[remote].offset < checkpoint.downstream
            or present[remote].offset in store.withdrawn.get((group, remote), ())
        }
        if commits:
            plan[group] = commits
    return plan


def sync_group_offsets(
    target: Cluster, store: CheckpointStore, wanted: Iterable[str]
) -> tuple[int, dict[str, MirrorError]]:
    """Commit the offsets of `plan_group_offsets` for the ``wanted`` groups.

    Returns the number of groups committed, and errors by group or cluster. If a consumer joins a
    group meanwhile, the broker rejects the commit; the next round leaves that group alone. Raises
    `MirrorError` when the target does not respond.
    """
    known = store.groups()
    # Of a group that no broker has told it is not known then whether it has members.
    missed: list[ClusterError] = []
    candidates = [group for group in wanted if group in known]
    idle = idle_groups(target, candidates, missed)
    untold = {f"cluster {target.alias}": missed[0]} if missed else {}
    if not idle:
        return 0, {**untold}
    committed = target.committed_by_group(idle, operation="Read")
    errors = {group: found for group, found in committed.items() if isinstance(found, MirrorError)}
    plan = plan_group_offsets(store, idle, committed)

    def commit(group: str) -> MirrorError | None:
        try:
            target.commit_offsets(group, plan[group])
        except MirrorError as error:
            return error
        return None

    # A commit holds one group only, and over a long link each takes a round trip.
    outcomes = zip(plan, of_each(commit, plan), strict=True)
    refused = {group: error for group, error in outcomes if error}
    return len(plan) - len(refused), untold | errors | refused


def idle_groups(
    target: Cluster, groups: Iterable[str], missed: list[ClusterError] | None = None
) -> list[str]:
    """Those of ``groups`` that the target does not know, or that have no active members there.

    ``missed`` gets the errors of brokers that do not tell their groups; without it, they are
    raised. If there are some, a group that no other broker has told is left out. Raises
    `MirrorError`.
    """
    candidates = list(groups)
    present = target.groups(None if missed is None else missed.append) if candidates else {}
    if missed:
        candidates = [group for group in candidates if group in present]
    idle = of_each(lambda group: _is_idle(target, present.get(group)), candidates)
    return [group for group, is_idle in zip(candidates, idle, strict=True) if is_idle]


def _is_idle(target: Cluster, group: GroupView | None) -> bool:
    """Whether ``group`` has no active members; None: the target does not know it."""
    if group is None:
        return True
    if not group.state:  # ListGroups of this broker has no states
        return not target.group_members(group.name)
    return group.state in IDLE_STATES
