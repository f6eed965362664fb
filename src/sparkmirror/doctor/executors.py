"""The same look at the network from the executors of a Spark cluster, one from each of them.

Where the slots run is where the brokers must be reachable. A barrier stage holds a task on every
core at the same moment, so that no executor is left out; the first task of each does the work.
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
from sparkmirror.doctor.finding import Finding, Level, gathered
from sparkmirror.doctor.network import explore
from sparkmirror.errors import MachineError, MirrorError
from sparkmirror.model import MirrorSettings

__all__ = ["explore_from_executors", "look_around"]

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
    """Findings by flow, each with the machine it was made on. Raises `MirrorError`."""
    runner = FlowRunner(
        settings, master=master, once=True, spark_conf=conf, work_dir=work_dir, run_id=run_id
    )
    try:
        context = runner.open().sparkContext
        _wait_for_executors(context)
        tasks = context.defaultParallelism
        # Properties travel sealed; what Spark keeps of a task on disk shows no secret.
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
    """Executors come one after the other: wait until no more have come for two seconds."""
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
        # An executor's working directory is its own.
        own = f"{socket.gethostname()}:{Path.cwd()}"
        first = here.allGather(own).index(own)
        if first == here.partitionId():
            yield look_around(text)

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


def look_around(flows: str) -> str:
    """On an executor: what the networks of all clusters are like from there, as JSON by flow."""
    place = socket.gethostname()
    found: dict[str, list[dict[str, object]]] = {}
    for name, text in json.loads(flows).items():
        try:
            flow = decode_flow(text)
            findings = [
                one
                for client in (flow.source, flow.target)
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
