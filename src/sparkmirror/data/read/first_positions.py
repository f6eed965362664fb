"""Where partitions without a position begin: ``auto.offset.reset``, resolved by their leaders."""

from __future__ import annotations

import logging
import time

from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import LATEST, reset_time_ms
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import LEADER_NOT_AVAILABLE, error_name
from sparkmirror.wire.fetch.fetcher import Fetcher

__all__ = ["NO_POSITION", "first_positions"]

log = logging.getLogger(__name__)

NO_POSITION = "NO_POSITION"
# How long an election may delay the slot's other partitions, which wait for first positions.
_ELECTION_S = 2.0


def first_positions(
    flow: FlowSettings, fetcher: Fetcher, missing: list[TopicPartition], *, stable: bool
) -> dict[TopicPartition, int]:
    """The source offsets at which ``missing`` begin; the others are halted in ``fetcher``.

    ``stable``: a log ends at its last stable offset, not at its high watermark.
    """
    reset = flow.fetch.auto_offset_reset
    if reset == "none":
        for tp in missing:
            fetcher.assign(tp, -1)
            fetcher.halt(tp, Halt(NO_POSITION, _no_position(tp)))
        return {}
    timestamp = reset_time_ms(reset, int(time.time() * 1000))
    connections = fetcher.connections
    found: dict[TopicPartition, int] = {}
    began, patience_s = time.monotonic(), flow.source.request_timeout_ms / 1000
    while len(found) < len(missing) and time.monotonic() - began < patience_s:
        connections.refresh_if_due()
        rest = [tp for tp in missing if tp not in found]
        found |= _offsets_at(connections, rest, timestamp, stable=stable)
        if len(found) < len(missing):
            if all(tp in found or tp in connections.leaderless for tp in missing):
                patience_s = min(patience_s, _ELECTION_S)  # all other partitions wait for this
            for tp in missing:
                if tp not in found:
                    connections.mark_stale(tp)
            time.sleep(flow.source.retry_backoff_ms / 1000)
    for tp in missing:
        if tp not in found:
            _leave_to_next_epoch(flow, fetcher, tp)
    return found


def _offsets_at(
    connections: ClusterConnections, wanted: list[TopicPartition], time_ms: int, *, stable: bool
) -> dict[TopicPartition, int]:
    """Offsets at ``time_ms``, or log ends if no record is so new; missing: no leader responds."""
    if time_ms < 0:  # the beginning, or the end
        return connections.list_offsets(wanted, time_ms, read_committed=stable)
    # Ends first: a record that is written between the two would not be mirrored.
    ends = connections.list_offsets(wanted, LATEST, read_committed=stable)
    found = connections.list_offsets(wanted, time_ms, read_committed=stable)
    return {
        tp: offset if offset >= 0 else ends[tp]
        for tp, offset in found.items()
        if offset >= 0 or tp in ends
    }


def _leave_to_next_epoch(flow: FlowSettings, fetcher: Fetcher, tp: TopicPartition) -> None:
    """Halt ``tp``, which has no leader: positions are chosen only before an epoch's first row."""
    log.warning("flow %s: no leader of %s responds yet", flow.name, tp)
    code = error_name(fetcher.connections.leaderless.get(tp, LEADER_NOT_AVAILABLE))
    reason = f"the source has no leader for {tp}; retrying in the next epoch, within minutes"
    fetcher.assign(tp, -1)
    fetcher.halt(tp, Halt(code, reason, retriable=True))
    # Not in this epoch: without a position, a new one begins (`control.flows.renewal`).
    fetcher.retry_later(tp, 2.0 * flow.epoch_s)


def _no_position(tp: TopicPartition) -> str:
    return (
        f"no position is known for {tp}, and auto.offset.reset=none does not choose one: set it to "
        "earliest or latest"
    )
