"""The Grafana board: its shape is Grafana's, its colours are those of the alerts."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.promql import Database, Rule, firing
from tests.unit.test_alerts import RULES

BOARD = json.loads(
    (Path(__file__).parents[2] / "docs" / "grafana" / "sparkmirror.json").read_text()
)
PANELS: dict[str, Any] = {panel["title"]: panel for panel in BOARD["panels"]}
STATES = ("starting", "running", "paused", "draining")

# Of Grafana's dashboard schema what this board uses: field -> type, or the values it may have.
_PANEL = {
    "id": int, "type": {"stat", "timeseries"}, "title": str, "datasource": dict, "gridPos": dict,
    "fieldConfig": dict, "options": dict, "targets": list,
}  # fmt: skip
_DEFAULTS = {
    "unit": {"none", "short", "s", "ms", "Bps"}, "color": dict, "thresholds": dict,
    "mappings": list, "custom": dict,
}  # fmt: skip
_STAT = {
    "colorMode": {"none", "value", "background", "background_solid"},
    "graphMode": {"none", "line", "area"}, "justifyMode": {"auto", "center"},
    "orientation": {"auto", "vertical", "horizontal"},
    "textMode": {"auto", "value", "value_and_name", "name", "none"}, "reduceOptions": dict,
}  # fmt: skip
_TARGET = {"refId": str, "expr": str, "legendFormat": str, "instant": bool}
_RESULT = {"text": str, "color": str, "index": int}
_SPECIAL = {"true", "false", "null", "nan", "null+nan", "empty"}
_LINES = {"off", "line", "dashed", "area", "line+area", "dashed+area", "series"}


def fits(value: dict[str, Any], schema: dict[str, Any]) -> None:
    assert value.keys() <= schema.keys(), value.keys() - schema.keys()
    for name, one in value.items():
        wanted = schema[name]
        if isinstance(wanted, set):
            assert one in wanted, (name, one)
        else:
            assert type(one) is wanted, (name, one)


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_has_grafanas_shape(title: str) -> None:
    panel = PANELS[title]
    fits(panel, _PANEL)
    assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
    defaults = panel["fieldConfig"]["defaults"]
    fits(defaults, _DEFAULTS)
    if panel["type"] == "stat":
        fits(panel["options"], _STAT)
        assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
        assert defaults["color"] == {"mode": "thresholds"}
    for target in panel["targets"]:
        fits(target, _TARGET)
    if "thresholds" in defaults:
        thresholds = defaults["thresholds"]
        assert thresholds.keys() == {"mode", "steps"}
        assert thresholds["mode"] in ("absolute", "percentage")
        first, *others = thresholds["steps"]
        assert first["value"] is None  # the colour of what lies below all others
        limits = [one["value"] for one in others]
        assert limits == sorted(set(limits))
        assert all(one.keys() == {"color", "value"} for one in thresholds["steps"])
    for mapping in defaults.get("mappings", []):
        assert mapping.keys() == {"type", "options"}
        if mapping["type"] == "special":
            assert mapping["options"]["match"] in _SPECIAL
            results = [mapping["options"]["result"]]
        else:
            assert mapping["type"] == "value"
            results = list(mapping["options"].values())
            assert all(re.fullmatch(r"-?\d+", key) for key in mapping["options"])
        for result in results:
            fits(result, _RESULT)
    if "custom" in defaults:
        assert defaults["custom"].keys() == {"thresholdsStyle"}
        assert defaults["custom"]["thresholdsStyle"]["mode"] in _LINES


def test_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS.values()]
    assert len(set(ids)) == len(ids) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in PANELS.values()]
    assert all(one["x"] + one["w"] <= 24 for one in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def limits(title: str) -> dict[str, float | None]:
    steps = PANELS[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return {one["color"]: one["value"] for one in steps}


@pytest.mark.parametrize(
    ("title", "alert"),
    [
        ("Lag", "SparkmirrorBehind"),
        ("Lag in seconds, ten worst topics", "SparkmirrorBehind"),
        ("Last report", "SparkmirrorNotReporting"),
    ],
)
def test_what_is_red_raises_an_alert(title: str, alert: str) -> None:
    limit = RULES[alert].expr.rpartition(">")[2]
    assert limits(title)["red"] == float(limit)


def test_partitions_that_stand_still_are_red_from_the_first_one_on() -> None:
    assert limits("Partitions that stand still") == {"green": None, "red": 1}
    assert RULES["SparkmirrorPartitionsHalted"].expr.endswith("> 0")


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_a_flow_is_a_word(state: str) -> None:
    """What the expression gives for a state is mapped to the text that means it."""
    database = Database()
    for each in STATES:
        for instance in ("x", "y"):  # processes of one group are one flow
            labels = f'source="A",target="B",state="{each}",instance="{instance}"'
            database.add(f"sparkmirror_flow_state{{{labels}}}", "1" if each == state else "0", 60)
    (target,) = PANELS["Flows"]["targets"]
    expression = target["expr"].replace("$source", ".*").replace("$target", ".*")
    shown = {"value": '{{ $value | printf "%.0f" }}'}
    ((found, texts),) = firing(Rule("x", expression, 0, {}, shown), database, 0, 60)
    assert found == {"source": "A", "target": "B"}
    mapping = PANELS["Flows"]["fieldConfig"]["defaults"]["mappings"][0]["options"]
    word = {"running": "mirroring"}.get(state, state)
    assert mapping[texts["value"]]["text"] == word
    assert len({one["text"] for one in mapping.values()}) == len(STATES) == len(mapping)
