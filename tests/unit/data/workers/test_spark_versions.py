"""Versions of Spark that were not tried are refused by name, on every machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.data.spark.session import Spark
from sparkmirror.data.workers import spark_versions as versions
from sparkmirror.data.workers.spark_versions import (
    SUPPORTED,
    check_executors,
    check_installed,
    check_jvm,
    check_worker,
    release,
    same_release,
)
from sparkmirror.errors import MachineError
from tests.unit.config_files import BASE, load

ROOT = Path(__file__).parents[4]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets this Python have PySpark of the version that it is called with."""

    def have(version: str) -> None:
        monkeypatch.setattr(versions, "version", lambda _package: version)

    return have


def test_the_release_is_the_first_two_numbers() -> None:
    assert [release(text) for text in ("4.3.0", "4.3.1.dev2", " 4.10.0", "4", "", "x4.3")] == [
        *("4.3", "4.3", "4.10"),
        *("", "", ""),
    ]


def test_what_is_installed_is_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (asked,) = [one for one in project["dependencies"] if one.startswith("pyspark")]
    above = ".".join([SUPPORTED[-1].split(".")[0], str(int(SUPPORTED[-1].split(".")[1]) + 1)])
    assert asked == f"pyspark>={SUPPORTED[0]},<{above}"
    check_installed({})


@pytest.mark.parametrize("version", ["4.2.1", "4.3.0", "4.3.7"])
def test_releases_that_were_tried_are_accepted(installed: Any, version: str) -> None:
    installed(version)
    check_installed({})
    check_worker(version)


@pytest.mark.parametrize("version", ["3.5.6", "4.1.4", "4.4.0", "5.0.0", "4.30.0"])
def test_others_are_refused_by_name(installed: Any, version: str) -> None:
    installed(version)
    with pytest.raises(MachineError) as told:
        check_installed({})
    assert told.value.what.startswith(f"PySpark {version} is installed.")
    assert "Spark 4.2 and 4.3" in told.value.what
    assert told.value.where == sys.executable
    assert "pip install 'pyspark==4.3.*'" in str(told.value.do)
    with pytest.raises(MachineError, match=f"PySpark {version} would run the slots"):
        check_worker(version)


def test_records_are_not_rewritten_where_spark_hands_them_over_late(installed: Any) -> None:
    installed("4.2.1")
    with pytest.raises(MachineError, match=r"Flow a->b rewrites records, and PySpark 4.2.1"):
        check_installed({}, records="a->b")
    installed("4.3.0")
    check_installed({}, records="a->b")


def _spark_home(directory: Path, version: str) -> Path:
    (directory / "jars").mkdir(parents=True)
    (directory / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return directory


def test_a_spark_home_of_another_release_is_refused(tmp_path: Path, installed: Any) -> None:
    installed("4.3.0")
    home = _spark_home(tmp_path / "old", "3.5.4")
    with pytest.raises(MachineError) as told:
        check_installed({"SPARK_HOME": str(home)})
    assert "Spark 3.5.4 is there, and this Python has PySpark 4.3.0" in told.value.what
    assert told.value.where == f"SPARK_HOME={home}"
    assert str(told.value.do).startswith("Unset SPARK_HOME")


def test_a_spark_home_of_the_same_release_is_used(tmp_path: Path, installed: Any) -> None:
    installed("4.3.0")
    check_installed({"SPARK_HOME": str(_spark_home(tmp_path / "same", "4.3.1"))})
    check_installed({"SPARK_HOME": str(tmp_path / "nothing")})


def test_the_jvm_must_be_of_the_release_that_python_has(installed: Any) -> None:
    installed("4.3.0")
    check_jvm("4.3.1")
    with pytest.raises(MachineError, match=r"JVM runs Spark 4.2.1, this Python has PySpark 4.3.0"):
        check_jvm("4.2.1")


def test_nothing_is_started_with_another_version(
    tmp_path: Path, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("4.1.1")
    monkeypatch.setattr(
        "sparkmirror.data.spark.session.find_java", lambda: pytest.fail("asked for Java")
    )
    spark = Spark(
        load(tmp_path, BASE), master="local[1]", spark_conf={}, work_dir=tmp_path, key="k"
    )
    with pytest.raises(MachineError, match=r"PySpark 4.1.1 is installed"):
        spark.open()


def _cluster(answer: Any, executors: int = 2) -> Any:
    """A context whose executors, ``executors`` of them, give ``answer``."""
    asked: list[int] = []

    def collect() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    rows = SimpleNamespace(map=lambda _function: SimpleNamespace(collect=collect))
    memory = SimpleNamespace(size=lambda: executors + 1)
    return SimpleNamespace(
        master="spark://m:7077",
        asked=asked,
        parallelize=lambda _all, tasks: asked.append(tasks) or rows,
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: memory)),
    )


