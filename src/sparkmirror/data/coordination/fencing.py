"""How a slot of an exactly-once flow becomes the only writer of its partitions.

(With at-least-once, nothing fences another writer. There a slot checks the claims when it begins
and while it runs, and its sink after every pause: `data.coordination.pause`.)

Three writers could interfere: an earlier attempt of the same task, a slot of an earlier plan that
had one of its partitions, another driver. Each slot has one transactional id, which fences the
first one. The other two are excluded by the order of the control topic:

1. A process that changes which slot has which partition first writes that to the control topic: a
   new run its claim, the planner the record of each epoch (`internal_topics.epochs.record`). Then
   it fences all ids of the flow, before any slot of the new plan begins (`fence_plan`,
   `control.coordination.claim`). The planner leaves that out if no partition has another slot.
2. A slot fences its own id and *then* reads the control topic to its end (`take_over`).

So an old slot that fenced before step 1 is fenced by it, and one that fences after it finds the
record and ends. Only a slot that has passed reads positions, and by then every earlier transaction
is decided.

The record of an epoch must be there, and the newest: a slot that does not find it fails. So it does
no harm if the topic loses a record, or if the planner of a run that has lost the flow writes one
late and the topic's compaction then keeps only that.

Within an epoch, partitions come, go and move without a fence (`internal_topics.epochs`). One that
is added has one slot only, which depends on nothing but its name and the number of slots. One that
moves has no slot from the driver's order on, until its old slot has committed something after the
order: whoever fences that slot's id later finds the order in step 2.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.hanging_transactions import close_all
from sparkmirror.data.rows.notes import Writer
from sparkmirror.errors import Defect, Fenced, TransactionError
from sparkmirror.internal_topics.commands import AssignmentDocument
from sparkmirror.internal_topics.epochs.record import EpochRecord
from sparkmirror.internal_topics.epochs.shares import elsewhere, outdated
from sparkmirror.internal_topics.flow_claims import Claim, taken_over, transactional_id
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
    "ended",
    "fence_plan",
    "identity_again",
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
    flow: FlowSettings,
    slot: int,
    run_id: str,
    version: int,
    watch: ControlWatch,
    record: EpochRecord | None,
) -> Identity | None:
    """Become the only writer of the slot; None if the slot's plan is outdated, or the run ends.

    ``version``: that of the plan's assignment. ``record``: that of its epoch. ``watch`` starts at
    the offset up to which the planner has read the control topic. Raises `Fenced` if another run
    owns the flow, `TransactionError` if the topic has lost the record.
    """
    check_owner(flow, run_id, watch)
    if _outdated(flow, run_id, version, watch, record):
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
    return None if _outdated(flow, run_id, version, watch, record) else identity


def ended(watch: ControlWatch, record: EpochRecord | None) -> bool:
    """Whether the control topic has a newer epoch than that of ``record``, as far as it was read.

    Never for a flow without exactly-once, whose epochs have no records.
    """
    return record is not None and watch.epoch not in (None, record)


def _outdated(
    flow: FlowSettings,
    run_id: str,
    version: int,
    watch: ControlWatch,
    record: EpochRecord | None,
) -> bool:
    if outdated(watch.command, run_id, version):
        return True
    if record is None:
        raise Defect("an exactly-once slot was planned without the record of its epoch")
    newest = watch.epoch
    if newest is None or newest.number < record.number:
        raise TransactionError(
            "the control topic has lost the record of the slot's epoch.", where=f"flow {flow.name}"
        )
    return newest != record


def identity_again(
    flow: FlowSettings,
    slot: int,
    writer: Writer | None,
    expected: Mapping[TopicPartition, int],
) -> Identity:
    """A new identity for a slot that writes; this aborts what the old one has open.

    ``writer``: who the slot was when it began. ``expected``: the positions that it has committed,
    by remote partition; -1 where it knows none. Raises `Fenced` if another writer has taken over,
    `TransactionError` if the slot's plan is outdated.
    """
    if writer is None:
        raise Defect("a transaction is written again before any was begun")
    watch = ControlWatch(flow, writer.run_id, offset=writer.control_offset)
    try:
        watch.start()
        identity = take_over(flow, slot, writer.run_id, writer.version, watch, writer.record)
    finally:
        watch.close()
    document = watch.assignment
    gone = document is not None and elsewhere(document, writer.version, slot) & expected.keys()
    # Whoever fences after an order was released finds it here: see above.
    if identity is None or gone:
        raise TransactionError("the slot's plan is outdated.", where=f"flow {flow.name}")
    found = committed_positions(flow, list(expected))
    # A position that is not there was deleted with its topic.
    moved = {tp for tp, at in expected.items() if at >= 0 and found.get(tp, at) != at}
    if moved:
        raise Fenced(
            f"positions were moved by another writer ({', '.join(map(str, sorted(moved)))}).",
            where=f"flow {flow.name}",
        )
    return identity


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
