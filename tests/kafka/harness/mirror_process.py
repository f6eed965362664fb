"""The real command as a subprocess, and a look at what brokers really stored."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparkmirror.records.header import HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.net.poller import readable
from tests.kafka.harness.warm_spark import needs_own_jvm, take_jvm
from tests.patience import patience

# Those of its commands that start Spark; the others, such as ``history``, need no JVM.
_WITH_SPARK = ("run", "transform")


class MirrorProcess:
    """``sparkmirror run FILE`` (or another command line), its JSON lines, its end.

    Its Spark runs in a JVM of the test session (`warm_spark`), unless it is ``cold`` or has a Spark
    cluster of its own, or an ``environment`` with more than a path where Python finds modules.
    Tests of processes, of what a killed one leaves and of Spark's log want a cold one.
    """

    def __init__(
        self,
        directory: Path,
        arguments: list[str],
        *,
        command: str = "sparkmirror",
        environment: Mapping[str, str] | None = None,
        cold: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.output = directory / f"output-{time.monotonic_ns()}.txt"
        without_spark = command == "sparkmirror" and arguments[0] not in _WITH_SPARK
        cold = cold or without_spark or needs_own_jvm(environment) or "--master" in arguments
        self._jvm = None if cold else take_jvm()
        start = [str(installed(command))] if self._jvm is None else self._jvm.command(command)
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [*start, *arguments],
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=_environment(directory, environment),
            )
        if self._jvm is not None:
            self._jvm.used_by(self.process)

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code; kills and fails when it takes longer than ``timeout_s`` or our patience."""
        timeout_s = timeout_s or patience()
        try:
            code = self.process.wait(timeout_s)
            if code != 0 and self._jvm is not None:
                # The session's JVM goes, and its log with it; a failed test's directory stays.
                self.output.with_suffix(".spark.log").write_text(self._jvm.log(), encoding="utf-8")
            return code
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text()}") from None

    def drain(
        self, timeout_s: float | None = None, number: signal.Signals = signal.SIGTERM
    ) -> tuple[int, float]:
        """Sends the signal ``number``; (exit code, seconds that it took)."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.wait(timeout_s), time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL to the driver; Spark's JVM ends when its standard input closes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        if self._jvm is not None:
            self._jvm.discard_unless_clean()

    @property
    def jvm_pid(self) -> int:
        """Process id of the session's JVM that it uses."""
        assert self._jvm is not None, "a JVM of its own"
        return self._jvm.process.pid

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def spark_log(self) -> str:
        """What Spark's JVM has logged, if it is one of the test session; a cold one has a file."""
        return "" if self._jvm is None else self._jvm.log()

    def documents(self) -> list[dict[str, Any]]:
        """The JSON lines so far; of the last one, only a part may be there yet."""
        lines = self.text().splitlines(keepends=True)
        whole = [line for line in lines if line.startswith("{") and line.endswith("\n")]
        return [json.loads(line) for line in whole]


