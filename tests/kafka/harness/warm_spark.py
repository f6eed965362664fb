"""Spark JVMs that the mirrors of a test session use one after another.

A mirror's start takes some 15 CPU seconds, of which its JVM takes twelve: it loads its classes and
runs its first query. The next mirror in the same JVM needs one of these twelve. Each mirror is a
process of its own with a Spark application and Python workers of its own; only the JVM was there
before. A JVM is used again if the mirror before ended its application in order, else it is killed.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from sparkmirror.data.coordination.sealed_options import KEY_VARIABLE, new_key
from sparkmirror.data.spark.class_archive import ClassArchive
from sparkmirror.java import find_java, java_environment
from sparkmirror.observe.logs import spark_log4j2_properties
from tests.kafka.harness.leaks import outlives_tests
from tests.patience import measured, patience

__all__ = ["WarmJvm", "close_jvms", "needs_own_jvm", "take_jvm"]

_COMMAND = Path(__file__).with_name("warm_command.py")
_LENGTH = struct.Struct(">i")
_OF_A_TEST = {"PYTEST_CURRENT_TEST", "COLUMNS", "LINES"}
# Each mirror gives its own to the Python processes that the JVM starts for it (`warm_command`).
_OF_A_MIRROR = {"PYTHONPATH"}


class WarmJvm:
    """One JVM with PySpark's gateway, as ``spark-submit`` starts it for a Python program."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="warm-"))
        self._environment = _environment()
        self._user: subprocess.Popen[bytes] | None = None
        self._log, self._logged_before = self._directory / "spark.log", 0
        self.process = self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        for name in ("tmp", "local"):
            (self._directory / name).mkdir()
        log4j2 = self._directory / "log4j2.properties"
        log4j2.write_text(spark_log4j2_properties(self._log), encoding="utf-8")
        connection, key = self._directory / "gateway", new_key()
        java = find_java()
        archive = ClassArchive.find(java)
        options = [
            f"-Dlog4j2.configurationFile={log4j2.as_uri()}",
            f"-Djava.io.tmpdir={self._directory / 'tmp'}",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",  # else it wakes up twenty times a second, all the time
            "-Xss4m",  # as a mirror's own
            "-Dio.netty.tryReflectionSetAccessible=true",
        ]
        if archive is not None:
            options += archive.options()
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        began = time.monotonic()
        with self._log.open("ab") as output:
            process = subprocess.Popen(
                [
                    str(Path(spec.origin).parent / "bin" / "spark-submit"),
                    *("--conf", "spark.driver.memory=1g"),
                    *("--conf", f"spark.driver.extraJavaOptions={' '.join(options)}"),
                    "pyspark-shell",
                ],
                stdin=subprocess.PIPE,  # the JVM ends when we do
                stdout=output,
                stderr=output,
                env={
                    **self._environment,
                    **java_environment(java),
                    "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
                    # What this JVM starts: the launcher of the mirror that uses it now.
                    "PYSPARK_PYTHON": str(self._directory / "python"),
                    "PYSPARK_DRIVER_PYTHON": str(self._directory / "python"),
                    KEY_VARIABLE: key,
                    # A JVM keeps the directories of its first application: those of a mirror that
                    # has ended, which any other one may remove while later ones use them.
                    "SPARK_LOCAL_DIRS": str(self._directory / "local"),
                },
                start_new_session=True,
            )
        while not connection.exists():
            assert process.poll() is None, self._log.read_text(errors="replace")
            assert time.monotonic() - began < patience(), "no JVM"
            time.sleep(0.05)
        measured(time.monotonic() - began)
        written = connection.read_bytes()
        (port,) = _LENGTH.unpack_from(written)
        secret = written[2 * _LENGTH.size :].decode()
        path = self._directory / "connection"
        path.touch(mode=0o600)
        path.write_text(f"{port} {secret} {key}", encoding="utf-8")
        return process

    @property
    def _in_use(self) -> Path:
        return self._directory / "in-use"

    def usable(self) -> bool:
        """Whether a mirror may have it now; one that was left in disorder is killed."""
        if self._user is not None and self._user.poll() is None:
            return False
        self.discard_unless_clean()
        return self.process.poll() is None and self._environment == _environment()

    def command(self, command: str) -> list[str]:
        """What to start in place of the installed ``command``; its arguments follow."""
        self._in_use.touch()
        return [sys.executable, str(_COMMAND), str(self._directory), command]

    def used_by(self, process: subprocess.Popen[bytes]) -> None:
        """``process`` runs what `command` said."""
        self._user = process
        self._logged_before = self._log.stat().st_size

    def log(self) -> str:
        """What Spark has logged since `used_by`; empty once the JVM was closed."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(self._logged_before)
            return log.read().decode(errors="replace")

    def discard_unless_clean(self) -> None:
        """Kill it, and the query that may still run in it, if its mirror ended in disorder."""
        if self._in_use.exists():
            self.close()

    def close(self) -> None:
        """End the JVM, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _environment() -> dict[str, str]:
    left_out = _OF_A_TEST | _OF_A_MIRROR
    return {name: value for name, value in os.environ.items() if name not in left_out}


def needs_own_jvm(environment: Mapping[str, str] | None) -> bool:
    """Whether a mirror with these variables beside ours cannot have a JVM that runs already."""
    return not {*(environment or {})} <= _OF_A_MIRROR


_jvms: list[WarmJvm] = []


def take_jvm() -> WarmJvm:
    """A JVM that nobody uses; a new one if there is none."""
    for jvm in list(_jvms):
        if jvm.usable():
            return jvm
        if jvm.process.poll() is not None:
            _jvms.remove(jvm)
    with outlives_tests():
        _jvms.append(WarmJvm())
    return _jvms[-1]


def close_jvms() -> None:
    """End them all."""
    while _jvms:
        _jvms.pop().close()
