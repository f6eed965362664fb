"""What a result was measured on and with: without it figures cannot be compared."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import MM1_JARS, MM2_JARS
from sparkmirror.data.spark.class_archive import ClassArchive
from sparkmirror.errors import MachineError
from sparkmirror.java import find_java
from sparkmirror.testing.jvm import KAFKA_VERSION

__all__ = ["code", "head", "machine", "prepared"]

ROOT = Path(__file__).parents[1]
MEASURED = ("src", "benchmarks/*.py", "benchmarks/*.java", "requirements.lock")
"""What decides about a figure; pages, tests and earlier results do not."""


def machine() -> dict[str, Any]:
    """Cores, memory, kernel and the versions of all that takes part.

    ``class_archive``: whether sparkmirror's starts have Spark's class archive.
    """
    java = find_java()
    archive = ClassArchive.find(java)
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "java": java.version,
        "class_archive": archive is not None and archive.made,
        "spark": version("pyspark"),
        "brokers": KAFKA_VERSION,
        "mirrormaker_2": MM2_JARS[0].rpartition(":")[2],
        "mirrormaker_1": MM1_JARS[0].rpartition(":")[2],
    }


def code() -> dict[str, Any]:
    """The newest commit of what is measured, and whether there are ``changed`` files beside it.

    ``commit`` is empty where git does not say.
    """
    return {
        "commit": _git("log", "-1", "--format=%h", "--", *MEASURED),
        "changed": bool(_git("status", "--porcelain", "--", *MEASURED)),
    }


def head(tree: Path | None = None) -> str:
    """The commit that is checked out, here or in another ``tree``."""
    return _git("rev-parse", "--short", "HEAD", tree=tree)


def prepared(say: Callable[[str], None]) -> None:
    """Make Spark's class archive, as installations in use have it; says so if it cannot be made."""
    from sparkmirror.data.spark.preparation import prepare  # noqa: PLC0415  (loads PySpark)

    try:
        say(f"Spark's class archive is {prepare(say).path}")
    except MachineError as error:
        say(f"sparkmirror starts without Spark's class archive: {error}")


def _git(*words: str, tree: Path | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=tree or ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor()
