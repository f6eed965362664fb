"""The Grafana board: its shape is Grafana's, its colours are those of the alerts."""

from __future__ import annotations

import copy
import itertools
import json
import re
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.promql import Database, Rule, firing
from tests.unit.docs.test_alerts import RULES

BOARD = json.loads(
    (Path(__file__).parents[3] / "docs" / "grafana" / "sparkmirror.json").read_text()
)
PANELS: dict[str, Any] = {panel["title"]: panel for panel in BOARD["panels"]}
STATES = ("starting", "running", "paused", "draining", "waiting")

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


def test_the_board_is_one_by_grafanas_own_types() -> None:
    """Each field is one that they have, of the type or among the values that they say."""
    check_board(BOARD)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("colour", "red"),
        ("type", 7),
        ("options.colorMode", "rainbow"),
        ("options.text", {"size": 3}),
        ("gridPos.w", "24"),
        ("fieldConfig.defaults.thresholds.mode", "relative"),
        ("fieldConfig.defaults.mappings", {"running": "green"}),
    ],
)
def test_what_grafana_has_no_type_for_is_seen(field: str, value: object) -> None:
    board = copy.deepcopy(BOARD)
    place = next(panel for panel in board["panels"] if panel["type"] == "stat")
    *parents, last = field.split(".")
    for name in parents:
        place = place[name]
    place[last] = value
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        check_board(board)


def check_board(board: dict[str, Any]) -> None:
    register_default_plugins()
    read = Dashboard.from_json(board)
    typed(read, Dashboard, "board")
    # What they do not know is lost on the way.
    kept(board, json.loads(JSONEncoder().encode(read)), "board")


def typed(value: Any, hint: Any, where: str) -> None:
    """``value``, as the model read it, is what ``hint`` says, down to its last field."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        hint = type(value)
    if origin in (Union, UnionType):
        assert any(is_typed(value, one, where) for one in inner), (where, value, hint)
    elif origin is Literal:
        assert value in inner, (where, value)
    elif origin is list:
        assert type(value) is list, (where, value)
        for index, one in enumerate(value):
            typed(one, inner[0], f"{where}[{index}]")
    elif origin is dict:
        assert type(value) is dict, (where, value)
        for name, one in value.items():
            typed(one, inner[1], f"{where}.{name}")
    elif issubclass(hint, Enum):
        assert value in {one.value for one in hint}, (where, value)
    elif hint is float:
        assert type(value) in (int, float), (where, value)
    else:
        assert isinstance(value, hint), (where, value)
        fields = get_type_hints(type(value)) if hasattr(value, "to_json") else {}
        for name, one in fields.items():
            typed(getattr(value, name), one, f"{where}.{name}")


def is_typed(value: Any, hint: Any, where: str) -> bool:
    try:
        typed(value, hint, where)
    except AssertionError:
        return False
    return True


def kept(before: Any, after: Any, where: str) -> None:
    """All of ``before`` is in ``after``, where defaults may have come to it."""
    if isinstance(before, dict):
        assert before.keys() <= after.keys(), (where, before.keys() - after.keys())
        for name, one in before.items():
            kept(one, after[name], f"{where}.{name}")
    elif isinstance(before, list):
        assert len(before) == len(after), where
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            kept(one, other, f"{where}[{index}]")
    else:
        assert before == after, where


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
