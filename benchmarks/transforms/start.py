"""Starts a tool: a mirror with a transform, or a loop in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import Load
from benchmarks.peers import MM1_JARS, Handler, Running, described, start
from benchmarks.steps import TASKS
from benchmarks.transforms import loop
from benchmarks.transforms.steps import Tool
from sparkmirror.java import find_java
from sparkmirror.testing.maven import resolve

__all__ = ["compiler", "start_loop", "start_mirror"]

HERE = Path(__file__).parent
HANDLERS = HERE / "handlers"
LOOP = HERE / "loop.py"


def start_mirror(
    tool: Tool, servers: tuple[str, str], topics: Sequence[str], work: Path, *, latency: bool
) -> Running:
    """Start a mirror for ``topics``, tuned for latency or for throughput."""
    handler = None
    if tool.handler:
        java = tool.peer == "mm1"
        handler = Handler("MaskHandler", compiled(work)) if java else Handler("mask:mask", HANDLERS)
    return start(
        tool.peer,
        *servers,
        ",".join(topics),
        work,
        tasks=TASKS,
        latency=latency,
        extra=dict(tool.lines),
        handler=handler,
    )


def start_loop(
    tool: Tool, servers: tuple[str, str], load: Load, work: Path, processes: int
) -> Running:
    """Start the loop with so many ``processes``; it does what the tool's ``output`` says."""
    log = work / f"loop-{tool.output}.log"
    codec = "lz4" if "compression.type=lz4" in load.producer else "none"
    rest = (load.topic, tool.remote.format(topic=load.topic), str(load.partitions))
    rest = (*rest, tool.output, codec, str(processes))
    command = [sys.executable, str(LOOP)]
    shown = described([*command, "SOURCE", "TARGET", "GROUP", *rest], [], HERE)
    clients = {"consumer": loop.CONSUMER, "producer": loop.PRODUCER}
    lines = [f"{name}.{key}={one[key]}" for name, one in clients.items() for key in one]
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, *servers, f"loop-{time.time_ns()}", *rest],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=work,
        )
    return Running(process, log, began, "\n".join([shown, "", "# librdkafka", *lines]))


def compiler() -> Path | None:
    """A Java compiler; None: only a runtime is installed."""
    beside = find_java().path / "bin" / "javac"
    if beside.is_file():
        return beside
    found = shutil.which("javac")
    return Path(found) if found else None


def compiled(work: Path) -> Path:
    """The directory with the classes of the Java handlers. Raises RuntimeError if it fails."""
    directory = work / "handlers"
    if directory.is_dir():
        return directory
    javac = compiler()
    if javac is None:
        raise RuntimeError("there is no javac")
    classpath = os.pathsep.join(map(str, resolve(*MM1_JARS)))
    sources = map(str, sorted(HANDLERS.glob("*.java")))
    command = [str(javac), "-nowarn", "-cp", classpath, "-d", str(directory), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        shutil.rmtree(directory, ignore_errors=True)
        raise RuntimeError(f"the handler does not compile:\n{done.stdout}{done.stderr}")
    return directory
