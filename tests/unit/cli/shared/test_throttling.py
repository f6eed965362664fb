"""``sparkmirror throttle``: what it takes, what it refuses, what it says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.shared import throttling
from sparkmirror.cli.shared.throttling import Wish, read_wish
from sparkmirror.control.coordination import orders_topic, status
from sparkmirror.control.coordination.status import FlowState, FlowStatus
from sparkmirror.errors import ConfigError, Denied
from sparkmirror.internal_topics.driver_report import ThrottleState
from sparkmirror.internal_topics.throttles import ThrottleOrder
from sparkmirror.settings import ClusterClient, FlowSettings, ThrottleRule
from tests.unit.config_files import BASE, write

FLOW = "A->B"


@pytest.mark.parametrize(
    ("words", "topics", "between", "wish"),
    [
        ([], [], "", Wish()),
        (["A->B"], [], "", Wish(("A->B",))),
        (["A->B", "50MB/s"], [], "", Wish(("A->B",), ThrottleRule("", 50_000_000))),
        (["50MB/s", "A->B"], [], "", Wish(("A->B",), ThrottleRule("", 50_000_000))),
        (["5MB/s"], ["a", "b.*"], "", Wish((), ThrottleRule("a|b.*", 5_000_000))),
        (["5MB/s"], [], "8:00-18:00", Wish((), ThrottleRule("", 5_000_000, "08:00-18:00"))),
        (["off"], [], "", Wish((), ThrottleRule())),
        (["reset"], ["a"], "", Wish((), ThrottleRule("a"), reset=True)),
    ],
)
def test_arguments(words: list[str], topics: list[str], between: str, wish: Wish) -> None:
    assert read_wish(words, topics, between) == wish


@pytest.mark.parametrize(
    ("words", "topics", "between", "told"),
    [
        (["A->B", "50"], [], "", "RATE: '50' is not a rate. A unit per second is missing."),
        (["50MB/s", "off"], [], "", "'50MB/s' and 'off' cannot both be the rate"),
        (["A->B"], ["a"], "", "--topic: there is no rate"),
        (["A->B"], [], "08:00-18:00", "--between: there is no rate"),
        (["off"], [], "08:00-18:00", "off has no daily window"),
        (["reset"], [], "08:00-18:00", "reset has no daily window"),
        (["5MB/s"], ["("], "", "--topic"),
        (["5MB/s"], [], "8-18", "--between: '8-18' is not a daily window"),
    ],
)
def test_wrong_arguments(words: list[str], topics: list[str], between: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_wish(words, topics, between)
    assert told in str(error.value)


class Target:
    """A target on which a mirror runs, or not; ``given``: the orders that it got.

    ``obeys``: whether the mirror obeys them. ``standing``: orders that were there before.
    """

    alias = "B"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[ThrottleOrder] = []
        self.standing: dict[str, ThrottleOrder] = {}
        self.state = FlowState.RUNNING
        self.limits: tuple[ThrottleState, ...] | None = ()
        self.obeys = True
        target = self

        class Connections:
            def __enter__(self) -> Connections:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def expect(self, _clients: object) -> None:
                pass

            def cluster(self, _client: object) -> Target:
                return target

        monkeypatch.setattr(throttling, "Connections", Connections)
        monkeypatch.setattr(throttling, "check_orders_topic", lambda *_: None)
        monkeypatch.setattr(throttling, "_standing", lambda *_: dict(self.standing))
        monkeypatch.setattr(throttling, "_LOOK_S", 0.01)
        monkeypatch.setattr(status, "observe_status", lambda *_: self.status())
        monkeypatch.setattr(orders_topic, "give_throttle", lambda *args: self.given.append(args[2]))

    def status(self) -> FlowStatus:
        obeyed = frozenset(one.order_id for one in self.given if self.obeys)
        return FlowStatus(FLOW, self.state, version="0.1", throttles=self.limits, order_ids=obeyed)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


def run(tmp_path: Path, *words: str, file: str = "") -> int:
    return main(["throttle", str(write(tmp_path, BASE + file)), *words])


def test_a_running_mirror_confirms(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, FLOW, "50MB/s", "--between", "08:00-18:00") == 0
    assert [one.rule for one in target.given] == [ThrottleRule("", 50_000_000, "08:00-18:00")]
    assert capsys.readouterr().out == f"{FLOW}: limited to 50 MB/s between 08:00 and 18:00\n"
    assert run(tmp_path, "off", "--topic", "logs.*") == 0
    assert capsys.readouterr().out == f"{FLOW}: no limit for topics logs.*\n"


def test_an_operator_needs_no_read_on_the_topic_of_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write is enough, as for a pause: what was ordered before is not known then."""

    class Reader:
        closed = False

        def __init__(self, *_: object) -> None:
            self.throttles: dict[str, ThrottleOrder] = {}

        def read_to_end(self) -> None:
            raise Denied("no Read on it")

        def close(self) -> None:
            Reader.closed = True

    monkeypatch.setattr(orders_topic, "OrdersReader", Reader)
    client = ClusterClient("A", ("a:1",), "c")
    flow = FlowSettings(client, client, client, client)
    cluster: Any = SimpleNamespace(topics=dict.fromkeys)
    assert throttling._standing(cluster, flow) == {}
    assert Reader.closed


