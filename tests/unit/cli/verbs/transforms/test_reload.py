"""``transform reload``: which flows get the order, and what is printed."""

from __future__ import annotations

import pytest

from sparkmirror.cli.verbs.transforms.reload import told, with_table
from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.tables import TableState
from sparkmirror.model import ClusterClient, FlowSettings, TableSettings, TransformSettings


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
    assert told(bad) == "customers keeps its 1,234 rows of 2025-11-24T16:00:00+00:00: it is gone"
