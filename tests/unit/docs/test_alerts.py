"""The alert rules of docs/prometheus: each fires when it should, and not when it should not.

What must fire when stands in ``alerts.test.yml``, in the format of Prometheus's own ``promtool``,
which runs it too where it is installed (``make promtool``). `tests.promql` evaluates the
expressions everywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkmirror.observe.metrics.catalog import CATALOG
from tests.lacking import lacks
from tests.promql import Database, Rule, firing, seconds

DIRECTORY = Path(__file__).parents[3] / "docs" / "prometheus"
RULES_FILE = DIRECTORY / "alerts.yml"
TESTS: dict[str, Any] = yaml.safe_load((DIRECTORY / "alerts.test.yml").read_text())
CASES = [
    (test, case)
    for test in TESTS["tests"]
    for case in test["alert_rule_test"]
]  # fmt: skip
SEVERITIES = {"critical", "warning", "info"}


def rules() -> dict[str, Rule]:
    (group,) = yaml.safe_load(RULES_FILE.read_text())["groups"]
    return {
        one["alert"]: Rule(
            one["alert"],
            one["expr"],
            seconds(one.get("for", "0s")),
            one["labels"],
            one["annotations"],
        )
        for one in group["rules"]
    }


RULES = rules()


def fired(rule: Rule, test: dict[str, Any], eval_time: str) -> list[Any]:
    database = Database()
    for one in test["input_series"]:
        database.add(one["series"], one["values"], seconds(test["interval"]))
    return firing(rule, database, seconds(eval_time), seconds(TESTS["evaluation_interval"]))


def wanted(case: dict[str, Any]) -> list[Any]:
    return [(one["exp_labels"], one["exp_annotations"]) for one in case.get("exp_alerts", [])]


@pytest.mark.parametrize(
    ("test", "case"),
    CASES,
    ids=[f"{case['alertname']}-{case['eval_time']}-{n}" for n, (_, case) in enumerate(CASES)],
)
def test_an_alert_fires_when_it_should(test: dict[str, Any], case: dict[str, Any]) -> None:
    found = fired(RULES[case["alertname"]], test, case["eval_time"])
    assert _ordered(found) == _ordered(wanted(case)), test["name"]


def _ordered(alerts: list[Any]) -> list[Any]:
    return sorted((sorted(labels.items()), sorted(texts.items())) for labels, texts in alerts)


def test_every_rule_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    fires = {case["alertname"] for _, case in CASES if wanted(case)}
    rests = {case["alertname"] for _, case in CASES if not wanted(case)}
    assert fires == rests == RULES.keys()


def test_the_page_lists_every_rule_with_its_severity() -> None:
    page = (DIRECTORY.parent / "monitoring.md").read_text()
    rows = dict(re.findall(r"^\| `(Sparkmirror\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {name: rule.labels["severity"] for name, rule in RULES.items()}


def test_the_rules_name_metrics_and_labels_that_there_are() -> None:
    known = {name: set(row.labels) for row in CATALOG.values() for name in _names(row)}
    for rule in RULES.values():
        bare = re.sub(r'"[^"]*"', "", rule.expr)
        for name in re.findall(r"\b(?:sparkmirror|kafka)_\w+", bare):
            assert name in known, (rule.alert, name)
            for labels in re.findall(rf"{name}\{{([^}}]*)\}}", bare):
                assert set(re.findall(r"(\w+)(?==|!)", labels)) <= known[name], rule.alert
        assert rule.labels["severity"] in SEVERITIES
        assert rule.annotations.keys() == {"summary", "description"}


def _names(row: Any) -> list[str]:
    return [row.shown, *(f"{row.shown}_{part}" for part in ("bucket", "sum", "count"))]


@pytest.mark.parametrize(
    ("values", "expression", "expected"),
    [
        # Numbers that promtool 2.42 gave for the same series.
        ("0+60x30", "rate(x[10m])", 1.0),
        ("0+60x30", "increase(x[10m])", 600.0),
        ("5 _ _ 65 _ 125 5 65 _x22", "increase(x[30m])", 208.125),
        ("100 90 95 70 _x26 60", "deriv(x[30m])", -0.017766239),
        ("7 _x4 9 _x30", "x", None),
    ],
)
def test_the_evaluator_counts_as_prometheus_does(
    values: str, expression: str, expected: float | None
) -> None:
    database = Database()
    database.add("x", values, 60)
    rule = Rule("x", f"{expression} - 0 != 987654", 0, {}, {"v": '{{ $value | printf "%.12f" }}'})
    found = [float(texts["v"]) for _, texts in firing(rule, database, 1800, 1800)]
    assert found == ([] if expected is None else [pytest.approx(expected, rel=1e-4)])


@pytest.mark.parametrize(
    "expression", ["sum(x)", "histogram_quantile(1, x)", "x > bool 1", "x @ 1"]
)
def test_what_the_evaluator_does_not_know_is_an_error(expression: str) -> None:
    database = Database()
    database.add("x", "1x10", 60)
    with pytest.raises((AssertionError, KeyError)):
        firing(Rule("x", expression, 0, {}, {}), database, 0, 60)


@pytest.mark.parametrize("arguments", [["check", "rules", "alerts.yml"],
                                       ["test", "rules", "alerts.test.yml"]])  # fmt: skip
def test_promtool_agrees(arguments: list[str]) -> None:
    beside = str(Path(sys.executable).parent)
    promtool = shutil.which("promtool", path=f"{beside}:{os.environ['PATH']}")
    if promtool is None:
        lacks("promtool is not installed (make promtool)")
    done = subprocess.run(
        [promtool, *arguments], cwd=DIRECTORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
