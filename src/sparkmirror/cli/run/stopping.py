"""Stops the parts of a run, and a start of Spark that was interrupted, in bounded time."""

from __future__ import annotations

import logging
import time
from collections.abc import Set as AbstractSet

from sparkmirror.cli.run.background import Background
from sparkmirror.cli.run.parts import ControlPart, FlowPart
from sparkmirror.cli.run.processes import end_processes

_log = logging.getLogger(__name__)

FLOW_STOP_S = 2.0
CONTROL_STOP_S = 1.0
# A start of Spark that was interrupted removes its files after its processes are killed.
OPENING_STOP_S = 1.0
# How often to look whether a start of Spark has ended.
_AWAIT_STEP_S = 0.1


def stop_parts(
    flow: FlowPart | None,
    control: ControlPart | None,
    *,
    at_once: bool,
) -> None:
    """Stop Spark and the control plane. ``at_once``: the queries get no time to end."""
    tasks = []
    if flow is not None:
        grace_s = 0.0 if at_once else FLOW_STOP_S
        tasks.append(Background(lambda: flow.stop(grace_s=grace_s), "sparkmirror-stop"))
    if control is not None:
        tasks.append(Background(control.stop, "sparkmirror-control-stop"))
    deadline_s = time.monotonic() + (FLOW_STOP_S if flow is not None else CONTROL_STOP_S)
    for task in tasks:
        while not task.done and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if task.failed():
            _log.warning("while stopping: %s", task.error, exc_info=task.error)


def end_start(opening: Background, spare: AbstractSet[tuple[int, float]]) -> None:
    """Wait until ``opening``, a start of Spark, has ended; kill what is not in ``spare``."""
    deadline_s = time.monotonic() + OPENING_STOP_S
    while not opening.wait(_AWAIT_STEP_S) and time.monotonic() < deadline_s:
        end_processes(spare)  # the start may just have launched another one
