"""A real Spark for the SQL of transforms."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sparkmirror.data.spark.session import _end_gateway
from sparkmirror.java import find_java, java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session of its own for the module."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ.update(java_environment(find_java()))
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .getOrCreate()
    )
    yield session
    session.stop()
    # The next one starts a JVM of its own, with its own environment.
    _end_gateway(SparkContext._gateway)
