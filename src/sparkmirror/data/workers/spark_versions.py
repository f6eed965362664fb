"""Which versions of Spark sparkmirror works with; others are refused by name.

The data path replaces `pyspark.worker.main` (`patched_worker`) and starts PySpark's own
modules, so a version that nobody has tried could lose records or wait for ever. Four places are
checked: the PySpark of this Python and the jars of ``SPARK_HOME`` before a JVM is started, the
driver's JVM, the executors that a cluster offers, and each Python daemon where it starts. Versions
are compared by release (``4.3`` of ``4.3.1``): Spark keeps its formats within one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparkmirror.errors import MachineError

__all__ = [
    "NO_PIPELINES",
    "SUPPORTED",
    "check_executors",
    "check_installed",
    "check_jvm",
    "check_worker",
    "release",
    "same_release",
]

SUPPORTED = ("4.2", "4.3")
"""The releases that were tried."""

NO_PIPELINES = ("4.2",)
"""Releases without pipelined Python functions, which the record path needs."""


def release(text: str) -> str:
    """``4.3`` of ``4.3.0`` or ``4.3.1.dev2``; empty if the text does not begin with two numbers."""
    found = re.match(r"(\d+\.\d+)(?!\d)", text.strip())
    return found[1] if found else ""


def check_installed(environment: Mapping[str, str], *, records: str = "") -> None:
    """Check this Python's PySpark, and that ``SPARK_HOME``, if it is set, has the same Spark.

    ``records``: a flow whose records are rewritten, empty if there is none. Raises `MachineError`.
    """
    try:
        installed = version("pyspark")
    except PackageNotFoundError as error:
        raise MachineError(
            "PySpark is not installed.", where=sys.executable, do=_install()
        ) from error
    if release(installed) not in SUPPORTED:
        raise MachineError(
            f"PySpark {installed} is installed. {_supported()}",
            where=sys.executable,
            do=_install(),
        )
    if records and release(installed) in NO_PIPELINES:
        raise MachineError(
            f"Flow {records} rewrites records, and PySpark {installed} hands them to Python in"
            " portions that take minutes to fill.",
            where=sys.executable,
            do=_install(),
        )
    home = environment.get("SPARK_HOME", "")
    found = _jars_version(Path(home)) if home else ""
    if found and release(found) != release(installed):
        raise MachineError(
            f"Spark {found} is there, and this Python has PySpark {installed}: they do not"
            " understand each other.",
            where=f"SPARK_HOME={home}",
            do="Unset SPARK_HOME, because PySpark brings a Spark of its own; or name one of"
            f" release {release(installed)}.",
        )


def check_jvm(reported: str) -> None:
    """Check the version that the driver's JVM reports. Raises `MachineError`."""
    installed = version("pyspark")
    if release(reported) == release(installed):
        return
    raise MachineError(
        f"The driver's JVM runs Spark {reported}, this Python has PySpark {installed}.",
        where=sys.executable,
        do=f"Let the JVM use a Spark of release {release(installed)}, or unset"
        " PYSPARK_GATEWAY_PORT and SPARK_HOME.",
    )


def check_executors(context: Any) -> None:
    """Ask the executors that are there for their Spark. Raises `MachineError`.

    An executor that comes later is checked by its daemon (`check_worker`). Spark gives the first
    tasks of a job to different executors, so one task each is enough. Without any, nothing is
    asked: a job would wait for one without an end.
    """
    # The driver is in this list, too.
    executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1
    if executors < 1:
        return
    where = f"master {context.master}"
    try:
        found = context.parallelize(range(executors), executors).map(_own_version).collect()
    except Exception as error:
        ours = re.findall(r"sparkmirror\.errors\.\w+: (.+)", str(error))
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        python = [line for line in said if re.match(r"[\w.]*(Error|Exception)\b.*", line)]
        what = (ours or python or said or [type(error).__name__])[-1]
        raise MachineError(
            f"the executors cannot run this Python's tasks ({what}).",
            where=where,
            do="Give the workers of the cluster the same Spark and the same Python as this"
            f" machine: Spark {version('pyspark')}, Python {sys.version_info.major}."
            f"{sys.version_info.minor}.",
        ) from error
    own = version("pyspark")
    others = sorted({(host, one) for host, one in found if release(one) != release(own)})
    if others:
        told = ", ".join(f"{host}: Spark {one}" for host, one in others)
        raise MachineError(
            f"the cluster's executors report another Spark ({told}) than this machine's {own}.",
            where=where,
            do=f"Install Spark {release(own)} on the workers of the cluster, or here the PySpark"
            f" that they have. {_supported()}",
        )


def check_worker(installed: str, executable: str = sys.executable) -> None:
    """On any machine: check the PySpark that this daemon is about to run. Raises `MachineError`."""
    if release(installed) in SUPPORTED:
        return
    raise MachineError(
        f"PySpark {installed} would run the slots. {_supported()}",
        where=executable,
        do=f"Give this machine Spark {' or '.join(SUPPORTED)}.",
    )


def same_release() -> str:
    """What a cluster that does not understand this driver may lack: its processes do not say."""
    own = version("pyspark")
    return f"The cluster must run Spark {release(own)}, because this machine has PySpark {own}."


def _own_version(_: int) -> tuple[str, str]:
    """On an executor: its host, and the Spark that it belongs to."""
    import socket  # noqa: PLC0415  (the executor's own)

    from pyspark.version import __version__  # noqa: PLC0415

    return socket.gethostname(), __version__


def _jars_version(home: Path) -> str:
    """The version of the Spark below ``home``, by the name of its core; empty if it has none."""
    for jar in sorted((home / "jars").glob("spark-core_*.jar")):
        found = re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name)
        if found:
            return found[1]
    return ""


def _supported() -> str:
    return f"sparkmirror works with Spark {' and '.join(SUPPORTED)} and was not tried with others."


def _install() -> str:
    newest = SUPPORTED[-1]
    return f"Install PySpark {newest}: {sys.executable} -m pip install 'pyspark=={newest}.*'."
