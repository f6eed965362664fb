"""What a transform makes of values, in a real Spark with a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkmirror.data.transform.columns import HIDDEN
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import RegistrySettings, TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
FAILED = "failed"


def flow(registry: RegistrySettings, select: str, where: str = "") -> FlowSettings:
    places = (("where", "file:7: key.where"), ("select", "file:8: key.select"))
    one = TransformSettings("clean", ("orders",), where, select, places)
    return FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,), registry=registry)


class Sql:
    """SQL for the values of a topic whose schemas are at ``urls``."""

    def __init__(self, spark: SparkSession, *urls: str) -> None:
        self.spark = spark
        self.settings = RegistrySettings(
            urls, places=(("url", "file:3: sparkmirror.registry.url"),)
        )
        self._plans: dict[tuple[str, RegistrySettings], TransformPlan] = {}

    def plan(self, select: str) -> TransformPlan:
        return TransformPlan(self.spark, flow(self.settings, select))

    def of(self, select: str, values: list[bytes | None]) -> list[bytes | str | None]:
        """The new values, or FAILED. Plans cost more than queries: they are kept, with schemas."""
        key = (select, self.settings)
        if key not in self._plans:
            self._plans[key] = self.plan(f"{select} AS value")
        return made(self._plans[key], values)


def made(plan: TransformPlan, values: list[bytes | None]) -> list[bytes | str | None]:
    """The values that ``plan`` makes of ``values``, in order; FAILED where the SQL fails."""
    rows = [
        (None, None, 0, at, None if one is None else bytearray(one))
        for at, one in enumerate(values)
    ]
    frame = plan.session.createDataFrame(rows, f"{HIDDEN}, value binary")
    found: list[bytes | str | None] = []
    for row in plan.transformed(frame).collect():
        result = row["t0"]
        value = None if result is None else result["record"]["value"]
        found.append(FAILED if result is None else None if value is None else bytes(value))
    return found
