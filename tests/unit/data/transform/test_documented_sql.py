"""The SQL that the page of transforms shows, in a real Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkmirror.config.files.properties import parse_properties
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.names.transforms import routes
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import RegistrySettings, TableSettings, TransformSettings
from tests.registries import SchemaRegistry, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = Path(__file__).parents[4] / "docs" / "transforms.md"
_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_SHORT = "…."
_KEY = "A->B.sparkmirror.transform.NAME."


def _shown() -> list[tuple[str, str]]:
    """Each ``where`` and ``select`` of the page's properties, as a file would have it."""
    found = []
    for block in re.findall(r"^```properties\n(.*?)^```", _PAGE.read_text(), re.M | re.S):
        # The same key stands several times on the page, but a file keeps one.
        for part in re.split(r"\n(?=\S)", block):
            text = part.replace(_SHORT, _KEY)
            for entry in parse_properties(text.encode(), _PAGE).values():
                option = entry.key.rpartition(".")[2]
                if "sparkmirror.transform." in entry.key and option in ("where", "select"):
                    found.append((option, entry.value))
    return found


def test_the_page_shows_where_and_select() -> None:
    assert len(_shown()) >= 10
    assert {option for option, _ in _shown()} == {"where", "select"}


def test_the_page_shows_functions_of_ones_own() -> None:
    assert "functions = mirrors.sql:register\n" in _PAGE.read_text()


def _tables(directory: Path) -> tuple[TableSettings, ...]:
    """Those of the page, as CSV."""
    assert "tables = customers = parquet:/data/customers; limits = csv:" in _PAGE.read_text()
    found = []
    for name, columns in (("customers", "id BIGINT, name STRING"), ("limits", "code STRING")):
        (directory / name).write_text("id,name\n1,Ann\n" if name == "customers" else "code\na\n")
        found.append(TableSettings(name, "csv", str(directory / name), columns))
    return tuple(found)


def test_what_the_page_shows_is_accepted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it in one flow: each plan of its own would cost a second."""
    (module,) = re.findall(r"^```python\n# (\S+), .*?\n(.*?)^```", _PAGE.read_text(), re.M | re.S)
    file = tmp_path / module[0]
    file.parent.mkdir()
    file.write_text(module[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = _tables(tmp_path)
    shown = [{"where": "", "select": "", option: sql} for option, sql in _shown()]
    transforms = [
        TransformSettings(
            f"shown {number}",
            ("orders",),
            places=tuple((option, f"{option} = {sql}") for option, sql in one.items()),
            routes=routes(one["select"]),
            functions=("mirrors.sql:register",),
            tables=tables,
            **one,
        )
        for number, one in enumerate(shown)
    ]
    salt, registry = "0123456789abcdef", SchemaRegistry()
    registry.add("orders-value", '"string"')
    proto = 'syntax = "proto3"; message A { } message Parcel { string card = 1; }'
    registry.add("parcels-value", proto, "PROTOBUF")
    with serving(registry) as url:
        flow = FlowSettings(
            *[_CLIENT] * 4,
            transforms=tuple(transforms),
            hash_salt=salt,
            registry=RegistrySettings((url,)),
        )
        planned = TransformPlan(spark, flow).planned
    assert len(planned) == len(shown)
    assert [one.settings.places for one in planned if not one.uses] == []
