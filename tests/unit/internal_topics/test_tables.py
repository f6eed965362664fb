"""Records about static tables: what is written is read, and nothing else."""

from __future__ import annotations

import pytest

from sparkmirror.internal_topics.codec import pack
from sparkmirror.internal_topics.driver_report import (
    DriverReport,
    decode_driver_report,
    encode_driver_report,
)
from sparkmirror.internal_topics.tables import (
    ReloadOrder,
    TableState,
    decode_reload,
    encode_reload,
    read_table,
    table_row,
)

_ORDER = ReloadOrder("A->B", "customers", 5, "id-1")
_STATE = TableState("customers", 1_000, 7, 120, "not there")


def test_an_order_is_read_as_it_was_written() -> None:
    key, value = encode_reload(_ORDER)
    assert key == b"A->B/reload"
    assert decode_reload("A->B", key, value) == _ORDER
    assert ReloadOrder("A->B", "", 1).order_id != ReloadOrder("A->B", "", 1).order_id


@pytest.mark.parametrize(
    ("flow", "key", "value"),
    [
        ("A->C", *encode_reload(_ORDER)),
        ("A->B", b"A->B/reload", None),
        ("A->B", b"A->B/reload", b"{"),
        ("A->B", b"A->B/reload", pack({"order": "reload", "id": "", "table": "", "time_ms": 1})),
        ("A->B", b"A->B/reload", pack({"order": "reload", "id": "a", "table": ""})),
        ("A->B", b"A->B/reload", pack({"order": "pause", "id": "a", "table": "", "time_ms": 1})),
    ],
)
def test_other_records_are_no_orders(flow: str, key: bytes, value: bytes | None) -> None:
    assert decode_reload(flow, key, value) is None


def test_the_report_of_a_driver_names_tables_and_orders() -> None:
    assert read_table(table_row(_STATE)) == _STATE
    report = DriverReport("A->B", "r", "h", "1", 1, 2, tables=(_STATE,), reloads=("id-1",))
    assert decode_driver_report(*encode_driver_report(report)) == report
    older = DriverReport("A->B", "r", "h", "1", 1, 2)
    assert decode_driver_report(*encode_driver_report(older)) == older
