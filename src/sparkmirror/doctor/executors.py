"""Runs the network checks on each executor of a Spark cluster.

The slots run on executors, so the brokers must be reachable from there. A barrier stage runs a task
on every core at the same time, so that it reaches every executor; the first task on each executor
runs the checks.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.data.query import FlowRunner
from sparkmirror.data.spark.session import task_capacity
from sparkmirror.doctor.finding import Finding, Level, gathered
from sparkmirror.doctor.network import explore, path_key
from sparkmirror.errors import MachineError, MirrorError
from sparkmirror.settings import MirrorSettings

__all__ = ["explore_from_executors", "explore_from_here"]

_NETWORK_S = 6.0
_SETTLED_S = 2.0
_WAIT_S_MAX = 30.0


def explore_from_executors(
    settings: MirrorSettings,
    master: str,
    conf: Mapping[str, str],
    work_dir: Path,
    run_id: str,
) -> dict[str, list[Finding]]:
    """Findings by flow, each with the host of its executor. Raises `MirrorError`."""
    runner = FlowRunner(
        settings, master=master, once=True, spark_conf=conf, work_dir=work_dir, run_id=run_id
    )
    try:
        context = runner.open().sparkContext
        _wait_for_executors(context)
        tasks = max(1, task_capacity(context))
        # Client properties are encrypted, because Spark may write a task to disk.
        flows = {flow.name: encode_flow(flow, runner.key) for flow in settings.flows}
        documents = _run(context, tasks, flows)
    finally:
        runner.stop(grace_s=0.0)
    found: dict[str, list[Finding]] = {flow.name: [] for flow in settings.flows}
    for document in documents:
        for name, rows in json.loads(document).items():
            found[name] += [Finding(**{**row, "level": Level(row["level"])}) for row in rows]
    return {name: gathered(findings) for name, findings in found.items()}


def _wait_for_executors(context: Any) -> None:
    """Wait until no new executor has registered for two seconds, at most 30 s."""
    deadline = time.monotonic() + _WAIT_S_MAX
    seen, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        now = context._jsc.sc().getExecutorMemoryStatus().size()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > _SETTLED_S:
            return
        time.sleep(0.1)


def _run(context: Any, tasks: int, flows: Mapping[str, str]) -> list[str]:
    text = json.dumps(dict(flows))

    def job(_: Iterator[int]) -> Iterator[str]:
        from pyspark import BarrierTaskContext  # noqa: PLC0415  (the executor's own)

        here = BarrierTaskContext.get()
        # Each executor has its own working directory.
        own = f"{socket.gethostname()}:{Path.cwd()}"
        first = here.allGather(own).index(own)
        if first == here.partitionId():
            yield explore_from_here(text)

    try:
        rows = context.parallelize(range(tasks), tasks).barrier().mapPartitions(job)
        return [str(row) for row in rows.collect()]
    except Exception as error:
        said = str(error).strip().splitlines()
        raise MachineError(
            f"the job on the executors failed ({said[-1] if said else type(error).__name__}).",
            where=f"master {context.master}",
            do="Check that the cluster has free cores, and the executors' logs.",
        ) from error


def explore_from_here(flows: str) -> str:
    """Run on an executor: network findings for all clusters, as a JSON object by flow."""
    place = socket.gethostname()
    found: dict[str, list[dict[str, object]]] = {}
    for name, text in json.loads(flows).items():
        try:
            flow = decode_flow(text)
            used = [flow.source, flow.target]
            used += [flow.syncs_writer] if flow.offset_syncs.enabled else []
            findings = [
                one
                for client in {path_key(each): each for each in used}.values()
                for one in explore(client, timeout_s=_NETWORK_S).findings
            ]
        except MirrorError as error:
            findings = [
                Finding("executor", Level.FAIL, place, "read the flow", error.what, error.do)
            ]
        found[name] = [
            {**asdict(one), "level": one.level.value, "place": place} for one in findings
        ]
    return json.dumps(found)
