"""What becomes of a query that Spark has ended: for good, or begun again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.data.query import FlowRunner, query_name
from sparkmirror.data.spark import restarts
from sparkmirror.data.spark.restarts import RESTARTS_MAX, RestartLimit
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.observe.figures.queries import QueryFigures
from tests.unit.config_files import BASE, load, load_flow

FLOW = "A->B"
LOST = "TargetLost: cluster B: the target's log of A.t-0 was truncated to offset 5"
FENCED = "Fenced: flow A->B: another sparkmirror has taken this flow over."


class Queries:
    """A runner whose queries end as soon as they are started, with ``error``."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, error: str, text: str = BASE
    ) -> None:
        self.begun: list[bool] = []
        monkeypatch.setattr(restarts, "PAUSES_S", (0.0,) * RESTARTS_MAX)
        self._error = RuntimeError(f"failed 8 times\nsparkmirror.errors.{error}\nat a.b(C.scala)")
        self.runner = FlowRunner(
            load(directory, text), master="local[1]", once=False, spark_conf={},
            work_dir=directory, run_id="r",
        )  # fmt: skip
        monkeypatch.setattr(self.runner, "_start_query", self._start)
        self.runner._session = SimpleNamespace()  # type: ignore[assignment]
        self.runner.start([FLOW])

    def _start(self, _spark: object, _flow: object, *, again: bool = False) -> Any:
        self.begun.append(again)
        return SimpleNamespace(isActive=False, exception=lambda: self._error)

    def errors(self) -> list[str]:
        """What is told once nothing is on its way back any more."""
        for _ in range(500):
            found = [str(error) for error in self.runner.errors()]
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError("nothing is told")


def test_what_each_attempt_mends_ends_no_query_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target may lose records more often than Spark lets a task fail in one epoch."""
    queries = Queries(tmp_path, monkeypatch, LOST)
    (told,) = queries.errors()
    assert "was truncated to offset 5" in told
    assert queries.begun == [False, *[True] * RESTARTS_MAX], "not for ever either"
    assert queries.runner._restarts[FLOW] == RESTARTS_MAX


@pytest.mark.parametrize("error", [LOST, FENCED])
def test_a_query_that_fails_while_it_is_looked_at_has_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Whenever that is: without an error, a run with --once would say that all is copied."""
    looks = itertools.count()

    class Query:
        """It runs until it has been looked at some times."""

        def __init__(self, looks_left: int) -> None:
            self._looks_left = looks_left

        @property
        def isActive(self) -> bool:
            self._looks_left -= 1
            return self._looks_left >= 0

        def exception(self) -> Exception:
            return queries._error

    queries = Queries(tmp_path, monkeypatch, error)
    monkeypatch.setattr(queries.runner, "_start_query", lambda *_, **__: Query(next(looks)))
    for first in range(4):
        queries.runner._queries = {FLOW: cast(Any, Query(first))}
        queries.runner._revivals = RestartLimit()
        found: Sequence[MirrorError] = ()
        while queries.runner.active():
            found = queries.runner.errors()
            if found:
                break
        assert found or queries.runner.errors()


def test_what_spark_says_of_queries_is_asked_for_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, asked = [100.0], 0
    monkeypatch.setattr("sparkmirror.data.query.time.monotonic", lambda: now_s[0])
    progress: dict[str, Any] | None = None

    class Query:
        @property
        def lastProgress(self) -> dict[str, Any] | None:
            nonlocal asked
            asked += 1
            if asked == 5:
                raise ConnectionError("the JVM is gone")
            return progress

    runner = Queries(tmp_path, monkeypatch, LOST).runner
    runner._queries = {FLOW: cast(Any, Query())}
    assert runner.figures() == {FLOW: QueryFigures()}
    progress = {
        "batchId": 3,
        "processedRowsPerSecond": 12.5,
        "durationMs": {"addBatch": 20_000, "triggerExecution": 20_100},
    }
    now_s[0] += 9.0
    assert runner.figures() == {FLOW: QueryFigures()}
    now_s[0] += 2.0
    known = {FLOW: QueryFigures(4, 0, 12.5, {"addBatch": 20_000, "triggerExecution": 20_100})}
    assert runner.figures() == known
    progress["processedRowsPerSecond"] = float("nan")
    now_s[0] += 11.0
    assert runner.figures()[FLOW].rows_s == 0.0
    assert asked == 3
    runner._restarts[FLOW] = 2
    now_s[0] += 11.0
    assert runner.figures()[FLOW].restarts == 2
    now_s[0] += 11.0
    assert runner.figures()[FLOW].restarts == 2, "what was known last"


