"""Spark's Python daemon, with the pipeline's modules loaded before it forks workers.

Spark starts it as ``python -m sparkmirror.data.workers.daemon WORKER_MODULE``
(``spark.python.daemon.module``). Without it, each of a flow's workers, two per slot, would spend a
CPU second on the same imports and keep its own copy of them in memory.

Spark also puts ``pyspark.zip`` before the installed package. Modules from a zip are compiled again
in each process, which takes a CPU second every time. (On ``local[*]``, the launcher that
`data.spark.session` writes removes it for Spark's planning processes, which have a daemon of their
own. There, this module is not even loaded, but forked by `prefork_server`.)
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import os
import re
import runpy
import sys
import zipfile
from pathlib import Path

from sparkmirror.data.workers.patched_worker import wrap_main
from sparkmirror.data.workers.spark_versions import check_worker

__all__ = ["PANDAS", "PRELOADED", "main", "prefer_installed_pyspark", "preload"]

_PIPELINE_WORKER = "pyspark.worker"
PANDAS = "pandas"
PRELOADED = (
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.datasource",
    "sparkmirror.data.spark_source",
    "sparkmirror.data.transform.record_path",
    "sparkmirror.data.read.slot_reader",
    "sparkmirror.data.write.slot_sink",
)


_VERSION_FILE = "pyspark/version.py"


def prefer_installed_pyspark() -> None:
    """Remove ``pyspark.zip`` from the path if the installed package, with bytecode, is there.

    The zip belongs to the JVM that started this process. So it stays if the installed package has
    another version, which this JVM might not understand.
    """
    zips = [entry for entry in sys.path if entry.endswith("pyspark.zip")]
    rest = [entry for entry in sys.path if not entry.endswith(("pyspark.zip", "-src.zip"))]
    finder = importlib.machinery.PathFinder
    found = [finder.find_spec(name, rest) for name in ("pyspark", "py4j")]
    installed = found[0].origin if all(found) and found[0] is not None else None
    if installed is None:
        return
    own = _version_in((Path(installed).parent / "version.py").read_text(encoding="utf-8"))
    if all(_zip_version(entry) == own for entry in zips):
        sys.path[:] = rest


def _zip_version(entry: str) -> str:
    try:
        with zipfile.ZipFile(entry) as packed:
            return _version_in(packed.read(_VERSION_FILE).decode())
    except (OSError, KeyError, zipfile.BadZipFile):
        return ""


def _version_in(text: str) -> str:
    found = re.search(r"""^__version__.*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return found[1] if found else ""


def preload(*, pandas: bool = True) -> None:
    """Import what every worker needs; the forks share these objects. Raises `MachineError`.

    ``pandas``: pyarrow imports it for the first array that it makes, in each fork anew.
    """
    check_worker(importlib.import_module("pyspark.version").__version__)
    for name in (PANDAS, *PRELOADED) if pandas else PRELOADED:
        importlib.import_module(name)
    wrap_main()
    # In a pipelined worker, Spark starts a thread that writes while another one reads. Our workers
    # need none: it would read rows before `data.rows.worker_pipes` sees them.
    os.environ.pop("SPARK_PIPELINED_UDF", None)
    gc.collect()
    gc.freeze()


def main(*, pandas: bool = True) -> None:
    """Run Spark's daemon for the worker module that ``sys.argv`` names; returns when it ends.

    ``pandas``: see `preload`; False in a fork of `prefork_server`, which has decided about it.
    """
    prefer_installed_pyspark()
    # Spark starts one daemon for each kind of worker; only that of tasks runs the pipeline.
    if _PIPELINE_WORKER in sys.argv[1:]:
        preload(pandas=pandas)
    # The daemon's socket is in a temporary directory that others may share. Whoever may write to
    # the socket can run tasks, because PySpark requires no token there.
    os.umask(0o077)
    # It has had its effect; programs that a message handler starts must not inherit it.
    os.environ.pop("PYTHONSAFEPATH", None)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
