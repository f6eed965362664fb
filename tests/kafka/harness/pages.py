"""Whoever follows a page of the documentation: its blocks are run as they stand there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sparkmirror.demo.tools import write_tools
from sparkmirror.testing.clusters import KafkaCluster
from tests.patience import patience

__all__ = ["DOCS", "NEW", "OLD", "Reader", "blocks", "mirror_ended"]

DOCS = Path(__file__).parents[3] / "docs"
OLD, NEW = "a1.example.com:9092", "b1.example.com:9092"
"""How pages name the two clusters."""
_SHELL = ("bash", "-e", "-u", "-o", "pipefail", "-c")


def blocks(page: Path, language: str) -> list[str]:
    """The page's code blocks of ``language``, in order."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found


class Reader:
    """Follows a page in ``directory``; names, numbers of brokers and cores are this machine's.

    ``instead``: further texts of the page and what stands for them here.
    """

    def __init__(
        self,
        directory: Path,
        old: KafkaCluster,
        new: KafkaCluster,
        instead: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._instead = {
            OLD: old.bootstrap_servers,
            NEW: new.bootstrap_servers,
            "replication.factor = 3": "replication.factor = 1",
            "tasks.max = 4": "tasks.max = 2",
            **instead,
        }
        write_tools(new.runtime, directory / "bin")
        places = [str(directory / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join(places),
            "XDG_STATE_HOME": str(directory / "state"),
            "LC_ALL": "C",
            **(environment or {}),
        }

    def adapted(self, text: str) -> str:
        for there, here in self._instead.items():
            text = text.replace(there, here)
        return text

    def start(self, command: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """A command that goes on, in a process group of its own, as a shell starts it."""
        return subprocess.Popen(
            [*_SHELL, self.adapted(command)],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, block: str) -> str:
        done = subprocess.run(
            [*_SHELL, self.adapted(block)],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience(),
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        path = self.directory / "mirror.log"
        return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def mirror_ended(directory: Path) -> Iterator[None]:
    """Whatever happens, no mirror is left behind."""
    try:
        yield
    finally:
        path = directory / "mirror.pid"
        if path.exists():
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                path.unlink()