def test_a_claim_ends_a_query_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = Queries(tmp_path, monkeypatch, FENCED)
    (told,) = queries.errors()
    assert "has taken this flow over" in told
    assert queries.begun == [False]


def test_a_query_is_named_after_its_flow_and_transforms(tmp_path: Path) -> None:
    """Spark shows the name with each job and stage."""
    flow = load_flow(tmp_path, "topics = t\n")
    assert query_name(flow) == "A->B"
    both = "".join(
        f"sparkmirror.transform.{one}.topics = {one}\nsparkmirror.transform.{one}.where = true\n"
        for one in ("clean", "mask")
    )
    flow = load_flow(tmp_path, f"sparkmirror.transforms = clean, mask\n{both}")
    assert query_name(flow) == "A->B, transform clean, mask"


def test_a_handler_without_sql_is_loaded_before_queries_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark computes nothing for it, so there is no plan that would look for it."""
    name = "A->B.sparkmirror.transform"
    text = f"{BASE}\n{name}s = mask\n{name}.mask.topics = orders\n{name}.mask.handler = {{}}\n"
    session = SimpleNamespace()
    monkeypatch.setattr("sparkmirror.data.spark.session.Spark.open", lambda _: session)

    def opened(handler: str) -> FlowRunner:
        runner = FlowRunner(
            load(tmp_path, text.format(handler)), master="local[1]", once=False, spark_conf={},
            work_dir=tmp_path, run_id="r",
        )  # fmt: skip
        assert runner.open() is session  # type: ignore[comparison-overlap]
        return runner

    with pytest.raises(ConfigError, match="nowhere:mask cannot be imported"):
        opened("nowhere:mask")
    assert not opened("json:dumps")._plans


@pytest.mark.parametrize("wanted", [frozenset(), frozenset({FLOW})], ids=["standby", "owner"])
def test_a_jvm_that_has_ended_is_noticed_whatever_is_mirrored(
    wanted: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a standby, before it claims a flow that it cannot mirror."""
    runner = Queries(tmp_path, monkeypatch, LOST).runner
    runner._wanted = wanted
    running = SimpleNamespace(isActive=True)
    runner._queries = {FLOW: cast(Any, running)}
    ends: list[int | None] = [None, -9]
    process = SimpleNamespace(poll=lambda: ends.pop(0))
    runner._spark._jvm = cast(Any, SimpleNamespace(process=process))
    assert runner.active() is bool(wanted)
    with pytest.raises(ConnectionError, match="the JVM has ended"):
        runner.active()


def test_a_flow_handed_over_while_another_is_taken_over_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads change what is mirrored here."""
    text = f"{BASE}\nB->A.enabled = true\n"
    runner = Queries(tmp_path, monkeypatch, LOST, text).runner
    runner._session = cast(Any, Drained("SUCCEEDED"))
    lost = RuntimeError("Python worker exited unexpectedly (crashed)")
    query = SimpleNamespace(isActive=False, exception=lambda: lost, runId="x", stop=lambda: None)
    runner._queries = {FLOW: cast(Any, query)}
    taking = threading.Event()

    class Changing(frozenset[str]):
        """It takes a moment to add a flow."""

        def __or__(self, other: Any) -> Any:
            taking.set()
            giving.start()
            giving.join(0.5)
            return super().__or__(other)

    giving = threading.Thread(target=runner.end, args=[FLOW], kwargs={"grace_s": 1})
    runner._wanted = Changing({FLOW})
    take = threading.Thread(target=runner.start, args=[["B->A"]])
    take.start()
    assert taking.wait(20)
    take.join(20)
    giving.join(20)
    assert runner._wanted == {"B->A"}


class Drained:
    """Spark's status tracker: the slots of the newest epoch have ended as they were told, or not.

    ``gone``: the JVM has ended.
    """

    def __init__(self, status: str, *, gone: bool = False) -> None:
        self.status, self.gone = status, gone
        self.sparkContext = SimpleNamespace(statusTracker=lambda: self)

    def getJobIdsForGroup(self, _group: str) -> list[int]:
        if self.gone:
            raise ConnectionError("the JVM is gone")
        return [2, 3]

    def getJobInfo(self, job: int) -> Any:
        assert job == 3
        return SimpleNamespace(status=self.status)


@pytest.mark.parametrize(("status", "ended"), [("SUCCEEDED", True), ("FAILED", False)])
def test_a_query_that_lost_only_its_planner_has_drained(
    status: str, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner may have been killed long before: nobody asks it until the epoch has ended."""
    runner = Queries(tmp_path, monkeypatch, LOST).runner
    runner._session = cast(Any, Drained(status))
    lost = RuntimeError("Python worker exited unexpectedly (crashed)")
    query = SimpleNamespace(isActive=False, exception=lambda: lost, runId="x", stop=lambda: None)
    runner._queries = {FLOW: cast(Any, query)}
    assert runner.end(FLOW, grace_s=1) is ended
    assert (FLOW in runner._wanted) is not ended


