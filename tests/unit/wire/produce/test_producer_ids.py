"""Where a producer's id comes from, and what counts as an error on the way."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.errors import PartitionError, TransactionError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, ProduceSettings
from sparkmirror.wire.produce.partition_queue import PartitionQueue
from sparkmirror.wire.produce.producer import Producer

LOADING, UNAVAILABLE, DENIED = 14, 15, 31


class Cluster:
    """A cluster that answers the requests for a producer id with ``codes``, then gives one."""

    client = ClusterClient("T", ("t:9092",), "test", retry_backoff_ms=1)
    idle = SimpleNamespace(using=lambda _: nullcontext(), close_old=lambda *_: None)

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def any_connection(self) -> Any:
        return self

    def request(self, _message: object, *, highest: int) -> SimpleNamespace:
        assert highest == 1
        code = self._codes.pop(0) if self._codes else 0
        return SimpleNamespace(error_code=code, producer_id=7, producer_epoch=0)

    def close(self) -> None:
        pass


def producer(*codes: int) -> Producer:
    connections: Any = Cluster(*codes)
    return Producer(connections, ProduceSettings())


def test_a_cluster_that_has_just_started_is_no_error() -> None:
    waits = producer(LOADING, LOADING)
    assert waits.ids.identify(2.0) == (7, 0)
    assert waits.backlog.errors == {}


def test_what_is_tried_again_is_counted() -> None:
    tried = producer(UNAVAILABLE)
    assert tried.ids.identify(2.0) == (7, 0)
    assert tried.backlog.errors == {"COORDINATOR_NOT_AVAILABLE": 1}


def test_without_the_permission_it_is_named() -> None:
    with pytest.raises(PartitionError, match="IdempotentWrite"):
        producer(DENIED).ids.identify()


def test_a_transaction_has_no_second_producer_id() -> None:
    """Records under another one would belong to no transaction."""
    connections: Any = Cluster()
    transactions: Any = SimpleNamespace(identity=(9, 0), transactional_id="id", timeout_ms=60_000)
    ids = Producer(connections, ProduceSettings(), transactions=transactions).ids
    state = PartitionQueue(TopicPartition("t", 0), transactional=True)
    assert ids.assign(state)
    state.drop()
    with pytest.raises(TransactionError, match="new producer id"):
        ids.assign(state)
    assert ids.identity == (9, 0)
