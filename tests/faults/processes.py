"""Several processes of one file, each started again some seconds after it has ended.

What each of them says of the flow is read from its JSON lines, with their times.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil

from tests.faults.harness import Mirror

__all__ = ["Life", "Seat"]

_FENCED = "has taken this flow over"


@dataclass
class Life:
    """One process from its start to its end, in seconds of this machine's clock; 0 for not yet.

    ``ready_s``: it stood by with Spark started. ``owns_s``: the flow was its own; ``taken_over``:
    it said so when it stopped waiting for the flow, not when it mirrored. ``ordered``: the signal
    that was sent to end it. ``frozen``: whether it ever stood still.
    """

    seat: str
    ready_s: float = 0.0
    owns_s: float = 0.0
    taken_over: bool = False
    ordered: signal.Signals | None = None
    frozen: bool = False
    spoke: bool = False
    code: int | None = None

    def hear(self, line: str) -> None:
        """Take one line of its output."""
        self.spoke = True
        if not line.startswith("{"):
            return
        said = json.loads(line)
        message = said.get("message") or ""
        time_s = datetime.fromisoformat(said["time"]).timestamp()
        if said["type"] == "phase" and message == "standing by":
            self.ready_s = time_s
        elif said["type"] == "event" and ": taken over from " in message:
            self.owns_s, self.taken_over = time_s, True
        elif said["type"] == "phase" and message == "mirroring":
            self.owns_s = self.owns_s or time_s

    def wrong_end(self, output: str) -> str:
        """Why it should not have ended as it did; empty when it should."""
        if self.ordered is signal.SIGKILL:
            return "" if self.code == -signal.SIGKILL else f"killed, but ended with {self.code}"
        if self.ordered is signal.SIGTERM:
            return "" if self.code == 0 else f"asked to end, it ended with {self.code}"
        fenced = self.code == 1 and _FENCED in output
        if fenced and self.frozen:
            return ""
        return "was taken over from while it ran" if fenced else f"ended with {self.code} by itself"


@dataclass
class Seat:
    """One of the processes, and all that sat there before it.

    ``pause_s`` says for how long nobody does after one has ended; ``closed``: nobody will any more.
    ``wrong``: what they did that they should not have.
    """

    name: str
    mirror: Mirror
    pause_s: Callable[[], float]
    lives: list[Life] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    closed: bool = False
    _read: int = 0
    _start_s: float = 0.0
    _wake_s: float = 0.0
    _frozen: list[psutil.Process] = field(default_factory=list)
    _left: list[psutil.Process] = field(default_factory=list)

    @classmethod
    def begin(
        cls, directory: Path, config: Path, *arguments: str, pause_s: Callable[[], float]
    ) -> Seat:
        """Start the first process, which keeps its output in ``directory``."""
        directory.mkdir()
        mirror = Mirror(directory, config, "--log-format", "json", *arguments)
        return cls(directory.name, mirror, pause_s, [Life(directory.name)])

    @property
    def life(self) -> Life:
        """The newest process."""
        return self.lives[-1]

    @property
    def runs(self) -> bool:
        """Whether it has not ended, stands still or has been asked to end."""
        return self.life.code is None and self.life.ordered is None and not self._frozen

    @property
    def stands_by(self) -> bool:
        """Whether it has said something, and never that the flow is its own."""
        return self.runs and self.life.spoke and not self.life.owns_s

    @property
    def ready(self) -> bool:
        """Whether it stands by with Spark started."""
        return self.stands_by and self.life.ready_s > 0

    def tend(self) -> None:
        """Read what it has said, wake it, start it again: whatever is due. Call it often."""
        now_s = time.time()
        if self._frozen and now_s >= self._wake_s:
            self.wake()
        if self.life.code is not None:
            if now_s >= self._start_s and not self.closed:
                self._read = 0
                self.mirror.start()
                self.lives.append(Life(self.name))
            return
        code = self.mirror.process.poll()  # before the output is read: then that is all of it
        with self.mirror.output_file.open("rb") as stream:
            stream.seek(self._read)
            lines, _, _ = stream.read().rpartition(b"\n")
        if lines:
            self._read += len(lines) + 1
            for line in lines.decode(errors="replace").splitlines():
                self.life.hear(line)
        if code is not None:
            self.life.code = code
            self._start_s = now_s + self.pause_s()
            wrong = self.life.wrong_end(self.mirror.output())
            if wrong:
                self.wrong.append(f"{self.name}, process {len(self.lives)}: {wrong}")

    def kill(self) -> None:
        """SIGKILL to the driver; what it had started ends by itself, soon."""
        self._left += self._tree()[1:]
        self.life.ordered = signal.SIGKILL
        self.mirror.process.kill()

    def end(self) -> None:
        """SIGTERM."""
        self.life.ordered = signal.SIGTERM
        self.mirror.process.send_signal(signal.SIGTERM)

    def freeze(self, for_s: float) -> None:
        """SIGSTOP to the driver, its JVM and all workers, also those that it just starts."""
        self._wake_s = time.time() + for_s
        self.life.frozen = True
        while found := [process for process in self._tree() if process not in self._frozen]:
            for process in found:
                self._frozen.append(process)
                with contextlib.suppress(psutil.Error):
                    process.suspend()

    def wake(self) -> None:
        """SIGCONT, the driver last: its workers do not wait for it."""
        while self._frozen:
            with contextlib.suppress(psutil.Error):
                self._frozen.pop().resume()

    def _tree(self) -> list[psutil.Process]:
        driver = psutil.Process(self.mirror.process.pid)
        return [driver, *driver.children(recursive=True)]

    def clear(self) -> None:
        """End all that this seat has started."""
        self.wake()
        self.mirror.kill()
        for process in self._left:
            with contextlib.suppress(psutil.Error):
                process.kill()
