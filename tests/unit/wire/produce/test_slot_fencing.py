"""Fencing all slots of a flow: several at a time, over connections that are kept."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.errors import Denied, MirrorError
from sparkmirror.internal_topics.flow_claims import transactional_id
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.produce import slot_fencing
from sparkmirror.wire.produce.transactions import Transactions
from tests.unit.config_files import BASE, load_flow


@pytest.fixture
def flow(tmp_path: Path) -> FlowSettings:
    return load_flow(tmp_path, BASE)


class Cluster:
    """Answers `fence`; notes how many are fenced at a time, and over how many connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fenced: list[str] = []
        self.opened = 0
        self.at_once = self.at_once_max = 0
        self.together = threading.Barrier(slot_fencing._FENCED_AT_ONCE, timeout=10)
        self.lock = threading.Lock()
        self.refused = ""
        monkeypatch.setattr(slot_fencing, "ClusterConnections", self._connections)
        monkeypatch.setattr(Transactions, "_find", self._find)
        monkeypatch.setattr(Transactions, "_query", self._query)

    def _connections(self, client: Any) -> Any:
        kept: list[Any] = []
        idle = SimpleNamespace(keep=kept.append, kept=kept)
        return SimpleNamespace(client=client, idle=idle, close=lambda: None)

    def _find(self, _: int, __: str) -> Any:
        raise AssertionError("no request is sent")

    def _query(self, kind: int, key: str, message: Any, *, highest: int) -> Any:
        return self.answer(key)

    def answer(self, key: str) -> Any:
        with self.lock:
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
        if not self.fenced:
            self.together.wait()
        with self.lock:
            self.at_once -= 1
            self.fenced.append(key)
        code = 53 if key == self.refused else 0
        return SimpleNamespace(producer_id=len(key), producer_epoch=1, error_code=code)


def test_slots_are_fenced_several_at_a_time(
    flow: FlowSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, each barrier would time out."""
    cluster = Cluster(monkeypatch)
    found = slot_fencing.fence_slots(flow, 100)
    ids = [transactional_id(flow, slot) for slot in range(100)]
    assert sorted(cluster.fenced) == sorted(ids)
    assert found == [(len(one), 1) for one in ids], "in the order of the slots"
    assert cluster.at_once_max == slot_fencing._FENCED_AT_ONCE


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_a_flow_may_have_few_slots(
    flow: FlowSettings, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    cluster = Cluster(monkeypatch)
    cluster.together = threading.Barrier(max(1, slots), timeout=10)
    assert len(slot_fencing.fence_slots(flow, slots)) == slots


def test_a_slot_that_is_refused_ends_the_retries_of_the_others(
    flow: FlowSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those have no patience limit: without the end, the error would never be seen."""
    cluster = Cluster(monkeypatch)
    cluster.refused = transactional_id(flow, 5)
    answer = cluster.answer

    def busy(key: str) -> Any:
        found = answer(key)
        if key != cluster.refused:
            found.error_code = 51  # CONCURRENT_TRANSACTIONS
        return found

    monkeypatch.setattr(cluster, "answer", busy)
    raised: list[MirrorError] = []

    def body() -> None:
        with pytest.raises(Denied) as caught:
            slot_fencing.fence_slots(flow, 8)
        raised.append(caught.value)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(20)
    assert raised


def test_connections_are_left_to_the_next_slot(flow: FlowSettings) -> None:
    kept: list[Any] = []
    connections: Any = SimpleNamespace(client=flow.target, idle=SimpleNamespace(keep=kept.append))
    one = Transactions(connections, "id", timeout_ms=1000)
    connection: Any = object()
    one._by_key[1, "id"] = connection
    one.release()
    one.close()
    assert kept == [connection]
