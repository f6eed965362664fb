"""Claim of a flow: from the claim on, no other process writes it.

The order is: claim, fence, seed positions. An old writer that comes back later finds the claim and
ends (`data.coordination.fencing`). Only an exactly-once flow has transactional ids to fence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkmirror.control.coordination.place import own_host, own_place
from sparkmirror.control.coordination.status import observe_status
from sparkmirror.errors import ClusterError, MirrorError, TopicError
from sparkmirror.internal_topics.commands import COMMAND_PARTITION, control_topic
from sparkmirror.internal_topics.flow_claims import (
    Claim,
    claim_signer,
    decode_claim,
    encode_claim,
    is_believed,
    is_signed,
    transactional_id,
)
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.internal_topics.mm2_records import offset_syncs_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.produce.slot_fencing import fence_slots
from sparkmirror.wire.produce.transactions import Transactions

# Size of the control batch that ends a transaction in a partition.
_MARKER_BYTES = 78
_SIZE_KEY = "max.message.bytes"
_SECRET_KEY = "sparkmirror.control.secret"  # noqa: S105 (a name)


def claim_flow(
    target: Cluster,
    flow: FlowSettings,
    run_id: str,
    now_ms: int,
    *,
    file: str = "",
    content: str = "",
    newest: str | None = None,
) -> int | None:
    """Claim the flow for ``run_id``; with exactly-once, also fence all earlier producers.

    Returns the term of the claim, 0 without a secret. The term is normally ``now_ms``, so it grows
    even if the last claim was deleted from the topic. ``file`` and ``content``: see `Claim`.
    ``newest``: the run that has the newest claim as far as the caller knows, empty for none. If
    another run has claimed the flow since, nothing is claimed and None is returned.

    The control topic must exist. Raises `Unsupported` (brokers without the APIs), `Denied` (a
    permission is missing), `TopicError` (an internal topic accepts no transaction markers),
    `ClusterError` (a mirror with another secret runs the flow) and other `MirrorError`.
    """
    if flow.exactly_once:
        _check_room(target, flow)
        _check(flow)
    signer, term = claim_signer(flow), 0
    records = _claims(target, flow)
    # At-least-once uses no transactional ids, but keeps the number that earlier runs used.
    slots = flow.tasks_max if flow.exactly_once else _most_slots(records)
    if records:
        _refuse_other_secret(target, flow, records[-1], now_ms)
    believed = [one.claim for one in records if is_believed(one.key, one.value, signer)]
    if believed and newest not in (None, _newest(believed, by_term=signer is not None).run_id):
        return None
    if signer is not None:
        term = max([now_ms, 1, *(known.term + 1 for known in believed)])
    while True:
        claim = Claim(
            flow.name, run_id, slots, own_host(), term,
            place=own_place(), file=file, content=content,
            session_ms=flow.session_ms, time_ms=now_ms,
        )  # fmt: skip
        record = (COMMAND_PARTITION, *encode_claim(claim, signer))
        target.produce_many(control_topic(flow), [record])
        known = slots_ever(target, flow)
        if known <= slots:
            break
        slots = known  # an earlier run had more slots; its ids must be fenced too
    if flow.exactly_once:
        fence_slots(flow, slots, patience_s=_patience_s(flow))
    return term


def slots_ever(target: Cluster, flow: FlowSettings) -> int:
    """The largest number of slots in any claim in the control topic.

    Claims without a valid signature count too: runs from before the secret was set signed none.
    """
    return _most_slots(_claims(target, flow))


def _newest(claims: Sequence[Claim], *, by_term: bool) -> Claim:
    """The valid claim, by the rule of `contest.Contest`: the last one, or with terms the one with
    the greatest term, so that a copy of an earlier claim changes nothing.
    """
    return max(reversed(claims), key=lambda claim: claim.term) if by_term else claims[-1]


class _Record(NamedTuple):
    claim: Claim
    key: bytes | None
    value: bytes | None


def _most_slots(records: Iterable[_Record]) -> int:
    return max((one.claim.slots for one in records), default=0)


def _claims(target: Cluster, flow: FlowSettings) -> list[_Record]:
    """The claims of ``flow`` in the control topic, in the topic's order."""
    records = target.read_compacted(
        control_topic(flow), partitions=[COMMAND_PARTITION], passes=True
    )
    found = []
    for _, key, value in records:
        claim = decode_claim(key, value)
        if claim is not None and claim.flow == flow.name:
            found.append(_Record(claim, key, value))
    return found


def _refuse_other_secret(target: Cluster, flow: FlowSettings, newest: _Record, now_ms: int) -> None:
    """Raise `ClusterError` if a running mirror has signed the newest claim with another secret.

    It would not accept our claim, so both would write the flow.
    """
    signer, claim = claim_signer(flow), newest.claim
    if not is_signed(newest.value) or (
        signer is not None and is_believed(newest.key, newest.value, signer)
    ):
        return
    if claim.run_id in observe_status(target, flow, now_ms).runs:
        raise other_secret(flow, claim)


def other_secret(flow: FlowSettings, claim: Claim) -> ClusterError:
    """The error for a mirror that finds ``claim`` signed with a secret that it does not have."""
    ours = "has another one" if flow.control_secret else "has none"
    return ClusterError(
        f"a sparkmirror (run {claim.run_id}, host {claim.host or 'unknown'}) runs this flow "
        f"and has signed its claim with a {_SECRET_KEY}; this one {ours}: both would write the "
        "flow.",
        where=f"flow {flow.name}",
        do=f"Stop the other mirror, or give both the same {_SECRET_KEY}.",
    )


def _check_room(target: Cluster, flow: FlowSettings) -> None:
    """Raise `TopicError` if an internal topic in the transactions is too small for their markers.

    The first transaction with such a topic could never end.
    """
    names = [gaps_topic(flow)]
    if flow.offset_syncs.enabled and flow.offset_syncs.location == "target":
        names += [offset_syncs_topic(flow), runs_topic(flow)]
    for name, configs in target.topic_configs(names).items():
        if isinstance(configs, MirrorError):
            continue  # not created yet, or its configs may not be read
        limit = configs[_SIZE_KEY].value if _SIZE_KEY in configs else None
        if limit is not None and int(limit) < _MARKER_BYTES:
            raise TopicError(
                f"the topic accepts batches of at most {limit} bytes ({_SIZE_KEY}), but the marker "
                f"that ends a transaction has {_MARKER_BYTES}: a transaction with offset syncs or "
                "gap records could never end.",
                where=f"cluster {target.alias}, topic {name}",
                do=f"Remove {_SIZE_KEY} from the topic's configs, or leave exactly-once out.",
            )


def _check(flow: FlowSettings) -> None:
    """Try an empty transaction: it needs all permissions except those on the topics.

    Its transactional id belongs to no slot, so it fences no producer.
    """
    connections = ClusterConnections(flow.target)
    transactions = Transactions(
        connections,
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
        connections.close()


def _patience_s(flow: FlowSettings) -> float:
    return flow.target.request_timeout_ms / 1000