def asked(
    directory: Path,
    *arguments: str,
    code: int = 0,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """What ``sparkmirror ARGUMENTS`` says on its output and beside it; it must end with ``code``.

    For commands that run transforms, as ``verify`` and ``transform try``: their Spark runs in a JVM
    of the test session, as a mirror's. ``environment``: a path where Python finds modules.
    """
    assert not needs_own_jvm(environment), environment
    jvm = take_jvm()
    process = subprocess.Popen(
        [*jvm.command("sparkmirror"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(directory, environment),
    )
    jvm.used_by(process)
    try:
        out, err = process.communicate(timeout=patience())
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        jvm.discard_unless_clean()
    assert process.returncode == code, f"{process.returncode}\n{out}{err}"
    return out, err


def installed(command: str) -> Path:
    """The script of one of the package's commands, beside the Python that runs the tests."""
    return Path(sys.executable).parent / command


def _environment(directory: Path, added: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(directory / "state"), **(added or {})}


# The first terminal that the leader of a new session opens is its own: its keys send signals, and
# who closes it sends SIGHUP.
_TAKE_TERMINAL = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for stream in range(3):
    os.dup2(terminal, stream)
os.execv(sys.argv[2], sys.argv[2:])
"""
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ERASE_LINE = "\x1b[2K"


class TerminalProcess:
    """``sparkmirror ARGUMENTS`` in a terminal of its own, with keys, which can be closed."""

    def __init__(
        self,
        directory: Path,
        arguments: list[str],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._master, self._slave = os.openpty()
        take = [sys.executable, "-c", _TAKE_TERMINAL, os.ttyname(self._slave)]
        size = {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        self.process = subprocess.Popen(
            [*take, str(installed("sparkmirror")), *arguments],
            stdin=subprocess.DEVNULL,
            env=_environment(directory, {**size, **(environment or {})}),
            start_new_session=True,
        )
        self._shown = bytearray()
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing.is_set():
            if readable([self._master], 0.1):
                self._shown += os.read(self._master, 65_536)

    def text(self) -> str:
        """All that was drawn so far, control sequences included."""
        return self._shown.decode(errors="replace")

    def lines(self) -> list[str]:
        """All that was written so far, without control sequences."""
        return _lines(self.text())

    def picture(self, footer: str, timeout_s: float | None = None) -> list[str]:
        """The lines of the live view, once ``footer`` is in the last one."""
        found: list[str] = []

        def drawn() -> bool:
            # Each picture begins by erasing the one before it.
            found[:] = _lines(self.text().rpartition(_ERASE_LINE)[2])
            return footer in found[-1]

        wait_until(drawn, f"a live view that ends with {footer!r}", timeout_s)
        return found

    def press(self, key: str) -> None:
        """As if somebody pressed it there."""
        os.write(self._master, key.encode())

    def close(self) -> None:
        """Closes the terminal, as when its window is closed."""
        if not self._closing.is_set():
            self._closing.set()
            self._reader.join(5)  # a terminal is closed when nobody holds it any more
            os.close(self._master)
            os.close(self._slave)

    def kill(self) -> None:
        """SIGKILL, if it still runs; closes the terminal."""
        self.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


def _lines(written: str) -> list[str]:
    return _CONTROL_SEQUENCE.sub("", written).replace("\r\n", "\n").strip().split("\n")


def write_mm2(
    path: Path,
    a: KafkaCluster,
    b: KafkaCluster,
    topics: str,
    extra: dict[str, str] | None = None,
    *,
    source: str = "A",
    target: str = "B",
) -> Path:
    """A MirrorMaker 2 file for A->B on one-node clusters.

    ``source`` and ``target`` are the aliases: internal topics and the group are named after them,
    so a test that looks into those takes aliases of its own.
    """
    settings = {
        "clusters": f"{source}, {target}",
        f"{source}.bootstrap.servers": a.bootstrap_servers,
        f"{target}.bootstrap.servers": b.bootstrap_servers,
        f"{source}->{target}.enabled": "true",
        f"{source}->{target}.topics": topics,
        "tasks.max": "2",
        "replication.factor": "1",
        f"{source}.offset.storage.replication.factor": "1",
        f"{target}.offset.storage.replication.factor": "1",
        "refresh.topics.interval.seconds": "2",
        "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        # One topic for all: only the test of heartbeats has them.
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        **(extra or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    return path


def write_mm1(directory: Path, a: KafkaCluster, b: KafkaCluster, group: str) -> list[str]:
    """MirrorMaker 1's two files for a->b; returns the options that name them."""
    consumer, producer = directory / "consumer.properties", directory / "producer.properties"
    consumer.write_text(
        f"bootstrap.servers={a.bootstrap_servers}\ngroup.id={group}\nauto.offset.reset=earliest\n"
    )
    producer.write_text(f"bootstrap.servers={b.bootstrap_servers}\nacks=all\n")
    return ["--consumer.config", str(consumer), "--producer.config", str(producer)]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
    """Waits until ``condition``; fails with ``what`` after ``timeout_s``, or our patience.

    A look that takes long is followed by a longer pause: others need the processors meanwhile.
    """
    timeout_s = timeout_s or patience()
    began = looked = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < began + timeout_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(min(2.0, max(0.2, 2 * (now - looked))))
        looked = time.monotonic()


class StoredBatch:
    """Header fields of one batch in a broker's log."""

    def __init__(self, fields: tuple[int, ...]) -> None:
        self.magic, self.attributes, self.last_delta = fields[3], fields[5], fields[6]
        self.producer_id, self.count = fields[9], fields[12]
        self.size = LOG_OVERHEAD_BYTES + fields[1]

    def has(self, bit: int) -> bool:
        return bool(self.attributes & bit)


def stored(cluster: KafkaCluster, topic: str) -> list[StoredBatch]:
    """Headers of all magic 2 batches of a topic, read from the first node's log files."""
    deadline = time.monotonic() + patience()
    while True:
        try:
            return _stored(cluster, topic)
        except FileNotFoundError:  # the broker renames what it has cleaned or deletes
            if time.monotonic() > deadline:
                raise


def _stored(cluster: KafkaCluster, topic: str) -> list[StoredBatch]:
    found = []
    # A look through all directories would meet some that the broker is deleting.
    for path in sorted(cluster.data_path().glob(f"{topic}-[0-9]*/*.log")):
        data, at = path.read_bytes(), 0
        while at + HEADER_BYTES <= len(data):
            fields = HEADER.unpack_from(data, at)
            if fields[1] <= 0:
                break
            found.append(StoredBatch(fields))
            at += LOG_OVERHEAD_BYTES + fields[1]
    return found
