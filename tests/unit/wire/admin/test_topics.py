"""Topics are created and grown in requests that a controller accepts, and again if it is busy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.errors import ClusterError, QuotaExceeded, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.admin.topics import alter_topic_configs, create_topics, grow_topics
from sparkmirror.wire.cluster.views import NewTopic

TIMED_OUT, EXISTS, INVALID_PARTITIONS, INVALID_CONFIG, QUOTA = 7, 36, 37, 40, 89
Asked = list[dict[str, int]]


class Controller:
    """A `Requester`. ``codes``: what it answers for a topic, one request after another; then 0.

    ``asked``: the topics of each request, with their partitions. ``now_s``: its clock; only pauses
    take time.
    """

    def __init__(self, codes: Mapping[str, list[int]] | None = None, throttle_ms: int = 0) -> None:
        self.client = ClusterClient("B", ("x:1",), "c", request_timeout_ms=30_000)
        self.codes = {name: list(found) for name, found in (codes or {}).items()}
        self.throttle_ms = throttle_ms
        self.asked: Asked = []
        self.pauses: list[float] = []
        self.now_s = 0.0
        self.closed = False

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now_s += seconds
        return not self.closed

    def request(self, make: Callable[[], Any], doing: str, **_: Any) -> Any:
        message = make()
        if doing == "altering topic configs":
            self.asked.append({one.resource_name: len(one.configs) for one in message.resources})
        elif "creat" in doing:
            self.asked.append({one.name: one.num_partitions for one in message.topics})
        else:
            self.asked.append({one.name: one.count for one in message.topics})
        rows = [
            SimpleNamespace(
                name=name, resource_name=name, error_message="",
                error_code=self.codes[name].pop(0) if self.codes.get(name) else 0,
            )
            for name in self.asked[-1]
        ]  # fmt: skip
        throttled = any(row.error_code == QUOTA for row in rows)
        kind = "topics" if "creat" in doing else "results"
        more = {kind: rows, "responses": rows}
        return SimpleNamespace(throttle_time_ms=self.throttle_ms * throttled, **more)

    def create(self, *topics: NewTopic, **options: Any) -> dict[str, Any]:
        return create_topics(cast(Requester, self), topics, **options)

    def grow(self, counts: Mapping[str, int], **options: Any) -> dict[str, Any]:
        return grow_topics(cast(Requester, self), counts, **options)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Controller]:
    def made(*arguments: Any) -> Controller:
        found = Controller(*arguments)
        monkeypatch.setattr("time.monotonic", lambda: found.now_s)
        return found

    return made


# --- how much one request asks for ----------------------------------------------------------------


def test_no_request_asks_for_more_than_a_controller_writes_at_once(controller: Any) -> None:
    """It refuses a whole request for more than 10,000 partitions, or records."""
    many = controller()
    wanted = [NewTopic(f"t{number}", 120) for number in range(150)]
    assert many.create(*wanted).keys() == {one.name for one in wanted}
    assert [sum(one.values()) for one in many.asked] == [74 * 120, 74 * 120, 2 * 120]
    configs = {f"c{number}": "1" for number in range(30)}
    many = controller()
    many.create(*(NewTopic(f"t{number}", 69, 3, configs) for number in range(100)))
    assert [len(one) for one in many.asked] == [90, 10]
    many = controller()
    many.create(NewTopic("a", 1), NewTopic("large", 20_000), NewTopic("z", 1))
    assert [list(one) for one in many.asked] == [["a"], ["large"], ["z"]]


def test_growing_and_altering_topics_are_cut_alike(controller: Any) -> None:
    many = controller()
    many.grow({f"t{number}": 100 for number in range(100)})
    assert [sum(one.values()) for one in many.asked] == [9_000, 1_000]
    many = controller()
    changes = {f"t{number}": {f"c{one}": "1" for one in range(60)} for number in range(200)}
    outcomes = alter_topic_configs(cast(Requester, many), changes)
    assert outcomes.keys() == changes.keys()
    assert [sum(one.values()) for one in many.asked] == [9_000, 3_000]
    assert controller().grow({}) == {}


def test_a_trial_of_many_topics_is_cut_alike(controller: Any) -> None:
    many = controller()
    inspector = Inspector(cast(Any, SimpleNamespace(requester=many, client=many.client, alias="B")))
    wanted = [NewTopic(f"t{number}", 120) for number in range(150)]
    assert inspector.try_create(wanted).keys() == {one.name for one in wanted}
    assert [len(one) for one in many.asked] == [74, 74, 2]


# --- what is refused for the moment ---------------------------------------------------------------


@pytest.mark.parametrize("code", [TIMED_OUT, QUOTA])
def test_what_is_refused_for_the_moment_is_asked_for_again(controller: Any, code: int) -> None:
    busy = controller({"t": [code, code], "u": [INVALID_CONFIG]})
    outcomes = busy.create(NewTopic("t", 1), NewTopic("u", 1), NewTopic("v", 1))
    assert outcomes["t"].error is None
    assert isinstance(outcomes["u"].error, ClusterError)
    assert outcomes["v"].error is None
    assert [list(one) for one in busy.asked] == [["t", "u", "v"], ["t"], ["t"]]
    assert busy.pauses == sorted(busy.pauses)
    grows = controller({"t": [code]})
    assert grows.grow({"t": 3, "u": 2})["t"].error is None
    assert [list(one) for one in grows.asked] == [["t", "u"], ["t"]]


def test_what_was_done_after_all_is_no_error(controller: Any) -> None:
    late = controller({"t": [TIMED_OUT, EXISTS]})
    assert late.create(NewTopic("t", 1))["t"].error is None
    late = controller({"t": [TIMED_OUT, INVALID_PARTITIONS], "u": [INVALID_PARTITIONS]})
    outcomes = late.grow({"t": 3, "u": 3})
    assert outcomes["t"].error is None
    assert "INVALID_PARTITIONS" in str(outcomes["u"].error)


def test_a_quota_is_waited_for_as_long_as_the_broker_says(controller: Any) -> None:
    slow = controller({"t0": [QUOTA]}, 9_000)
    outcomes = slow.create(*(NewTopic(f"t{number}", 1) for number in range(150)))
    assert all(one.error is None for one in outcomes.values())
    assert slow.pauses == [9.0]
    assert [len(one) for one in slow.asked] == [100, 51], "the others first"


def test_a_quota_holds_up_nobody_for_longer_than_a_request_timeout(controller: Any) -> None:
    never = controller({f"t{number}": [QUOTA] * 99 for number in range(3)}, 7_000)
    outcomes = never.create(*(NewTopic(f"t{number}", 1) for number in range(150)))
    refused = {name for name, one in outcomes.items() if one.error is not None}
    assert refused == {"t0", "t1", "t2"}
    assert never.now_s == 28
    longer = controller({"t0": [QUOTA]}, 60_000)
    outcomes = longer.create(*(NewTopic(f"t{number}", 1) for number in range(150)))
    assert (len(longer.asked), longer.pauses) == (1, [])
    told = [str(outcomes[f"t{number}"].error) for number in (0, 149)]
    assert "creating topic t149 failed: a quota allows no more at present" in told[1]
    assert all("controller_mutation_rate" in one for one in told)
    assert isinstance(outcomes["t149"].error, QuotaExceeded)
    assert outcomes["t1"].error is None


@pytest.mark.parametrize("code", [TIMED_OUT, QUOTA])
def test_the_caller_says_how_long_it_waits(controller: Any, code: int) -> None:
    for patience_s, at_most_s in ((0, 0), (3, 3), (None, 30)):
        busy = controller({"t": [code] * 999})
        assert busy.create(NewTopic("t", 1), patience_s=patience_s)["t"].error is not None
        assert busy.now_s <= at_most_s
        assert (len(busy.asked) == 1) is (patience_s == 0)
        grows = controller({"t": [code] * 999})
        assert grows.grow({"t": 3}, patience_s=patience_s)["t"].error is not None
        assert grows.now_s == busy.now_s


def test_the_end_of_the_mirror_is_not_waited_for(controller: Any) -> None:
    ending = controller({"t": [TIMED_OUT] * 9})
    ending.closed = True
    outcome = ending.create(NewTopic("t", 1))["t"]
    assert isinstance(outcome.error, Unreachable)
    assert len(ending.asked) == 1
