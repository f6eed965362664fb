"""Producer ids of one producer: requested from the cluster, and given to its partitions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kafka.protocol.producer.transaction import InitProducerIdRequest

from sparkmirror.errors import ClusterError, PartitionError, TransactionError
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    RETRIABLE,
    error_name,
)
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.partition_queue import NO_IDENTITY, Identity, PartitionQueue

log = logging.getLogger(__name__)


class ProducerIds:
    """The producer ids of one producer, one after the other.

    ``identity``: the newest one (id, epoch); None until one is requested; `NO_IDENTITY` without
    idempotence. ``transactional``: it is that of the producer's transactions, and the only one.
    ``count`` counts an error by its name. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        connections: ClusterConnections,
        identity: Identity | None,
        *,
        count: Callable[[str], None],
        transactional: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self._connections = connections
        self._count = count
        self._transactional = transactional
        self._clock = clock
        self._request_at = 0.0

    def identify(self, patience_s: float = 0.0) -> Identity | None:
        """The producer id for partitions that begin now, requested if needed.

        None without idempotence, or when the cluster assigned none within ``patience_s``. Raises
        `PartitionError` when it refuses one.
        """
        deadline = self._clock() + patience_s
        while self.identity is None:
            self.identity = self._request()
            if self.identity is None:
                if self._clock() >= deadline:
                    break
                time.sleep(self._connections.client.retry_backoff_ms / 1000)
        return None if self.identity == NO_IDENTITY else self.identity

    def assign(self, state: PartitionQueue) -> bool:
        """Whether ``state`` has a producer id to send under; assigns one if possible.

        Raises `TransactionError` if a transaction cannot continue without another one.
        """
        if state.identity is not None and not state.renew:
            state.renumber()
            return True
        used_up = None if state.identity == NO_IDENTITY else state.identity
        if self.identity in (None, used_up):
            self.identity = self._request() or self.identity
        if self.identity is None or self.identity == used_up:
            return False
        state.adopt(self.identity)
        return True

    def _request(self) -> Identity | None:
        """A producer id from the cluster; None when it cannot assign one now."""
        if self._transactional:
            # Batches under another id would belong to no transaction, and may never be visible.
            raise TransactionError(
                "a partition needs a new producer id within a transaction.",
                where=f"cluster {self._connections.client.alias}",
            )
        if self._clock() < self._request_at:
            return None
        self._request_at = self._clock() + self._connections.client.retry_backoff_ms / 1000
        try:
            connection = self._connections.any_connection()
        except ClusterError as error:
            log.warning("%s", error)
            return None
        try:
            with self._connections.idle.using(connection):
                response = connection.request(
                    InitProducerIdRequest(
                        transactional_id=None,
                        transaction_timeout_ms=60_000,
                        producer_id=-1,
                        producer_epoch=-1,
                    ),
                    highest=1,
                )
        except ConnectionLost as error:
            log.warning("producer id from cluster %s: %s", self._connections.client.alias, error)
            return None
        if response.error_code:
            self._connections.idle.close_old(0.0)  # the retry may succeed at another broker
            name = error_name(response.error_code)
            # A cluster that has just started assigns ids a moment later: this is no failure.
            if response.error_code != COORDINATOR_LOAD_IN_PROGRESS:
                self._count(name)
            if response.error_code not in RETRIABLE:
                raise PartitionError(
                    f"the target refuses a producer id ({name}).",
                    where=f"cluster {self._connections.client.alias}",
                    do=grant(
                        self._connections.client,
                        Right("IdempotentWrite", "Cluster", note="(or Write on a topic)"),
                    ),
                )
            return None
        return (response.producer_id, response.producer_epoch)
