"""When a drained query has come to rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.data.spark.rest import DrainCheck

RUN = "3f1c"


@dataclass
class Query:
    """A query as Spark shows it, and the tracker that knows its jobs."""

    isActive: bool = True  # noqa: N815  (Spark's name)
    active_trigger: bool = True
    jobs: dict[int, str] = field(default_factory=dict)
    runId: str = RUN  # noqa: N815
    now_s: float = 0.0

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self.active_trigger, "isDataAvailable": self.active_trigger}

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return sorted(self.jobs, reverse=True) if group == RUN else []

    def getJobInfo(self, number: int) -> Any:
        return SimpleNamespace(status=self.jobs[number]) if number in self.jobs else None

    def rest(self) -> DrainCheck:
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: self))
        query: Any = self
        return DrainCheck(spark, query, lambda: self.now_s)


@pytest.mark.parametrize("change", [{"isActive": False}, {"active_trigger": False}])
def test_what_spark_calls_over_is_at_rest(change: dict[str, bool]) -> None:
    assert not Query(**change, jobs={0: "RUNNING"}).rest().busy()


def test_the_sinks_commit_is_not_waited_for() -> None:
    query = Query(jobs={0: "SUCCEEDED", 1: "RUNNING"})
    rest = query.rest()
    assert rest.busy()
    query.jobs[1] = "SUCCEEDED"
    assert rest.busy(), "a job that was planned before may begin"
    query.now_s = 0.4
    assert rest.busy()
    query.now_s = 0.6
    assert not rest.busy()


def test_a_job_that_begins_is_waited_for() -> None:
    query = Query(jobs={0: "SUCCEEDED"})
    rest = query.rest()
    assert rest.busy()
    query.now_s, query.jobs[1] = 1.0, "RUNNING"
    assert rest.busy()
    query.now_s, query.jobs[1] = 2.0, "SUCCEEDED"
    assert rest.busy()
    query.now_s = 3.0
    assert not rest.busy()


@pytest.mark.parametrize("jobs", [{}, {0: "FAILED"}, {0: "SUCCEEDED", 1: "FAILED"}])
def test_without_a_job_that_ended_well_the_query_has_the_last_word(jobs: dict[int, str]) -> None:
    query = Query(jobs=jobs)
    rest = query.rest()
    for second in range(5):
        query.now_s = float(second)
        assert rest.busy()
    query.isActive = False
    assert not rest.busy()