def test_a_mirror_that_does_not_run_will_obey(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.state = FlowState.STOPPED
    assert run(tmp_path, FLOW, "50MB/s") == 0
    said = "limited to 50 MB/s for the next run; no mirror runs now"
    assert capsys.readouterr().out == f"{FLOW}: {said}\n"
    file = "\nsparkmirror.throttle = 20MB/s\n"
    assert run(tmp_path, FLOW, "reset", file=file) == 0
    assert "the file applies again: limit of 20 MB/s for the next run" in capsys.readouterr().out


def test_an_older_mirror_is_not_ordered(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.limits = None
    assert run(tmp_path, FLOW, "50MB/s") == 1
    assert "the mirror (version 0.1) does not know limits" in capsys.readouterr().out
    assert target.given == []


def test_a_mirror_that_does_not_obey_in_time(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.obeys = False
    assert run(tmp_path, FLOW, "50MB/s", "--wait", "0.05") == 1
    assert "ordered, but the mirror has not confirmed it yet" in capsys.readouterr().out
    assert run(tmp_path, FLOW, "50MB/s", "--wait", "0") == 0


def test_a_flow_has_a_limited_number_of_limits(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = [ThrottleRule(f"t{number}", 5_000) for number in range(16)]
    target.standing = {one.topics: ThrottleOrder(FLOW, one, 5) for one in rules}
    assert run(tmp_path, FLOW, "50MB/s") == 1
    assert "the flow has 16 limits already" in capsys.readouterr().out
    assert target.given == []
    assert run(tmp_path, FLOW, "50MB/s", "--topic", "t3") == 0, "that one only changes"


def test_limits_that_the_mirror_reports_count_as_well(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator without Read on the topic of orders does not see what others ordered."""
    rules = [ThrottleRule(f"t{number:02}", 5_000) for number in range(16)]
    target.limits = tuple(ThrottleState(one, "id") for one in rules)
    assert run(tmp_path, FLOW, "50MB/s") == 1
    assert "the flow has 16 limits already" in capsys.readouterr().out
    assert target.given == []
    assert run(tmp_path, FLOW, "50MB/s", "--topic", "t03") == 0, "that one only changes"
    off = ThrottleOrder(FLOW, ThrottleRule("t05"), 5)
    target.standing = {"t05": off}
    assert run(tmp_path, FLOW, "50MB/s") == 0, "the mirror has not obeyed this order yet"
    target.standing = {}
    target.limits = (ThrottleState(ThrottleRule(), "id"), *target.limits[1:])
    file = "\nsparkmirror.throttle = 20MB/s\n"
    assert run(tmp_path, FLOW, "50MB/s", "--topic", "u", file=file) == 0, "the file's one is off"


def test_without_a_rate_the_limits_are_shown(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == f"{FLOW}: no limit\n"
    target.limits = (
        ThrottleState(ThrottleRule("", 50_000_000, "22:00-06:00"), applies=False),
        ThrottleState(ThrottleRule("logs.*", 0), "id"),
    )
    assert run(tmp_path, FLOW) == 0
    assert capsys.readouterr().out.splitlines() == [
        "FLOW  TOPICS  LIMIT    BETWEEN      APPLIES  BY",
        "A->B  all     50 MB/s  22:00-06:00  no       file",
        "A->B  logs.*  off      always       no       order",
    ]
    assert run(tmp_path, FLOW, "--format", "json") == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert flow["throttles"][0] == {
        "topics": None,
        "bytes_per_second": 50_000_000,
        "between": "22:00-06:00",
        "applies": False,
        "by": "file",
    }
    assert target.given == []


def test_an_order_is_told_as_json(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, FLOW, "50MB/s", "--format", "json") == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert flow == {"flow": FLOW, "done": True, "text": "limited to 50 MB/s"}
    target.limits = None
    assert run(tmp_path, FLOW, "50MB/s", "--format", "json") == 1
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert flow["done"] is False


@pytest.mark.parametrize("rate", [[], ["50MB/s"]])
def test_a_cluster_that_fails_is_told_as_a_json_line(
    rate: list[str], target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def status() -> FlowStatus:
        raise Denied("no Read on it", where="cluster B")

    target.status = status  # type: ignore[method-assign]
    assert run(tmp_path, FLOW, *rate, "--format", "json") == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"flows": []}
    error = json.loads(shown.err)
    assert (error["type"], error["what"], error["where"]) == ("error", "no Read on it", "cluster B")
    assert run(tmp_path, FLOW, *rate) == 3
    assert capsys.readouterr().err.startswith("error: cluster B: no Read on it")


def test_wrong_input_ends_with_2(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, FLOW, "fast") == 2
    assert "'fast' is not a rate" in capsys.readouterr().err
    assert run(tmp_path, "A->C", "5MB/s") == 2
    assert "'A->C' is not an enabled flow" in capsys.readouterr().err
    assert target.given == []
