"""Spark's Python daemon, with the pipeline's modules loaded before it forks workers.

``python -m sparkmirror.data.workers.daemon WORKER_MODULE`` is how Spark starts it
(``spark.python.daemon.module``). Without it each of a flow's workers, two per slot, would spend a
CPU second on the same imports and keep a copy of them in memory of its own.

Spark also puts ``pyspark.zip`` in front of the installed package. Modules from a zip are compiled
anew in each process, a second of CPU every time. (On ``local[*]`` the launcher that
`data.spark.session` writes drops it for Spark's planning processes, which have a daemon of their
own; there this module is not even loaded, but forked by `prefork_server`.)
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from sparkmirror.data.rows import worker_pipes

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
    """Take ``pyspark.zip`` off the path where the installed package, with bytecode, is there."""
    rest = [entry for entry in sys.path if not entry.endswith(("pyspark.zip", "-src.zip"))]
    finder = importlib.machinery.PathFinder
    if all(finder.find_spec(name, rest) is not None for name in ("pyspark", "py4j")):
        sys.path[:] = rest


def _with_umask(worker_main: Callable[..., Any]) -> Callable[..., Any]:
    """``worker_main`` with this process's umask: files that a message handler makes are its own."""
    mask = os.umask(0o077)
    os.umask(mask)

    def main(*files: BinaryIO) -> Any:
        os.umask(mask)
        return worker_main(*files)

    return main


def preload() -> None:
    """Import what every worker needs; the objects stay shared between the forks."""
    for name in PRELOADED:
        importlib.import_module(name)
    worker = importlib.import_module(_PIPELINE_WORKER)
    worker.main = worker_pipes.watched(_with_umask(worker.main))  # type: ignore[attr-defined]
    # Spark's side of a pipelined worker has a thread that writes while another one reads. Ours
    # needs none: it would take rows in behind the back of `data.rows.worker_pipes`.
    os.environ.pop("SPARK_PIPELINED_UDF", None)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run Spark's daemon for the worker module that ``sys.argv`` names; returns when it ends."""
    prefer_installed_pyspark()
    # Spark starts one daemon for each kind of worker; only the tasks' kind runs the pipeline.
    if _PIPELINE_WORKER in sys.argv[1:]:
        preload()
    # The socket that it makes lies in a temporary directory that may be everybody's, and whoever
    # may write to it can have tasks of their own run: PySpark asks for no token there.
    os.umask(0o077)
    # It has done its work; programs that a message handler starts are no part of this.
    os.environ.pop("PYTHONSAFEPATH", None)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
