"""The one part of PySpark that is replaced: ``pyspark.worker.main``, which runs one task.

PySpark has no hook for what our tasks need, so its function is wrapped:

* a sink must know its input, to see that Spark has given the task up, and its output, to send each
  row at once (`data.rows.worker_pipes`);
* files that a message handler creates get the user's umask, not that of the daemon;
* SIGTERM does not end a worker: a stop that reaches all processes is for the driver, which drains.

The replaced function is private to PySpark, so `wrap_main` checks it before it does anything.
"""

from __future__ import annotations

import importlib
import inspect
import os
import signal
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, BinaryIO

from sparkmirror.data.rows import worker_pipes
from sparkmirror.errors import MachineError

__all__ = ["wrap_main"]

_WORKER = "pyspark.worker"
_ARGUMENTS = ["infile", "outfile"]


def wrap_main() -> None:
    """Replace ``main`` of PySpark's worker in this process and its forks.

    Raises `MachineError` if the installed PySpark has another one.
    """
    worker = importlib.import_module(_WORKER)
    found = getattr(worker, "main", None)
    if not callable(found) or list(inspect.signature(found).parameters) != _ARGUMENTS:
        raise MachineError(
            f"PySpark {version('pyspark')} starts its workers in another way than the PySpark that "
            "this sparkmirror is made for.",
            do="Install the version that it requires: pip install --force-reinstall sparkmirror.",
        )
    wrapped = _outliving_sigterm(_with_umask(found))
    worker.main = worker_pipes.watched(wrapped)  # type: ignore[attr-defined]


def _with_umask(worker_main: Callable[..., Any]) -> Callable[..., Any]:
    """``worker_main`` with the umask that this process has now."""
    mask = os.umask(0o077)
    os.umask(mask)

    def main(*files: BinaryIO) -> Any:
        os.umask(mask)
        return worker_main(*files)

    return main


def _outliving_sigterm(worker_main: Callable[..., Any]) -> Callable[..., Any]:
    """``worker_main`` in a process that SIGTERM does not end.

    The daemon may block the signal. Programs that a message handler starts would inherit that, but
    no handler; processes that it forks do, so there the default action follows.
    """

    def main(*files: BinaryIO) -> Any:
        own = os.getpid()

        def received(number: int, _frame: object) -> None:
            if os.getpid() != own:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, received)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return worker_main(*files)

    return main
