"""The JVM's process: ``spark-submit`` with PySpark's gateway.

PySpark would start it itself (``launch_gateway``), but only when PySpark is loaded, and would wait
for it there. Here it starts first, and this process loads PySpark meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from sparkmirror.java import names_collector

__all__ = ["GATEWAY_PORT", "GatewayProcess", "spark_home"]

GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
"""The variable that names the port of a JVM that runs already, to PySpark and to us."""

_POLL_S = 0.01
# A JVM on a busy machine needs some ten seconds; one that waits for a lost disk never answers.
_START_S_MAX = 300.0
_INFO = "gateway"
_GATEWAY_SECRET = "PYSPARK_GATEWAY_SECRET"  # noqa: S105  (the variable's name)
# Of Spark's launcher, a JVM that lives for a moment and only prints the command of the next one.
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1"
_LAUNCHER_COLLECTOR = "-XX:+UseSerialGC"
_LAST_WORDS_BYTES = 16 << 10
_LAST_WORDS_LINE_MAX = 300
# Lines that do not say why it ended: which options it takes from the environment, places in Java's
# code, lines of Spark's log, that there is no JVM, and what Spark's script says of that.
_NO_REASON = re.compile(
    r"Picked up |NOTE: |\s|\d{4}-|Error: Could not create the Java|Error: A fatal exception"
    r"|.*/spark-class: line \d+: |$"
)
# Stores have their passwords in properties, agents their keys, URLs those of their servers. Where
# such a value ends depends on quotes that nobody need have closed.
_SECRETS = re.compile(r"""["']?-(?:D|javaagent|agent)|\S*://\S*@""")
# A JVM leaves a signal alone that is ignored when it starts.
_IGNORING_SIGTERM = ("/bin/sh", "-c", "trap '' TERM; exec \"$@\"", "sh")


def spark_home() -> Path | None:
    """Where Spark is, as its own scripts find it; None if it is not there."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


class GatewayProcess:
    """A JVM that starts; `connect` waits for it.

    ``directory``: only this user may read it. ``output`` gets what the JVM prints. ``outlasts``:
    SIGTERM does not end it. A stop may reach all processes at once, as of a service manager or of a
    machine that goes down, and the driver drains with Spark. Python processes that the JVM itself
    starts then ignore it, too. Raises ``OSError``.
    """

    def __init__(
        self, conf: Mapping[str, str], directory: Path, output: BinaryIO, *, outlasts: bool
    ) -> None:
        self._info = directory / _INFO
        self._output, self._output_at = Path(output.name), output.tell()
        submit = (spark_home() or Path()) / "bin" / "spark-submit"
        if not os.access(submit, os.X_OK):
            raise FileNotFoundError(errno.ENOENT, "there is no such program", str(submit))
        command = [*(_IGNORING_SIGTERM if outlasts else ()), str(submit)]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        collector = () if names_collector(os.environ) else (_LAUNCHER_COLLECTOR,)
        self.process = subprocess.Popen(  # noqa: S603  (an argument list, no shell)
            command,
            stdin=subprocess.PIPE,  # the JVM ends when this pipe does
            stdout=output,
            stderr=output,
            env={
                "SPARK_LAUNCHER_OPTS": " ".join((_LAUNCHER_OPTIONS, *collector)),
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._info),
            },
            # The terminal's Ctrl+C must reach only us; Spark drains.
            start_new_session=True,
        )

    def connect(self) -> Any:
        """PySpark's gateway, as ``launch_gateway`` returns it.

        Raises ``ConnectionError`` if the JVM ends instead, ``TimeoutError`` if it does not answer.
        """
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415  (takes a third of a second)

        deadline = time.monotonic() + _START_S_MAX
        while not self._info.exists():
            if self.process.poll() is not None:
                raise ConnectionError("the JVM has ended")
            if time.monotonic() > deadline:
                raise TimeoutError(f"its JVM has not answered for {_START_S_MAX:g} s")
            time.sleep(_POLL_S)
        port, secret = _read(self._info.read_bytes())
        self._info.unlink()
        with _variables({GATEWAY_PORT: str(port), _GATEWAY_SECRET: secret}):
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        gateway.proc = self.process
        return gateway

    def end(self) -> None:
        """Kill the JVM if it still runs, or what is to become one, with all that it has started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def last_words(self) -> str:
        """The last two lines that it printed to say why it ended; empty if there are none.

        Each is cut where secrets may begin.
        """
        try:
            with self._output.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._output_at, end - _LAST_WORDS_BYTES))
                said = file.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [line.rstrip() for line in said.splitlines() if not _NO_REASON.match(line)]
        return "; ".join(_without_secrets(line)[:_LAST_WORDS_LINE_MAX] for line in lines[-2:])


def _without_secrets(line: str) -> str:
    begin = _SECRETS.search(line)
    return line if begin is None else f"{line[: begin.start()]}…"


def _read(info: bytes) -> tuple[int, str]:
    """Port and secret of what Spark's gateway server writes: two numbers, then the text."""
    port, size = struct.unpack_from(">ii", info)
    return port, info[8 : 8 + size].decode()


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
