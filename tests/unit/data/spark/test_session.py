"""What Spark's JVM is told when it starts, without one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sparkmirror.data.spark import session
from sparkmirror.data.spark.session import Spark
from sparkmirror.errors import MachineError
from sparkmirror.settings import MirrorSettings

_JVM_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.mark.parametrize("master", ["local[1]", "spark://127.0.0.1:1"])
def test_every_python_of_a_local_spark_is_forked(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM looks for data sources with the driver's Python, and runs all else with the other."""
    monkeypatch.setattr(os, "environ", {**os.environ, "PYSPARK_PYTHON": "of-the-cluster"})

    class Started(Exception):
        pass

    def start(*_: object, outlasts: bool) -> None:
        raise Started(outlasts, *(os.environ[name] for name in _PYTHONS))

    monkeypatch.setattr(session, "GatewayProcess", start)
    before = dict(os.environ)
    spark = Spark(
        MirrorSettings((), ()), master=master, spark_conf={}, work_dir=tmp_path / "work", key="k"
    )
    try:
        with pytest.raises(Started) as told:
            spark.open()
    finally:
        spark.close()
    assert dict(os.environ) == before  # the launcher is gone, and a next application starts its own
    launcher = str(tmp_path / "work" / "python")
    local = master.startswith("local")
    # Only where its Python processes are forks does the JVM leave SIGTERM to the driver.
    assert told.value.args == (
        (True, launcher, launcher) if local else (False, "of-the-cluster", sys.executable)
    )


def test_the_users_options_for_the_jvm_follow_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = '-Xss8m -Dhttp.proxyHost="a b"'
    options = _told(tmp_path, monkeypatch, {_JVM_OPTIONS: theirs})[_JVM_OPTIONS]
    ours = options.removesuffix(f" {theirs}")
    assert ours != options
    for option in ("-Dlog4j2.configurationFile=", "-Djava.io.tmpdir=", "-Xss4m"):
        assert option in ours


@pytest.mark.parametrize(
    "named",
    [
        *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"),
        *(_JVM_OPTIONS, "spark.driver.defaultJavaOptions"),
    ],
)
def test_a_collector_that_the_user_chose_is_the_only_one(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of them no JVM starts."""
    options = _told(tmp_path, monkeypatch, {})[_JVM_OPTIONS]
    assert "-XX:+UseParallelGC" in options
    theirs = {named: "-Xms64m -XX:+UseG1GC"}
    if named.startswith("spark."):
        options = _told(tmp_path, monkeypatch, theirs)[_JVM_OPTIONS]
    else:
        monkeypatch.setenv(named, theirs[named])
        options = _told(tmp_path, monkeypatch, {})[_JVM_OPTIONS]
    assert "-XX:+UseParallelGC" not in options


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME"])
@pytest.mark.parametrize(
    ("text", "given", "ours"),
    [
        ("spark.driver.defaultJavaOptions  -XX:+UseG1GC\n", {}, False),
        ("a 1\n spark.driver.defaultJavaOptions= -Xms1g \\\n  -XX:+UseG1GC\nb 2\n", {}, False),
        ("spark.driver.defaultJavaOptions: -Xms1g\nb -XX:+UseG1GC\n", {}, True),
        ("# spark.driver.defaultJavaOptions  -XX:+UseG1GC\n", {}, True),
        # What we say there counts.
        ("spark.driver.extraJavaOptions  -XX:+UseG1GC\n", {}, True),
        (
            "spark.driver.defaultJavaOptions  -XX:+UseG1GC\n",
            {"spark.driver.defaultJavaOptions": "-Xms1g"},
            True,
        ),
    ],
)
def test_a_collector_in_sparks_own_file_is_the_only_one(
    variable: str,
    text: str,
    given: dict[str, str],
    ours: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be there for all applications of a cluster."""
    monkeypatch.setattr(session, "check_installed", lambda *_, **__: None)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    path = tmp_path / ("conf" if variable == "SPARK_HOME" else "") / "spark-defaults.conf"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    options = _told(tmp_path, monkeypatch, given)[_JVM_OPTIONS]
    assert ("-XX:+UseParallelGC" in options) is ours


def test_a_jvm_that_ends_at_once_has_said_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text("#!/bin/sh\necho 'Multiple garbage collectors selected'\nexit 1\n")
    submit.chmod(0o700)
    monkeypatch.setattr(session, "check_installed", lambda *_, **__: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    work = tmp_path / "work"
    spark = Spark(MirrorSettings((), ()), master="local[1]", spark_conf={}, work_dir=work, key="k")
    try:
        with pytest.raises(MachineError) as told:
            spark.open()
    finally:
        spark.close()
    why = "its JVM ended: Multiple garbage collectors selected"
    assert told.value.what == f"Spark does not start ({why})."


def test_spark_writes_only_where_the_next_run_removes_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark prefers the variables to its setting."""
    for name in ("SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS"):
        monkeypatch.setenv(name, str(tmp_path))
    told = _told(tmp_path, monkeypatch, {})
    assert told["spark.local.dir"].endswith("/local")
    assert "SPARK_LOCAL_DIRS" not in told
    assert "SPARK_EXECUTOR_DIRS" not in told
    assert os.environ["SPARK_LOCAL_DIRS"] == str(tmp_path)
    told = _told(tmp_path, monkeypatch, {"spark.local.dir": "/elsewhere"})
    assert told["spark.local.dir"] == "/elsewhere"


def _told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_conf: dict[str, str]
) -> dict[str, str]:
    """The variables and the settings with which a local Spark's JVM would start."""
    told: dict[str, str] = {}

    class Started(Exception):
        pass

    def start(conf: dict[str, str], *_: object, outlasts: bool) -> None:
        told.update(os.environ | conf)
        raise Started

    monkeypatch.setattr(session, "GatewayProcess", start)
    spark = Spark(
        MirrorSettings((), ()),
        master="local[1]",
        spark_conf=spark_conf,
        work_dir=tmp_path / "work",
        key="k",
    )
    try:
        with pytest.raises(Started):
            spark.open()
    finally:
        spark.close()
    return told
