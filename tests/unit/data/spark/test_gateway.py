"""The JVM's process: what it is told, and how it is reached; ``spark-submit`` is stood in for."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import psutil
import pytest

from sparkmirror.data.spark import gateway
from sparkmirror.data.spark.gateway import GATEWAY_PORT, GatewayProcess, spark_home

_SUBMIT = """#!/bin/sh
printf '%s\\n' "$@" "launcher: $SPARK_LAUNCHER_OPTS" > "$SPARK_HOME/told"
{then}
"""
_ANSWERS = """printf '\\000\\000\\046\\364\\000\\000\\000\\006secret' > "$SPARK_HOME/part"
mv "$SPARK_HOME/part" "$_PYSPARK_DRIVER_CONN_INFO_PATH"
cat"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark whose ``spark-submit`` answers like the real one, and ends with its input."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv(GATEWAY_PORT, raising=False)
    _submit(tmp_path, _ANSWERS)
    return tmp_path


def _submit(home: Path, then: str) -> None:
    path = home / "bin" / "spark-submit"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_SUBMIT.format(then=then))
    path.chmod(stat.S_IRWXU)


def _started(home: Path, conf: dict[str, str]) -> GatewayProcess:
    with (home / "log").open("ab") as output:
        return GatewayProcess(conf, home, output, outlasts=True)


def test_it_is_reached_at_the_port_and_with_the_secret_that_it_wrote(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    class Gateway:
        proc = None

    def launch_gateway() -> Gateway:
        seen.update(os.environ)
        return Gateway()

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch_gateway)
    jvm = _started(home, {"spark.master": "local", "spark.x": "a b"})
    try:
        gateway = jvm.connect()
        assert gateway.proc is jvm.process
        assert jvm.process.poll() is None
    finally:
        jvm.end()
    assert (seen[GATEWAY_PORT], seen["PYSPARK_GATEWAY_SECRET"]) == ("9972", "secret")
    # What our children inherit does not name them, and nobody can read them later.
    assert GATEWAY_PORT not in os.environ
    assert "PYSPARK_GATEWAY_SECRET" not in os.environ
    assert not (home / "gateway").exists()
    told = (home / "told").read_text().splitlines()
    assert told[:5] == ["--conf", "spark.master=local", "--conf", "spark.x=a b", "pyspark-shell"]


