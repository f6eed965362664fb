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
import runpy
import sys

from sparkmirror.data.workers.patched_worker import wrap_main

__all__ = ["PRELOADED", "main", "prefer_installed_pyspark", "preload"]

_PIPELINE_WORKER = "pyspark.worker"
PRELOADED = (
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.datasource",
    "sparkmirror.data.spark_source",
    "sparkmirror.data.transform.record_path",
    "sparkmirror.data.read.slot_reader",
    "sparkmirror.data.write.slot_sink",
)


def prefer_installed_pyspark() -> None:
    """Remove ``pyspark.zip`` from the path if the installed package, with bytecode, is there."""
    rest = [entry for entry in sys.path if not entry.endswith(("pyspark.zip", "-src.zip"))]
    finder = importlib.machinery.PathFinder
    if all(finder.find_spec(name, rest) is not None for name in ("pyspark", "py4j")):
        sys.path[:] = rest


def preload() -> None:
    """Import what every worker needs; the forks share these objects."""
    for name in PRELOADED:
        importlib.import_module(name)
    wrap_main()
    # In a pipelined worker, Spark starts a thread that writes while another one reads. Our workers
    # need none: it would read rows before `data.rows.worker_pipes` sees them.
    os.environ.pop("SPARK_PIPELINED_UDF", None)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run Spark's daemon for the worker module that ``sys.argv`` names; returns when it ends."""
    prefer_installed_pyspark()
    # Spark starts one daemon for each kind of worker; only that of tasks runs the pipeline.
    if _PIPELINE_WORKER in sys.argv[1:]:
        preload()
    # The daemon's socket is in a temporary directory that others may share. Whoever may write to
    # the socket can run tasks, because PySpark requires no token there.
    os.umask(0o077)
    # It has had its effect; programs that a message handler starts must not inherit it.
    os.environ.pop("PYTHONSAFEPATH", None)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
