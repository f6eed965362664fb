"""A real Spark for the SQL of transforms."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sparkmirror.data.spark.class_archive import ClassArchive
from sparkmirror.data.spark.session import _end_gateway
from sparkmirror.java import find_java, java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """One application for this folder, which one worker runs (tests/conftest.py).

    Its JVM takes ten processor seconds to start and to compile what the first query needs. Each
    plan has a session of its own in it, as each flow of a mirror has.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    java = find_java()
    os.environ.update(java_environment(java))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    archive = ClassArchive.find(java)
    # As a mirror's JVM.
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss4m"]
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.buffer.size", "256")
        .config("spark.python.daemon.module", "sparkmirror.data.workers.daemon")
        .config(
            "spark.driver.extraJavaOptions",
            " ".join([*options, *(archive.options() if archive is not None else ())]),
        )
        .getOrCreate()
    )
    yield session
    session.stop()
    # The next one starts a JVM of its own, with its own environment.
    _end_gateway(SparkContext._gateway)
