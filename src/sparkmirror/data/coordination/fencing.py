"""How a slot of an exactly-once flow becomes the only writer of its partitions.

(With at-least-once, nothing fences another writer. There a slot checks the claims when it begins
and while it runs, and its sink after every pause: `data.coordination.pause`.)

Three writers could interfere: an earlier attempt of the same task, a slot of an earlier plan that
had one of its partitions, another driver. Each slot has one transactional id, which fences the
first one. The other two are excluded by the order of the control topic:

1. A process that changes which slot has which partition (a new run, a new assignment; a new deal
   counts from a new assignment on) first writes that to the control topic. Then it fences all ids
   of the flow, before any slot of the new plan begins (`fence_plan`, `control.coordination.claim`).
2. A slot fences its own id and *then* reads the control topic to its end (`take_over`).

So an old slot that fenced before step 1 is fenced by it, and one that fences after it finds the
record and ends. Only a slot that has passed reads positions, and by then every earlier transaction
is decided.
"""

from __future__ import annotations

import logging
import time

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.hanging_transactions import close_all
from sparkmirror.internal_topics.commands import AssignmentDocument
from sparkmirror.internal_topics.flow_claims import Claim, taken_over, transactional_id
from sparkmirror.internal_topics.shares import outdated
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.transforms import Transformed
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.produce.partition_queue import Identity
from sparkmirror.wire.produce.slot_fencing import fence_slots
from sparkmirror.wire.produce.transactions import Transactions

__all__ = [
    "check_claim",
    "check_owner",
    "checks_claims",
    "committed_positions",
    "fence_plan",
    "take_over",
]

log = logging.getLogger(__name__)

_READ_AGAIN_S = 0.2


def checks_claims(flow: FlowSettings) -> bool:
    """Whether slots must check claims themselves.

    They must if neither exactly-once fences other writers, nor a consumer group excludes them.
    """
    return flow.mode is MirrorMode.MM2 and not flow.exactly_once


def check_claim(flow: FlowSettings, claim: Claim | None, run_id: str) -> None:
    """Raise `Fenced` if another run has claimed the flow."""
    if claim is not None and claim.run_id != run_id:
        raise taken_over(flow, claim, run_id)


def check_owner(flow: FlowSettings, run_id: str, watch: ControlWatch) -> None:
    """Read the current claims; raise `Fenced` if another run owns the flow.

    Waits for a target that does not respond.
    """
    _look(flow, watch)
    check_claim(flow, watch.claim, run_id)


def take_over(
    flow: FlowSettings, slot: int, run_id: str, version: int, watch: ControlWatch
) -> Identity | None:
    """Become the only writer of the slot; None if the slot's plan is outdated, or the run ends.

    ``version``: that of the plan's assignment. ``watch`` starts at the offset up to which the
    planner has read the control topic. Raises `Fenced` if another run owns the flow.
    """
    check_owner(flow, run_id, watch)
    if outdated(watch.command, run_id, version):
        return None
    connections = ClusterConnections(flow.target)
    transactions = Transactions(
        connections, transactional_id(flow, slot), timeout_ms=flow.transaction_timeout_ms
    )
    try:
        identity = transactions.fence()
    finally:
        transactions.close()
        connections.close()
    check_owner(flow, run_id, watch)
    return None if outdated(watch.command, run_id, version) else identity


def _look(flow: FlowSettings, watch: ControlWatch) -> None:
    while not watch.read_to_end():
        log.warning("flow %s waits for its control topic", flow.name)
        time.sleep(_READ_AGAIN_S)


def committed_positions(
    flow: FlowSettings, targets: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """Positions by remote partition, once no open transaction can change them any more."""
    coordinators = Coordinators(ClusterConnections(flow.target))
    try:
        found = coordinators.committed(flow.position_group, targets, stable=True)
    finally:
        coordinators.close()
    return {tp: offset for tp, (offset, _) in found.items()}


def fence_plan(
    flow: FlowSettings, run_id: str, claim: Claim | None, assignment: AssignmentDocument
) -> bool:
    """Planner: before the first epoch of an assignment, fence all slots of older ones.

    Also closes what they have open where another slot may write now. Returns False if that could
    not be checked for all partitions yet. Raises `Fenced` if another run owns the flow.
    """
    check_claim(flow, claim, run_id)
    slots = max(flow.tasks_max, claim.slots if claim is not None else 0)
    log.info("flow %s: assignment %d: fencing %d writers", flow.name, assignment.version, slots)
    identities = fence_slots(flow, slots)
    transformed = Transformed(flow)
    return close_all(
        flow,
        identities,
        [one.target for one in assignment.partitions],
        {one.target for one in assignment.partitions if transformed.routes(one.topic)},
    )
