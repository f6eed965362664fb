"""``transform reload``: which flows get the order, and what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.shared import throttling
from sparkmirror.cli.verbs.transforms import reload as module
from sparkmirror.cli.verbs.transforms.reload import told, with_table
from sparkmirror.control.coordination import orders_topic, status
from sparkmirror.control.coordination.status import FlowState, FlowStatus
from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.tables import ReloadOrder, TableState
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TableSettings, TransformSettings
from tests.unit.config_files import BASE, write


def _flow(target: str, *tables: str) -> FlowSettings:
    source, other = (ClusterClient(one, ("localhost:1",), "test") for one in ("A", target))
    named = tuple(TableSettings(one, "csv", f"/{one}") for one in tables)
    one = TransformSettings("clean", ("t",), "true", tables=named)
    return FlowSettings(source, other, source, other, transforms=(one,))


FLOWS = (_flow("B", "customers", "limits"), _flow("C", "limits"), _flow("D"))


@pytest.mark.parametrize(
    ("table", "names"),
    [("", ["A->B", "A->C"]), ("limits", ["A->B", "A->C"]), ("customers", ["A->B"])],
)
def test_flows_with_the_table(table: str, names: list[str]) -> None:
    assert [flow.name for flow in with_table(FLOWS, table)] == names


@pytest.mark.parametrize(
    ("flows", "table", "said"),
    [
        (FLOWS, "limit", "has a table limit. Choose from: customers, limits."),
        (FLOWS[2:], "", "no transform of A->D has a table. Set sparkmirror.transform.NAME.tables"),
    ],
)
def test_no_flow_has_the_table(flows: tuple[FlowSettings, ...], table: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_table(flows, table)
    assert said in str(caught.value)


def test_what_became_of_a_table() -> None:
    good = TableState("customers", 1_234, 1_764_000_000_000, 56)
    assert told(good) == "customers: 1,234 rows, read in 56 ms"
    bad = TableState("customers", 1_234, 1_764_000_000_000, 56, "it is gone")
    assert told(bad) == "customers keeps its 1,234 rows of 2025-11-24T16:00:00Z: it is gone"


_FILE = """
sparkmirror.transforms = clean
sparkmirror.transform.clean.topics = t
sparkmirror.transform.clean.where = lookup('customers', 'id', offset) IS NULL
sparkmirror.transform.clean.tables = customers = csv:/c; limits = csv:/l
"""


class Target:
    """A target on which a mirror runs, or not; ``given``: the orders that it got."""

    alias = "B"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[ReloadOrder] = []
        self.state = FlowState.RUNNING
        self.tables: tuple[TableState, ...] | None = tuple(
            TableState(name, 5, 1_764_000_000_000, 7) for name in ("customers", "limits")
        )
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

        monkeypatch.setattr(module, "Connections", Connections)
        monkeypatch.setattr(module, "check_orders_topic", lambda *_: None)
        monkeypatch.setattr(throttling, "_LOOK_S", 0.01)
        monkeypatch.setattr(status, "observe_status", lambda *_: self.status())
        monkeypatch.setattr(orders_topic, "give_reload", lambda *args: self.given.append(args[2]))

    def status(self) -> FlowStatus:
        obeyed = frozenset(one.order_id for one in self.given if self.obeys)
        return FlowStatus("A->B", self.state, version="0.1", tables=self.tables, order_ids=obeyed)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


def run(tmp_path: Path, *words: str) -> int:
    return main(["transform", "reload", str(write(tmp_path, BASE + _FILE)), *words])


def test_a_running_mirror_confirms(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    line = "A->B: {}: 5 rows, read in 7 ms\n"
    assert capsys.readouterr().out == line.format("customers") + line.format("limits")
    assert run(tmp_path, "--flow", "A->B", "--table", "limits") == 0
    assert capsys.readouterr().out == line.format("limits")
    assert [one.table for one in target.given] == ["", "limits"]


def test_a_table_that_keeps_its_rows_is_a_failure(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.tables = (TableState("customers", 5, 0, 7, "it is gone"), TableState("limits", 2, 0, 1))
    assert run(tmp_path) == 1
    assert "customers keeps its 5 rows of 1970-" in capsys.readouterr().out
    assert run(tmp_path, "--table", "limits") == 0
    target.tables = (TableState("customers", 5, 1 << 60, 7, "it is gone"),)
    assert run(tmp_path, "--table", "customers") == 1
    line = f"customers keeps its 5 rows of {1 << 60} ms: it is gone"
    assert line in capsys.readouterr().out, "a report may have any number"


def test_no_mirror_or_one_that_does_not_know_tables_gets_no_order(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.state = FlowState.STOPPED
    assert run(tmp_path) == 0
    assert "no mirror runs now" in capsys.readouterr().out
    target.state, target.tables = FlowState.RUNNING, None
    assert run(tmp_path) == 1
    assert "the mirror (version 0.1) does not know tables" in capsys.readouterr().out
    assert target.given == []


def test_a_mirror_that_does_not_confirm(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.obeys = False
    assert run(tmp_path, "--wait", "0.05") == 1
    assert "ordered, but the mirror has not confirmed it yet (running)" in capsys.readouterr().out
    assert run(tmp_path, "--wait", "0") == 0


def test_a_mirror_of_another_file_has_no_such_table(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.tables = ()
    assert run(tmp_path, "--table", "limits") == 1
    assert "the mirror has no table limits; start it with this file" in capsys.readouterr().out
