"""A sink that asks the driver for topics, and waits for the answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.data.rows.notes import Owner, SlotHello
from sparkmirror.data.write import topic_requests
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.data.write.topic_requests import TopicRequests
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.routed_topics import (
    NAMES_ASKED_MAX,
    RoutedTopics,
    TopicRequest,
    decode_request,
)
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import decode_records
from sparkmirror.settings import ClusterClient, FlowSettings

A, B = (ClusterClient(alias, (f"{alias}:1",), "c") for alias in "AB")
FLOW = FlowSettings(A, B, A, B, routed_topics_max=7)
HELLO = SlotHello(2, 1, "A->B", "run", 5, owner=Owner("run", 40, 1))

Answer = Callable[[TopicRequest], RoutedTopics | None]


class Bench:
    """A sink whose driver answers with ``answer`` in the round after the request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
        self.now_s = 100.0
        self.rounds = 0
        self.asked: list[TopicRequest] = []
        self.started: list[object] = []
        bench = self

        class Watch:
            routed: RoutedTopics | None = None

            def __init__(self, _flow: FlowSettings, run_id: str, *, offset: int | None) -> None:
                bench.started.append((run_id, offset))

            def start(self, _timeout_s: float) -> None:
                pass

            def read_to_end(self) -> bool:
                if bench.rounds > 1 and bench.asked:
                    self.routed = answer(bench.asked[-1]) or self.routed
                return True

            def close(self) -> None:
                bench.started.append("closed")

        monkeypatch.setattr(topic_requests, "ControlWatch", Watch)

        def append_beside(tp: TopicPartition, batch: memoryview, token: object) -> None:
            assert (tp, token) == (TopicPartition("mm2-sparkmirror.A.internal", 1), None)
            (record,) = decode_records(batch)
            request = decode_request(record.key, record.value)
            assert request is not None
            bench.asked.append(request)

        def rest(seconds: float) -> None:
            bench.now_s += seconds

        task = SimpleNamespace(flow=FLOW, append_beside=append_beside, rest=rest)
        self.requests = TopicRequests(cast(SinkTask, task), self._round, lambda: self.now_s)
        self.requests.begin(HELLO)

    def _round(self) -> None:
        self.rounds += 1


def _made(request: TopicRequest, **more: Any) -> RoutedTopics:
    return RoutedTopics(
        "A->B", "run", more.pop("created", request.names), answered={2: request.number}, **more
    )


def test_it_asks_and_goes_on_when_the_answer_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, _made)
    assert bench.requests.ask("orders", ["eu", "us"]) == {}
    (request,) = bench.asked
    assert (request.flow, request.run_id, request.slot) == ("A->B", "run", 2)
    assert (request.topic, request.names) == ("orders", ("eu", "us"))
    assert bench.rounds == 2
    assert bench.now_s < 100.1
    bench.requests.ask("orders", ["x"])
    assert bench.asked[1].number > request.number
    assert bench.started == [("run", 40)], "it follows the control topic from the slot's start"
    bench.requests.close()
    assert bench.started[1:] == ["closed"]


def test_an_answer_to_others_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: TopicRequest) -> RoutedTopics:
        return RoutedTopics("A->B", "run", answered={2: request.number - 1, 1: request.number + 1})

    bench = Bench(monkeypatch, answer)
    with pytest.raises(Unreachable, match="'eu' is missing, and the mirror's driver has not answ"):
        bench.requests.ask("orders", ["eu"])
    assert 105 <= bench.now_s < 106
    with pytest.raises(Unreachable):  # a slot must not wait again for each partition
        bench.requests.ask("orders", ["us"])
    assert len(bench.asked) == 1
    bench.now_s += 31
    with pytest.raises(Unreachable):
        bench.requests.ask("orders", ["us"])
    assert len(bench.asked) == 2


def test_a_refusal_holds_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"us": "no permission"}
    bench = Bench(monkeypatch, lambda request: _made(request, created=("eu",), refused=refused))
    assert bench.requests.ask("orders", ["eu", "us"]) == refused
    assert bench.requests.ask("orders", ["us"]) == refused
    assert len(bench.asked) == 1
    bench.now_s += 31
    refused.clear()
    assert bench.requests.ask("orders", ["us"]) == {}
    assert len(bench.asked) == 2


def test_when_no_more_are_allowed_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda request: _made(request, created=("eu",), full=True))
    why = "sparkmirror.routing.create.topics.max=7 allows no more topics"
    assert bench.requests.ask("orders", ["eu", "us"]) == {"us": why}
    names = [f"t{number}" for number in range(1_000)]
    assert bench.requests.ask("orders", names) == dict.fromkeys(names, why)
    assert len(bench.asked) == 1


def test_many_names_take_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, _made)
    names = [f"t{number}" for number in range(2 * NAMES_ASKED_MAX + 1)]
    assert bench.requests.ask("orders", names) == {}
    assert [len(one.names) for one in bench.asked] == [NAMES_ASKED_MAX, NAMES_ASKED_MAX, 1]
