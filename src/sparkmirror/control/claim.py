"""The start of an exactly-once flow: nobody else writes it from here on.

The claim is written before anything is fenced, and everything is fenced before positions are
seeded: a writer that comes back later finds the claim and ends (`data.takeover`).
"""

from __future__ import annotations

import socket

from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.model import FlowSettings
from sparkmirror.wire.claims import (
    Claim,
    decode_claim,
    encode_claim,
    fence_slots,
    transactional_id,
)
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.gaps import gaps_topic
from sparkmirror.wire.mirror_records import offset_syncs_topic
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.runs import runs_topic
from sparkmirror.wire.signals import COMMAND_PARTITION, control_topic
from sparkmirror.wire.transactions import Transactions

__all__ = ["claim_flow", "slots_ever"]

# The marker that ends a transaction in a partition is a batch of its own.
_MARKER_BYTES = 78
_SIZE_KEY = "max.message.bytes"


def claim_flow(target: Cluster, flow: FlowSettings, run_id: str) -> None:
    """Check that ``target`` allows exactly-once, claim the flow for ``run_id``, fence all others.

    The control topic must exist. Raises `Unsupported` (brokers without the APIs), `Denied` (a
    permission is missing), `TopicError` (a topic of our own takes no markers) and other
    `MirrorError`.
    """
    _check_room(target, flow)
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
    records = target.read_compacted(
        control_topic(flow), partitions=[COMMAND_PARTITION], passes=True
    )
    claims = (decode_claim(key, value) for _, key, value in records)
    return max((c.slots for c in claims if c is not None and c.flow == flow.name), default=0)


def _write(target: Cluster, flow: FlowSettings, claim: Claim) -> None:
    target.produce_many(control_topic(flow), [(COMMAND_PARTITION, *encode_claim(claim))])


def _check_room(target: Cluster, flow: FlowSettings) -> None:
    """The mirror's own topics that join transactions must take the markers that end them.

    Otherwise the first transaction with one of them could never end.
    """
    names = [gaps_topic(flow)]
    if flow.offset_syncs.enabled and flow.offset_syncs.location == "target":
        names += [offset_syncs_topic(flow), runs_topic(flow)]
    for name, configs in target.topic_configs(names).items():
        if isinstance(configs, MirrorError):
            continue  # not made yet, or nobody may look
        limit = configs[_SIZE_KEY].value if _SIZE_KEY in configs else None
        if limit is not None and int(limit) < _MARKER_BYTES:
            raise TopicError(
                f"the topic takes no batches of more than {limit} bytes ({_SIZE_KEY}): the marker "
                f"that ends a transaction has {_MARKER_BYTES}, so that none with offset syncs or "
                "gap records in it would ever end.",
                where=f"cluster {target.alias}, topic {name}",
                do=f"Remove {_SIZE_KEY} from the topic's configs, or leave exactly-once out.",
            )


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
