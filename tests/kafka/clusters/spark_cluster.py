"""A real Spark standalone cluster on this machine, whose workers do not have sparkmirror."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from sparkmirror.data.spark.dependencies import SHIPPED
from sparkmirror.java import find_java, java_environment
from sparkmirror.testing.clusters import QUICK_JVM
from sparkmirror.testing.probe import free_ports
from tests.patience import patience

_WORKER_CORES = 2


def closed_network() -> dict[str, str]:
    """Settings with which Spark's processes want a login of one another, and encrypt."""
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(16),
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
    }


def plain_python(directory: Path) -> tuple[Path, Path]:
    """An interpreter that has PySpark and its requirements, but nothing that we ship.

    Also the directory of what it lacks, sparkmirror aside, for the driver, which must have the
    same interpreter.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    interpreter = directory / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "lib" / version / "site-packages"
    ours = re.compile(rf"(__editable__\.|_+)?({'|'.join(SHIPPED)})([.\-_].*)?$", re.IGNORECASE)
    lacking = directory / "lacking"
    lacking.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if entry.suffix != ".pth":
            place = lacking if ours.match(entry.name) else packages
            (place / entry.name).symlink_to(entry)
    return interpreter, lacking


class SparkCluster:
    """A master and ``workers`` workers with two cores each; a context manager.

    ``settings``: lines of their ``spark-defaults.conf``, which is in ``directory``. ``ports``:
    those of the master and the workers.
    """

    def __init__(
        self, directory: Path, *, workers: int = 2, settings: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._count = workers
        lines = [f"{key} {value}\n" for key, value in (settings or {}).items()]
        (directory / "spark-defaults.conf").write_text("".join(lines))
        self._processes: list[subprocess.Popen[bytes]] = []
        port, web_port, *worker_ports = free_ports(2 + workers)
        self.ports = [port, *worker_ports]
        self.master = f"spark://127.0.0.1:{port}"
        self._master_flags = ["--port", str(port), "--webui-port", str(web_port)]

    def __enter__(self) -> Self:
        package = "org.apache.spark.deploy"
        self._start("master", f"{package}.master.Master", self._master_flags)
        self._wait_for("master", "New state: ALIVE")
        for number in range(self._count):
            (web_port,) = free_ports(1)
            flags = [
                "--port",
                str(self.ports[1 + number]),
                "--cores",
                str(_WORKER_CORES),
                "--memory",
                "1g",
                "--webui-port",
                str(web_port),
            ]
            flags += ["--work-dir", str(self.directory / f"work-{number}"), self.master]
            self._start(f"worker-{number}", f"{package}.worker.Worker", flags)
        for number in range(self._count):
            self._wait_for(f"worker-{number}", "Successfully registered with master")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            for one in _tree(process.pid):
                one.kill()
            process.wait(20)

    def log(self, name: str) -> str:
        """What ``master`` or ``worker-N`` has said so far."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def kill_busy_worker(self) -> int:
        """SIGKILL to a worker that runs a slot, its executor and its Python processes first.

        Returns its number.
        """
        deadline = time.monotonic() + patience()
        while time.monotonic() < deadline:
            for number, process in enumerate(self._processes[1:]):
                tree = _tree(process.pid)
                if sum(map(_is_python, tree)) > 1:
                    process.send_signal(signal.SIGKILL)
                    for one in tree:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            one.kill()
                    process.wait(20)
                    return number
            time.sleep(0.2)
        raise AssertionError("no worker runs a slot")

    def _start(self, name: str, main_class: str, flags: Sequence[str]) -> None:
        home = Path(pyspark.__file__).parent
        environment = {
            **java_environment(find_java()),
            "PATH": os.defpath,
            "HOME": str(self.directory),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            # Also of the executors: no JVM here lives for long, and a quick start is all.
            "JDK_JAVA_OPTIONS": " ".join(QUICK_JVM),
        }
        with (self.directory / f"{name}.log").open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), main_class, "--host", "127.0.0.1", *flags],
                    env=environment,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait_for(self, name: str, words: str) -> None:
        deadline = time.monotonic() + patience()
        while words not in self.log(name):
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.2)


def _is_python(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "python" in process.name()
    return False  # it has just ended


def _tree(pid: int) -> list[psutil.Process]:
    """A process and all below it, the leaves first."""
    try:
        root = psutil.Process(pid)
        return [*reversed(root.children(recursive=True)), root]
    except psutil.NoSuchProcess:
        return []
