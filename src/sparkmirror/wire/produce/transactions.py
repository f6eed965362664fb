"""Transactions on one cluster: fencing, partitions and offsets, commit and abort (KIP-98).

A transactional id has one writer at a time: `Transactions.fence` aborts the open transaction of an
earlier writer, and the cluster refuses what that writer still sends. Partitions are added before
the first batch for them is produced. Committed offsets are part of a transaction, as records are.

What errors mean:

* a retriable error (a coordinator moves or loads, an earlier transaction is still ending) is
  retried, for ``patience_s`` at most; then it is `Unreachable`;
* `Fenced`: another writer has the transactional id;
* `TooSlow`: the transaction was open longer than its timeout, and the cluster aborted it;
* `Denied`: a permission is missing; ``do`` names it;
* any other error is a `TransactionError`.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kafka.protocol.consumer.group import OffsetFetchRequest
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from sparkmirror.errors import (
    ClusterError,
    Denied,
    Fenced,
    TooSlow,
    TransactionError,
    Unreachable,
    Unsupported,
)
from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import (
    CONCURRENT_TRANSACTIONS,
    FENCED,
    RETRIABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_name,
)
from sparkmirror.wire.cluster.messages import (
    GROUP,
    TRANSACTION,
    commit_portions,
    find_coordinator_request,
)
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.produce.partition_queue import NO_IDENTITY, Identity
from sparkmirror.wire.produce.waiting import connected, request

__all__ = ["Transactions"]

log = logging.getLogger(__name__)

_OPERATION_NOT_ATTEMPTED = 55
_UNKNOWN_TRANSACTION = frozenset({48, 49})  # INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING
_TIMEOUT_TOO_LONG = 50
# The end of a transactional id: the number of a slot, and a suffix such as ``-check``.
_SLOT = re.compile(r"\d+(-[a-z]+)?$")
_TRANSACTIONAL_ID_DENIED, _GROUP_DENIED, _TOPIC_DENIED = 53, 30, 29
_WRONG_COORDINATOR = frozenset({15, 16})
# OffsetFetch with require_stable (KIP-447), from 2.5 on: it waits for a transaction that still
# ends and may change the offset.
_STABLE_FETCH_VERSION = 7
# The coordinator completes a transaction some milliseconds after it responded.
_QUICK_S = 0.002
_LOG_S = 30.0
# How long a topic that the cluster does not know may be one that it does not know yet.
_UNKNOWN_S = 10.0


class Transactions:
    """The transactions of one transactional id, one after the other. One owner, no threads.

    ``timeout_ms``: the cluster aborts a transaction that is open longer. ``identity``: producer id
    and epoch of its batches. ``members``: partitions of the open transaction. ``errors``: number
    of retriable errors by name, without CONCURRENT_TRANSACTIONS. ``patience_s``: how long they are
    retried. ``sleep`` is called with the seconds of each pause, and with 0 while a broker does not
    respond; its errors end the request. Requests raise `ClusterError`; the module says which.
    """

    def __init__(
        self,
        connections: ClusterConnections,
        transactional_id: str,
        *,
        timeout_ms: int,
        identity: Identity = NO_IDENTITY,
        patience_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.connections = connections
        self.transactional_id = transactional_id
        self.identity = identity
        self.members: set[TopicPartition] = set()
        self._refused_topic = ""
        self.began_at: float | None = None
        """When the open transaction's first partition or offset was requested, in seconds of
        ``clock``.

        The cluster counts from its first response on, and that response may have been lost.
        """
        self.errors: dict[str, int] = {}
        self.timeout_ms = timeout_ms
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep
        self._by_key: dict[tuple[int, str], Connection] = {}

    @property
    def began(self) -> bool:
        """Whether a transaction is open, as far as known: it has partitions or offsets."""
        return self.began_at is not None

    def _begin(self, asked_at: float) -> None:
        if self.began_at is None:
            self.began_at = asked_at

    # -- fencing ---------------------------------------------------------------------------

    def fence(self) -> Identity:
        """Become the only writer of the transactional id; returns (producer id, epoch).

        Aborts an open transaction of another writer. When this returns, every earlier transaction
        of the id is committed or aborted.
        """
        message = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        found: Identity = NO_IDENTITY

        def query() -> int:
            nonlocal found
            response = self._query(TRANSACTION, self.transactional_id, message, highest=4)
            found = (response.producer_id, response.producer_epoch)
            return int(response.error_code)

        self._surely(query, "no producer id")
        self.identity, self.members, self.began_at = found, set(), None
        return found

    def check_brokers(self) -> None:
        """Raise `Unsupported` unless the brokers have every API that exactly-once needs."""
        connection = self.connections.any_connection()
        try:
            for request, lowest in (
                (InitProducerIdRequest, 0),
                (AddPartitionsToTxnRequest, 0),
                (AddOffsetsToTxnRequest, 0),
                (TxnOffsetCommitRequest, 0),
                (EndTxnRequest, 0),
                (OffsetFetchRequest, _STABLE_FETCH_VERSION),
            ):
                low, high = connection.api_versions.get(request.API_KEY, (0, -1))
                if max(low, lowest) > high:
                    raise Unsupported(
                        "exactly-once needs brokers from 2.5 on: this one has "
                        + ("no transactions." if high < 0 else "no stable offsets (KIP-447)."),
                        where=f"cluster {self.connections.client.alias}",
                        do="Upgrade the target, or turn exactly-once off: delivery is then "
                        "at-least-once.",
                    )
        finally:
            connection.close()

    # -- partitions and offsets ------------------------------------------------------------

    def add(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Add partitions to the open transaction, or begin one with them.

        Returns the error code of each partition that cannot be added; the others are added.
        """
        wanted = [tp for tp in partitions if tp not in self.members]
        refused: dict[TopicPartition, int] = {}
        while wanted:
            codes = self._add(wanted)
            refused |= codes
            wanted = [tp for tp in wanted if tp not in refused and tp not in self.members]
        return refused

    def _add(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        request_topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        producer_id, epoch = self.identity
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                request_topic(name=name, partitions=numbers)
                for name, numbers in _by_topic(wanted).items()
            ],
        )
        refused: dict[TopicPartition, int] = {}
        asked_at = self._clock()

        def query() -> int:
            response = self._query(TRANSACTION, self.transactional_id, message, highest=3)
            codes = {
                TopicPartition(topic.name, part.partition_index): part.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            }
            failed = {tp: c for tp, c in codes.items() if c and c != _OPERATION_NOT_ATTEMPTED}
            # These errors concern one topic (unknown, denied, invalid); others concern all.
            own = {tp: c for tp, c in failed.items() if c in (3, _TOPIC_DENIED, 17)}
            rest = [c for tp, c in failed.items() if tp not in own]
            if rest:
                return int(rest[0])
            refused.update(own)
            if not failed:
                self.members.update(codes)
                self._begin(asked_at)
            return 0

        self._surely(query, "partitions cannot be added to the transaction")
        return refused

    def add_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        unknown: Collection[TopicPartition] = (),
    ) -> set[TopicPartition]:
        """Make offsets of ``group``, as (offset, metadata), part of the transaction.

        Returns the partitions whose offsets are not part of it, because the cluster does not know
        their topics. It may only not know them yet, so the request is made again for some seconds;
        not for those in ``unknown``.
        """
        self.join_group(group)
        gone: set[TopicPartition] = set()
        # For all portions together: the transaction has a timeout.
        patient_until = self._clock() + min(_UNKNOWN_S, self.timeout_ms / 2_000)
        for portion in commit_portions(group, offsets):
            gone |= self._add_portion(group, portion, unknown, patient_until)
        return gone

    def _add_portion(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        unknown: Collection[TopicPartition],
        patient_until: float,
    ) -> set[TopicPartition]:
        producer_id, epoch = self.identity
        request_topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        request_partition = request_topic.TxnOffsetCommitRequestPartition
        message = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                request_topic(
                    name=name,
                    partitions=[
                        request_partition(
                            partition_index=number,
                            committed_offset=offsets[TopicPartition(name, number)][0],
                            committed_leader_epoch=-1,
                            committed_metadata=offsets[TopicPartition(name, number)][1],
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in _by_topic(offsets).items()
            ],
        )

        def query() -> int:
            response = self._query(GROUP, group, message, highest=3)
            rows = [
                (int(part.error_code), topic.name, part.partition_index)
                for topic in response.topics
                for part in topic.partitions
                if part.error_code
            ]
            gone.clear()
            gone.update(
                TopicPartition(name, number)
                for code, name, number in rows
                if code == UNKNOWN_TOPIC_OR_PARTITION
            )
            # All other errors concern all of the partitions that the cluster knows.
            others = [row for row in rows if row[0] != UNKNOWN_TOPIC_OR_PARTITION]
            if others:
                code, self._refused_topic, _ = min(others)
                return code
            new = not gone.issubset(unknown)
            return UNKNOWN_TOPIC_OR_PARTITION if new and self._clock() < patient_until else 0

        gone: set[TopicPartition] = set()
        what = f"positions of group {group} cannot be added to the transaction"
        self._surely(query, what, group=group)
        return gone

    def join_group(self, group: str) -> None:
        """Make the offsets of ``group`` a part of the transaction; begins one if none is open."""
        producer_id, epoch = self.identity
        message = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
        )
        asked_at = self._clock()

        def query() -> int:
            response = self._query(TRANSACTION, self.transactional_id, message, highest=3)
            return int(response.error_code)

        self._surely(query, f"group {group} cannot be added to the transaction", group=group)
        self._begin(asked_at)

    # -- commit and abort ------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the open transaction: everything in it becomes visible."""
        self._end(committed=True)

    def abort(self) -> None:
        """Abort the open transaction: nothing in it ever becomes visible."""
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        producer_id, epoch = self.identity
        message = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )

        def query() -> int:
            response = self._query(TRANSACTION, self.transactional_id, message, highest=3)
            return int(response.error_code)

        self._surely(query, "the transaction cannot be ended")
        self.members.clear()
        self.began_at = None

    # -- requests --------------------------------------------------------------------------

    def _surely(self, query: Callable[[], int], what: str, *, group: str = "") -> None:
        """Retry ``query`` until it returns 0. Raises the error of a code that is not retriable."""
        client = self.connections.client
        began = told_at = self._clock()
        pause_s = _QUICK_S
        while True:
            try:
                code = query()
                if code == 0:
                    return
                failure = name = error_name(code)
            except (Unsupported, Denied, Fenced, TransactionError):
                raise
            except (ConnectionLost, ClusterError) as error:
                code, name, failure = 15, "CONNECTION_LOST", str(error)
            if code not in RETRIABLE:
                raise self._refusal(code, what, group)
            if code != CONCURRENT_TRANSACTIONS:
                self.errors[name] = self.errors.get(name, 0) + 1
            if code in _WRONG_COORDINATOR:
                self._forget_connections()
            now = self._clock()
            if now - began > self._patience_s:
                raise Unreachable(
                    f"{what}: no answer in {self._patience_s:g} s ({failure}).",
                    where=f"cluster {client.alias}",
                )
            if now - told_at >= _LOG_S:
                told_at = now
                log.warning("cluster %s: %s at present: %s", client.alias, what, failure)
            self._sleep(pause_s)
            pause_s = min(
                pause_s * 2,
                (20 if code == CONCURRENT_TRANSACTIONS else client.retry_backoff_ms_max) / 1000,
            )

    def _refusal(self, code: int, what: str, group: str) -> ClusterError:
        name, alias = error_name(code), self.connections.client.alias
        where = f"cluster {alias}"
        if code in FENCED:
            return self.ended(f"{what} ({name})", code)
        needs = {
            # All slots of the flow need it; their ids differ only in the number at the end.
            _TRANSACTIONAL_ID_DENIED: Right(
                "Write",
                "TransactionalId",
                _SLOT.sub("", self.transactional_id),
                prefixed=True,
            ),
            _GROUP_DENIED: Right("Read", "Group", group),
            _TOPIC_DENIED: Right("Read", "Topic", self._refused_topic),
            31: Right("IdempotentWrite", "Cluster"),
        }.get(code)
        if needs is not None:
            return Denied(
                f"{what} ({name}).", where=where, do=grant(self.connections.client, needs)
            )
        do = ""
        if code == _TIMEOUT_TOO_LONG:
            do = (
                f"Set {alias}.producer.transaction.timeout.ms to the brokers' "
                "transaction.max.timeout.ms or less."
            )
        return TransactionError(f"{what} ({name}).", where=where, do=do)

    def ended(self, what: str, code: int) -> ClusterError:
        """`TooSlow` or `Fenced`, for an open transaction that the cluster no longer accepts.

        In both cases the cluster has raised the producer epoch. The age of the transaction tells
        them apart. ``code``: the error of the response. If it says that the cluster does not know
        the transaction, an unclean election may have removed it, and nobody has taken over.
        """
        alias = self.connections.client.alias
        open_s = 0.0 if self.began_at is None else self._clock() - self.began_at
        if open_s * 1000 >= self.timeout_ms:
            return TooSlow(
                f"{what}: the transaction was open for {open_s:.0f} s, longer than "
                f"transaction.timeout.ms ({self.timeout_ms} ms), and was aborted. Its records are "
                "written again, in smaller transactions.",
                where=f"cluster {alias}",
                do=f"If this happens again, raise {alias}.producer.transaction.timeout.ms, or find "
                "out why the cluster writes so slowly.",
            )
        reason = f"another writer has taken over {self.transactional_id}"
        if code in _UNKNOWN_TRANSACTION:
            reason = (
                f"the cluster has no open transaction of {self.transactional_id}: another writer "
                "has ended it, or an unclean leader election has removed it"
            )
        return Fenced(f"{what}: {reason}.", where=f"cluster {alias}")

    def _query(self, kind: int, key: str, message: Any, *, highest: int) -> Any:
        connection = self._by_key.get((kind, key))
        if connection is None:
            connection = self._by_key[kind, key] = self._find(kind, key)
        try:
            return request(connection, message, highest=highest, meanwhile=self._meanwhile)
        except BaseException:  # the response may still come
            self._by_key.pop((kind, key), None)
            connection.close()
            raise

    def _meanwhile(self) -> None:
        self._sleep(0.0)

    def _find(self, kind: int, key: str) -> Connection:
        connections = self.connections
        asked = connected(connections.opening(), self._meanwhile)
        with connections.idle.using(asked):  # closed after an error: the next may be another
            message = find_coordinator_request(key, kind)
            response = request(asked, message, highest=3, meanwhile=self._meanwhile)
            code = int(response.error_code)
            if code in RETRIABLE:
                raise ConnectionLost(f"no coordinator of {key} ({error_name(code)})")
            if code:
                group = key if kind == GROUP else ""
                raise self._refusal(code, f"the coordinator of {key} cannot be looked up", group)
        address = response.host, response.port
        found = connected(connections.opening(address), self._meanwhile)
        found.socket.settimeout(connections.client.request_timeout_ms / 1000)  # it may be idle
        return found

    def _forget_connections(self) -> None:
        for connection in self._by_key.values():
            connection.close()
        self._by_key.clear()

    def release(self) -> None:
        """Leave the connections to other requests of the same `ClusterConnections`."""
        for connection in self._by_key.values():
            self.connections.idle.keep(connection)
        self._by_key.clear()

    def close(self) -> None:
        """Close the connections. An open transaction stays open until its timeout."""
        self._forget_connections()


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in sorted(partitions):
        topics[tp.topic].append(tp.partition)
    return topics