def test_each_executor_is_asked(installed: Any) -> None:
    installed("4.3.0")
    context = _cluster([("one", "4.3.0"), ("two", "4.3.2")])
    check_executors(context)
    assert context.asked == [2]


def test_a_cluster_without_executors_yet_is_not_waited_for() -> None:
    context = _cluster(RuntimeError("asked"), executors=0)
    check_executors(context)
    assert context.asked == []


def test_executors_of_another_release_are_named(installed: Any) -> None:
    installed("4.3.0")
    with pytest.raises(MachineError) as told:
        check_executors(_cluster([("one", "4.3.0"), ("two", "4.2.1")]))
    assert "report another Spark (two: Spark 4.2.1) than this machine's 4.3.0" in told.value.what
    assert told.value.where == "master spark://m:7077"
    assert "Install Spark 4.3 on the workers" in str(told.value.do)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Job aborted\nTraceback\nsparkmirror.errors.MachineError: /py: PySpark 4.1.1 would run"
            " the slots.\nPYTHONPATH was: /x\n",
            "PySpark 4.1.1 would run the slots.",
        ),
        (
            "Job aborted\npyspark.errors.PySparkRuntimeError: Python in worker has different"
            " version: 3.9 than that in driver: 3.11\n\tat a.b(C.scala)",
            "has different version: 3.9",
        ),
        ("", "RuntimeError"),
    ],
)
def test_why_executors_cannot_answer_is_reported(installed: Any, said: str, shown: str) -> None:
    installed("4.3.0")
    with pytest.raises(MachineError) as told:
        check_executors(_cluster(RuntimeError(said)))
    assert shown in told.value.what
    assert "Spark 4.3.0, Python" in str(told.value.do)


def test_a_cluster_that_does_not_understand_us_may_be_of_another_release(installed: Any) -> None:
    installed("4.3.0")
    assert same_release().startswith("The cluster must run Spark 4.3,")


class _Jvm:
    """A gateway whose JVM is there until it is shut down."""

    def __init__(self) -> None:
        self.there = True
        self.proc = subprocess.Popen(
            [sys.executable, "-c", ""], stdin=subprocess.PIPE, start_new_session=True
        )

    def shutdown(self) -> None:
        self.there = False


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n"
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
            "\tat a.b(C.scala)",
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
        ),
        (None, "its JVM ended"),
    ],
)
def test_a_master_of_another_release_is_reported_with_the_one_that_it_must_have(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: Any,
    said: str | None,
    shown: str,
) -> None:
    """Spark gives up after a minute, and only the JVM can say so: a Java exception asks it."""
    installed("4.3.0")
    jvm = _Jvm()
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", lambda **_: jvm)

    class JavaError(Exception):
        def __str__(self) -> str:
            if not jvm.there or said is None:
                raise ConnectionRefusedError(111, "Connection refused")
            return said

    class Stopped:
        def __init__(self, **_: object) -> None:
            raise JavaError

    monkeypatch.setattr("pyspark.SparkContext", Stopped)
    monkeypatch.setattr(Spark, "_close_ports", lambda *_: None)
    master = "spark://m:7077"
    spark = Spark(load(tmp_path, BASE), master=master, spark_conf={}, work_dir=tmp_path, key="k")
    with pytest.raises(MachineError) as told:
        spark._launch({"spark.master": master})
    assert told.value.what == f"Spark does not start ({shown})."
    assert told.value.where == f"master {master}"
    assert str(told.value.do).endswith(
        "The cluster must run Spark 4.3, because this machine has PySpark 4.3.0."
    )


def test_a_start_that_fails_late_leaves_no_application_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Any
) -> None:
    """PySpark refuses a second one in this process, also when the JVM of the first is gone."""
    installed("4.3.0")
    jvm, stopped = _Jvm(), list[bool]()
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", lambda **_: jvm)

    class Session:
        version = "4.0.0"

        def __init__(self, context: object) -> None:
            self.sparkContext = context

        def stop(self) -> None:
            stopped.append(jvm.there)
            raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("pyspark.SparkContext", lambda **_: None)
    monkeypatch.setattr("pyspark.sql.SparkSession", Session)
    monkeypatch.setattr("sparkmirror.data.spark.session.without_ml", contextlib.nullcontext)
    spark = Spark(load(tmp_path, BASE), master="local", spark_conf={}, work_dir=tmp_path, key="k")
    with pytest.raises(MachineError, match=r"4\.0\.0"):
        spark._launch({"spark.master": "local"})
    assert stopped == [True], "while its JVM was there"
