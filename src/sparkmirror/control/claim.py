"""The start of an exactly-once flow: nobody else writes it from here on.

The claim is written before anything is fenced, and everything is fenced before positions are
seeded: a writer that comes back later finds the claim and ends (`data.takeover`).
"""

from __future__ import annotations

import socket

from sparkmirror.model import FlowSettings
from sparkmirror.wire.claims import (
    Claim,
    decode_claim,
    encode_claim,
    fence_slots,
    transactional_id,
)
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.signals import COMMAND_PARTITION, control_topic
from sparkmirror.wire.transactions import Transactions

__all__ = ["claim_flow", "slots_ever"]


def claim_flow(target: Cluster, flow: FlowSettings, run_id: str) -> None:
    """Check that ``target`` allows exactly-once, claim the flow for ``run_id``, fence all others.

    The control topic must exist. Raises `Unsupported` (brokers without the APIs), `Denied` (a
    permission is missing) and other `MirrorError`.
    """
    _check(flow)
    slots = flow.tasks_max
    while True:
        _write(target, flow, Claim(flow.name, run_id, slots, socket.gethostname()))
        known = slots_ever(target, flow)
        if known <= slots:
            break
        slots = known  # an earlier run had more: its ids stay known until they expire
    fence_slots(flow, slots, patience_s=_patience_s(flow))


def slots_ever(target: Cluster, flow: FlowSettings) -> int:
    """The largest number of slots that any claim in the control topic tells of."""
    records = target.read_compacted(control_topic(flow), partitions=[COMMAND_PARTITION])
    claims = (decode_claim(key, value) for _, key, value in records)
    return max((c.slots for c in claims if c is not None and c.flow == flow.name), default=0)


def _write(target: Cluster, flow: FlowSettings, claim: Claim) -> None:
    target.produce_many(control_topic(flow), [(COMMAND_PARTITION, *encode_claim(claim))])


def _check(flow: FlowSettings) -> None:
    """A transaction with nothing in it needs all permissions but those on the topics.

    It is one of a slot that this flow does not have, so it disturbs nobody.
    """
    routes = Routes(flow.target)
    transactions = Transactions(
        routes,
        f"{transactional_id(flow, 0)}-check",
        timeout_ms=flow.transaction_timeout_ms,
        patience_s=_patience_s(flow),
    )
    try:
        transactions.check_brokers()
        transactions.fence()
        transactions.join_group(flow.position_group)
        transactions.abort()
    finally:
        transactions.close()
        routes.close()


def _patience_s(flow: FlowSettings) -> float:
    return flow.target.request_timeout_ms / 1000