@pytest.mark.parametrize(
    ("session", "told"),
    [(Drained("SUCCEEDED"), 0), (Drained("FAILED"), 1), (Drained("SUCCEEDED", gone=True), 1)],
    ids=["drained", "failed", "no-jvm"],
)
def test_a_stop_after_the_planner_was_lost_fails_only_if_slots_did_not_drain(
    session: Drained, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Queries(tmp_path, monkeypatch, LOST).runner
    runner._session = cast(Any, session)
    lost = RuntimeError("Python worker exited unexpectedly (crashed)")
    query = SimpleNamespace(isActive=False, exception=lambda: lost, runId="x", stop=lambda: None)
    runner._queries = {FLOW: cast(Any, query)}
    runner._stopping = True
    assert len(runner.errors()) == told


class Crashed:
    """A query that lost its planner."""

    def __init__(self) -> None:
        self.isActive = False
        self.runId = "x"

    def exception(self) -> Exception:
        return RuntimeError("Python worker exited unexpectedly (crashed)")

    def stop(self) -> None:
        pass


class Paused(Queries):
    """A runner whose query lost its planner, and is started again after a pause."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, status: str, pause_s: float
    ) -> None:
        super().__init__(directory, monkeypatch, LOST)
        monkeypatch.setattr(restarts, "PAUSES_S", (pause_s,) * RESTARTS_MAX)
        self.may_start = threading.Event()
        self.runner._session = cast(Any, Drained(status))
        self.runner._queries = {FLOW: cast(Any, Crashed())}
        assert self.runner.active()

    def _start(self, _spark: object, _flow: object, *, again: bool = False) -> Any:
        query = super()._start(_spark, _flow, again=again)
        if again:
            assert self.may_start.wait(20)
        return query


@pytest.mark.parametrize(("status", "told"), [("SUCCEEDED", 0), ("FAILED", 1)])
@pytest.mark.parametrize("pause_s", [0.0, 600.0], ids=["starting", "pausing"])
def test_a_stop_before_a_restart_fails_only_if_slots_did_not_drain(
    status: str, told: int, pause_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(tmp_path, monkeypatch, status, pause_s)
    paused.runner.stop(grace_s=5)
    assert paused.runner.at_rest
    assert len(paused.runner.errors()) == told
    paused.may_start.set()


def test_a_jvm_that_ends_during_a_drain_is_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not that time ran out."""
    runner = Queries(tmp_path, monkeypatch, LOST).runner
    jvm = SimpleNamespace(process=SimpleNamespace(poll=lambda: -9), end=lambda: None)
    runner._spark._jvm = cast(Any, jvm)
    runner.stop(grace_s=10)
    assert runner.at_rest
    (told,) = runner.errors()
    assert "Spark no longer responds (ConnectionError)" in str(told)


def test_a_flow_that_is_handed_over_before_a_restart_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(tmp_path, monkeypatch, "SUCCEEDED", 1.0)
    assert paused.runner.end(FLOW, grace_s=1)
    assert not paused.runner.active()
    time.sleep(1.5)
    assert paused.begun == [False]
    assert not paused.runner._reviving


def test_a_flow_whose_query_is_starting_again_is_not_handed_over_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(tmp_path, monkeypatch, "SUCCEEDED", 0.0)
    while paused.begun != [False, True]:
        time.sleep(0.01)
    assert not paused.runner.end(FLOW, grace_s=1)
    assert paused.runner._wanted == {FLOW}
    paused.may_start.set()


def test_a_query_that_spark_does_not_stop_in_time_has_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Queries(tmp_path, monkeypatch, LOST).runner
    runner._session = cast(Any, Drained("SUCCEEDED"))

    def stop() -> None:
        raise TimeoutError("the stream thread did not end in 1000 ms")

    query = SimpleNamespace(isActive=True, status={}, runId="x", stop=stop)
    runner._queries = {FLOW: cast(Any, query)}
    assert runner.end(FLOW, grace_s=1)
