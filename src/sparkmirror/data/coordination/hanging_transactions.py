"""Closes hanging transactions in a partition before an exactly-once slot writes there.

`wire.produce.hanging_transactions` says how records can stay open after their transaction has
ended. A writer that appends after them makes them part of its own transaction: aborted records
would count and arrive twice, or committed ones would be lost with the next abort. So they are
closed first, by a transaction that contains nothing else and ends as theirs did.

Only their own producer id can do that. A partition that moved to another slot may have records of
the slot before. The planner closes those while it has the ids of all slots (`close_all`), if the
partition has a leader then. Until that is done, the new slot does not write the partition.
For a partition that was added or moved within an epoch, nobody has done that. It may have been
mirrored before, by another slot, so the slot waits for any transaction that is open there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sparkmirror.errors import ClusterError, Defect
from sparkmirror.internal_topics.flow_claims import transactional_id
from sparkmirror.internal_topics.position_metadata import decode_metadata
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.cluster.error_codes import (
    CONCURRENT_TRANSACTIONS,
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_name,
)
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.hanging_transactions import (
    CommittedRecords,
    OpenTransaction,
    find_open_transactions,
)
from sparkmirror.wire.produce.partition_queue import Identity
from sparkmirror.wire.produce.transactions import Transactions

__all__ = ["HangingTransactions", "close_all", "written_before"]

log = logging.getLogger(__name__)

# How long to wait for metadata of partitions that were never requested, and then for their
# leaders. A marker arrives a few milliseconds after the coordinator's response.
_METADATA_S = 2.0
_LEADERS_S = 2.0
_PAUSE_S = 0.05

Found = Mapping[TopicPartition, Sequence[OpenTransaction]]
Find = Callable[[ClusterConnections, Collection[TopicPartition]], Found]


class HangingTransactions:
    """Which partitions one identity may write. ``transactions`` is that identity's."""

    def __init__(
        self,
        connections: ClusterConnections,
        transactions: Transactions,
        find: Find = find_open_transactions,
    ) -> None:
        self._connections = connections
        self._transactions = transactions
        self._find = find
        self._closed: dict[TopicPartition, int] = {}
        """Leader epoch at which nothing was open. In a later one, a marker may be missing."""
        self.foreign: dict[TopicPartition, OpenTransaction] = {}
        """Open records of the slot that had the partition before, as of the last check."""
        self._undecided: dict[TopicPartition, OpenTransaction] = {}
        """Open records of which nobody knows whether they were committed."""

    def unsure(self, tp: TopicPartition) -> bool:
        """Whether `close` must run before ``tp`` is written."""
        epoch = self._closed.get(tp)
        leader = self._connections.leaders.get(tp)
        return epoch is None or (leader is not None and leader.epoch != epoch)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Be `unsure` of ``partitions`` again."""
        for tp in partitions:
            self._closed.pop(tp, None)

    def unknown(self, tp: TopicPartition) -> Halt:
        """Why a partition that `close` has returned cannot be written yet."""
        foreign, undecided = self.foreign.get(tp), self._undecided.get(tp)
        if undecided is not None:
            code = CONCURRENT_TRANSACTIONS
            reason = (
                f"a hanging transaction of an earlier run (producer id {undecided.producer_id}) "
                f"has records in {tp} from target offset {undecided.offset} on, and no position "
                "says whether it was committed, because its records were routed by their content: "
                "read them as read_uncommitted, produce again what must not be missing, and end it "
                f"with kafka-transactions.sh abort --topic {tp.topic} --partition {tp.partition} "
                f"--start-offset {undecided.offset}"
            )
        elif foreign is not None:
            code = CONCURRENT_TRANSACTIONS
            reason = (
                f"a hanging transaction of another slot (producer id {foreign.producer_id}) has "
                f"records in {tp} from target offset {foreign.offset} on: the next epoch or start "
                "closes it"
            )
        else:
            code = LEADER_NOT_AVAILABLE
            if self._connections.reachable and self._connections.leaders.get(tp) is None:
                code = self._connections.leaderless.get(tp, UNKNOWN_TOPIC_OR_PARTITION)
            reason = f"no leader of {tp} reports whether transactions are open there"
        return Halt(error_name(code), f"{reason} ({error_name(code)})", retriable=True)

    def close(
        self,
        written: Mapping[TopicPartition, CommittedRecords | None],
        undecided: Collection[TopicPartition] = (),
        added: Collection[TopicPartition] = (),
    ) -> set[TopicPartition]:
        """Close what is open in the partitions ``written``.

        Returns those where something may still be open. ``written``: the newest committed records
        of each partition, None if there are none, or if the partition is ``undecided``: then it is
        not known. ``added``: partitions in which no other producer may have an open transaction,
        because the planner has not closed those of other slots. The identity may have no open
        transaction.
        """
        if self._transactions.began:
            raise Defect("the transaction before has not ended")
        left = set(written)
        self._connections.add_topics({tp.topic for tp in left})
        _find_leaders(self._connections, left)
        deadline = time.monotonic() + _LEADERS_S
        while any(self._connections.leaders.get(tp) is not None for tp in left):
            left -= self._find_open(left, written, undecided, added)
            if time.monotonic() > deadline:
                break
            if left:
                time.sleep(_PAUSE_S)
                self._connections.refresh_if_due()
        return left

    def _find_open(
        self,
        partitions: Collection[TopicPartition],
        written: Mapping[TopicPartition, CommittedRecords | None],
        undecided: Collection[TopicPartition],
        added: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """The partitions in which nothing is open; what is open elsewhere is being closed."""
        leaders = {tp: self._connections.leaders.get(tp) for tp in partitions}
        found = self._find(self._connections, [tp for tp in partitions if leaders[tp] is not None])
        own: dict[TopicPartition, OpenTransaction] = {}
        for tp, ends in found.items():
            self.foreign.pop(tp, None)
            self._undecided.pop(tp, None)
            before = written[tp]
            for end in ends:
                if end.producer_id == self._transactions.identity[0]:
                    (self._undecided if tp in undecided else own)[tp] = end
                elif tp in added or (before is not None and end.producer_id == before.producer_id):
                    self.foreign[tp] = end
        for counts in (True, False):
            mine = {tp: end for tp, end in own.items() if end.counts(written[tp]) == counts}
            if mine:
                self._end(mine, committed=counts)
        closed = set(found) - set(own) - set(self.foreign) - set(self._undecided)
        for tp in closed:
            leader = leaders[tp]
            if leader is None:
                raise Defect("a partition without a leader was closed")
            self._closed[tp] = leader.epoch
        for tp in set(partitions) - closed:
            self._connections.mark_stale(tp)
        return closed

    def _end(self, ends: Mapping[TopicPartition, OpenTransaction], *, committed: bool) -> None:
        # A partition joins only after the transaction before has ended; its markers are there then.
        refused = self._transactions.add(list(ends))
        again = self._find(self._connections, list(ends))
        told = sorted(
            f"{tp} from offset {end.offset} on" for tp, end in ends.items() if again.get(tp)
        )
        if told:
            log.warning(
                "cluster %s: the marker of a transaction that was %s is missing in %s: it is "
                "written now%s",
                self._connections.client.alias,
                "committed" if committed else "aborted",
                ", ".join(told),
                f", but not for {sorted(refused)}" if refused else "",
            )
        if self._transactions.began:
            if committed:
                self._transactions.commit()
            else:
                self._transactions.abort()


def close_all(
    flow: FlowSettings,
    identities: Sequence[Identity],
    partitions: Collection[TopicPartition],
    routed: Collection[TopicPartition] = (),
) -> bool:
    """Planner: close what any slot of the flow has open in the remote ``partitions``.

    ``identities``: those of all slots, in slot order; nobody else writes under them. ``routed``:
    those of the partitions whose positions may not know what is committed there; it is left to the
    slot that writes there again. Returns whether nothing else is open in any partition; False also
    if a leader did not respond.
    """
    connections = ClusterConnections(flow.target, {tp.topic for tp in partitions})
    coordinators = Coordinators(connections)
    try:
        _find_leaders(connections, partitions)
        ours = {producer_id for producer_id, _ in identities}
        answers = find_open_transactions(connections, partitions)
        found = {
            tp: mine
            for tp, ends in answers.items()
            if (mine := ours & {end.producer_id for end in ends})
        }
        complete = len(answers) == len(set(partitions))
        if not found:
            return complete
        positions = coordinators.positions(flow.position_group, found, stable=True)
        unknown = {
            tp
            for tp in found
            if tp in routed
            and (tp not in positions or written_before(positions[tp].metadata) is None)
        }
        found = {tp: mine for tp, mine in found.items() if tp not in unknown}
        for slot, identity in enumerate(identities):
            written = {
                tp: written_before(positions[tp].metadata) if tp in positions else None
                for tp, producers in found.items()
                if identity[0] in producers
            }
            if written:
                _close_slot(flow, connections, slot, identity, written)
        return complete and not any(
            ours & {end.producer_id for end in ends}
            for ends in find_open_transactions(connections, found).values()
        )
    except (ClusterError, ConnectionLost) as error:
        log.warning(
            "flow %s: transactions that slots left open cannot be closed now: %s", flow.name, error
        )
        return False
    finally:
        coordinators.close()


def written_before(metadata: str) -> CommittedRecords | None:
    """The newest committed records, as a position's metadata names them."""
    written = decode_metadata(metadata).written
    return None if written is None else CommittedRecords(*written)


def _close_slot(
    flow: FlowSettings,
    connections: ClusterConnections,
    slot: int,
    identity: Identity,
    written: Mapping[TopicPartition, CommittedRecords | None],
) -> None:
    transactions = Transactions(
        connections,
        transactional_id(flow, slot),
        timeout_ms=flow.transaction_timeout_ms,
        identity=identity,
    )
    try:
        HangingTransactions(connections, transactions).close(written)
    finally:
        transactions.close()


def _find_leaders(connections: ClusterConnections, partitions: Collection[TopicPartition]) -> None:
    """Wait a moment until each partition's leader is known, or that it has none."""
    deadline = time.monotonic() + _METADATA_S
    while True:
        connections.refresh_if_due()
        leaders, leaderless = connections.leaders, connections.leaderless
        if all(leaders.get(tp) is not None or tp in leaderless for tp in partitions):
            return
        if time.monotonic() > deadline:
            return
        connections.mark_stale()
        time.sleep(_PAUSE_S)