def test_what_the_user_tells_spark_s_launcher_counts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "-Xmx64m")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name 'two words' pyspark-shell")
    jvm = _started(home, {})
    while not (home / "gateway").exists():
        time.sleep(0.01)
    jvm.end()
    told = (home / "told").read_text().splitlines()
    assert told == ["--name", "two words", "pyspark-shell", "launcher: -Xmx64m"]


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_a_collector_that_the_user_chose_is_the_launchers_too(
    variable: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of them no JVM starts."""
    assert "GC" in _launcher_options(home)
    monkeypatch.setenv(variable, "-XX:+UseZGC")
    assert "GC" not in _launcher_options(home)


def _launcher_options(home: Path) -> str:
    jvm = _started(home, {})
    while not (home / "gateway").exists():
        time.sleep(0.01)
    jvm.end()
    (home / "gateway").unlink()
    return (home / "told").read_text().splitlines()[-1]


def test_a_jvm_that_ends_at_once_is_noticed(home: Path) -> None:
    _submit(home, "exit 1")
    jvm = _started(home, {})
    with pytest.raises(ConnectionError, match="the JVM has ended"):
        jvm.connect()
    jvm.end()


def test_a_jvm_that_does_not_answer_is_not_waited_for_without_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _submit(home, "cat")
    monkeypatch.setattr(gateway, "_START_S_MAX", 0.2)
    jvm = _started(home, {})
    try:
        with pytest.raises(TimeoutError, match="its JVM has not answered"):
            jvm.connect()
    finally:
        jvm.end()


_COLLECTORS = """echo 'Picked up JAVA_TOOL_OPTIONS: -XX:+UseG1GC -Dtruststore.password=pw'
echo 'Error occurred during initialization of VM'
echo 'Multiple garbage collectors selected'
echo '/opt/spark/bin/spark-class: line 97: CMD: bad array subscript' >&2
exit 1"""
_HEAP = """echo '2026-11-29 12:00:00,000 WARN Utils: a host'
echo 'Exception in thread "main" java.lang.Exception: no Xmx (was -Xmx1g "-Db=p w" -Da=pw)'
printf '\\tat org.apache.spark.launcher.Main.main\\n'
exit 1"""

_OPTION = """echo "Unrecognized VM option 'Nonsense'"
echo 'Error: Could not create the Java Virtual Machine.'
echo 'Error: A fatal exception has occurred. Program will exit.'
exit 1"""


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (
            _COLLECTORS,
            "Error occurred during initialization of VM; Multiple garbage collectors selected",
        ),
        (
            _HEAP,
            'Exception in thread "main" java.lang.Exception: no Xmx (was -Xmx1g …',
        ),
        (_OPTION, "Unrecognized VM option 'Nonsense'"),
        ("exit 1", ""),
    ],
    ids=["a JVM", "Spark", "java", "nothing"],
)
def test_what_a_jvm_says_before_it_ends_is_told_without_secrets(
    home: Path, then: str, words: str
) -> None:
    (home / "log").write_text("Error of an earlier run\n")
    _submit(home, then)
    jvm = _started(home, {})
    jvm.process.wait(30)
    jvm.end()
    assert jvm.last_words() == words


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("(was -Xmx4g -Dpw=S3CRET)", "(was -Xmx4g …"),
        ('(was -Xmx4g -Dpw="Str0ng S3CRET phrase")', "(was -Xmx4g …"),
        ("(was -Xmx4g -Dpw='Str0ng S3CRET phrase')", "(was -Xmx4g …"),
        ("(was -Xmx4g -Dpw=a\\ S3CRET)", "(was -Xmx4g …"),
        ("(was -Xmx4g '-Dpw=a S3CRET')", "(was -Xmx4g …"),
        ("(was -Xmx4g -javaagent:/a.jar=key=S3CRET)", "(was -Xmx4g …"),
        ('(was -Xmx4g "-javaagent:/a.jar=key=a S3CRET")', "(was -Xmx4g …"),
        ("(was -Xmx4g -agentpath:/a.so=S3CRET)", "(was -Xmx4g …"),
        ("code 401 for URL: https://deploy:S3CRET@repo.example/x.jar", "code 401 for URL: …"),
        ("code 401 for URL: https://repo.example/x.jar",) * 2,
    ],
)
def test_what_a_jvm_says_ends_where_a_secret_may_begin(home: Path, said: str, words: str) -> None:
    (home / "said").write_text(f"Exception: {said}\n")
    _submit(home, 'cat "$SPARK_HOME/said"')
    jvm = _started(home, {})
    jvm.process.wait(30)
    jvm.end()
    assert jvm.last_words() == f"Exception: {words}"


def test_what_a_hanging_jvm_has_started_ends_with_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's scripts wait for a launcher, a JVM of its own."""
    _submit(home, 'sleep 300 & echo $! > "$SPARK_HOME/launcher"; wait')
    monkeypatch.setattr(gateway, "_START_S_MAX", 0.5)
    jvm = _started(home, {})
    with pytest.raises(TimeoutError):
        jvm.connect()
    launcher = psutil.Process(int((home / "launcher").read_text()))
    jvm.end()
    assert psutil.wait_procs([launcher], timeout=20)[1] == []


def test_sigterm_leaves_it_to_who_drains(home: Path) -> None:
    """A stop may reach all processes at once; the driver drains with Spark and ends it."""
    _submit(home, f"kill -TERM $$\n{_ANSWERS}")
    jvm = _started(home, {})
    assert jvm.process.stdin is not None
    jvm.process.stdin.close()
    assert jvm.process.wait(30) == 0
    assert (home / "gateway").exists()


def test_a_spark_that_is_not_there_is_named(home: Path) -> None:
    (home / "bin" / "spark-submit").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        _started(home, {})
    assert caught.value.filename == str(home / "bin" / "spark-submit")


def test_it_ends_with_the_pipe_from_us(home: Path) -> None:
    jvm = _started(home, {})
    assert jvm.process.stdin is not None
    jvm.process.stdin.close()
    assert jvm.process.wait(30) == 0


def test_a_home_is_found_without_loading_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    found = spark_home()
    assert found is not None
    assert (found / "bin" / "spark-submit").is_file()
    monkeypatch.setenv("SPARK_HOME", "/elsewhere")
    assert spark_home() == Path("/elsewhere")
