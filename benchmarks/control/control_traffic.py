"""The traffic of the control topic by number of slots: simulated workers, one real broker.

usage: python -m benchmarks.control.control_traffic [--slots N ...] [--partitions N] [--seconds S]

Each simulated slot reports as a sink does (`SinkTask.report`, all its partitions busy) and follows
the control topic as a source does (`ControlWatch`). Beside them are one driver, which owns the flow
and reads all reports, and one standby. Each of these four trades is a process, and what its
connections have sent and received is read from the kernel (``TCP_INFO``). So all bytes count: keys,
requests, empty long polls. Then all slots' transactional ids are fenced twice, as a planner of an
exactly-once flow does before an epoch; the second time counts. Prints a table; nothing fails for
what is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.run import say
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.control.coordination.control_topic import ControlTopicReader
from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.rows.notes import PartitionHello, SlotHello
from sparkmirror.data.write.producers import limits_of
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.internal_topics.commands import CONTROL_PARTITIONS, control_topic
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.samples import steady_ms
from sparkmirror.settings import FlowSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.views import NewTopic
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.net.poller import Poller
from sparkmirror.wire.produce.producer import Producer
from sparkmirror.wire.produce.slot_fencing import fence_slots

RUN = "bench"
_SETTLE_S, _READY_S_MAX = 5.0, 180.0
# tcpi_bytes_acked and tcpi_bytes_received (linux/tcp.h).
_TCP_BYTES = struct.Struct("=120xQQ")
_FILE = """\
clusters=A,B
A.bootstrap.servers=127.0.0.1:1
B.bootstrap.servers={servers}
A->B.enabled=true
"""

Round = Callable[[float], None]

_heard = [0]
"""How many reports the driver has read."""
_slots_heard: set[int] = set()


def _flow(servers: str) -> FlowSettings:
    with tempfile.TemporaryDirectory(prefix="sparkmirror-bench-") as directory:
        path = Path(directory, "mirror.properties")
        path.write_text(_FILE.format(servers=servers), encoding="utf-8")
        return load_mm2(path).flows[0]


def _tcp_bytes() -> tuple[int, int]:
    """(sent, received) by all open connections of this process."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_BYTES.size)
                acked, arrived = _TCP_BYTES.unpack(info)
                sent, received = sent + acked, received + arrived
    return sent, received


# -- the trades: each returns what it does in a round of at most ``timeout_s`` ---------------------


def _sinks(flow: FlowSettings, slots: int, partitions: int) -> Round:
    tasks = []
    for slot in range(slots):
        task = SinkTask(flow)
        # In a mirror, each sink has a process and a producer of its own; one for all would wait for
        # the responses of the others.
        connections = ClusterConnections(flow.target)
        task.producer = task.reporter = Producer(connections, flow.produce, limits=limits_of(flow))
        names = [(f"orders-{at // 10:03d}", at % 10) for at in range(partitions)]
        rows = tuple(
            PartitionHello(TopicPartition(f"{slot}-{topic}", number), f"A.{slot}-{topic}", 10**9)
            for topic, number in names
        )
        task.begin(SlotHello(slot, 1, flow.name, RUN, slot, partitions=rows))
        tasks.append(task)
    moved = [0.0]

    def step(timeout_s: float) -> None:
        now = time.monotonic()
        if now - moved[0] >= 0.5:
            moved[0] = now
            for number, task in enumerate(tasks):
                for at, lane in enumerate(task.lanes.values()):
                    count = 1 + (number * 31 + at * 7) % 97
                    lane.position += count
                    lane.records += count
                    lane.bytes += 1_013 * count
                    lane.timestamp_ms = int(time.time() * 1000)
                    lane.age.add(steady_ms(), 3.7 + at, 41.9 + at, count)
                    lane.latency.add(steady_ms(), 5.1 + at, 77.3 + at, count)
                    task.reports.note_latency(time.time() * 1000, lane.timestamp_ms - 3 * at)
        for task in tasks:
            task.report_if_due(now)
            task.reporter.pump()
        time.sleep(timeout_s)

    return step


def _sources(flow: FlowSettings, slots: int, _: int) -> Round:
    poller = Poller[Connection]()
    watches = []
    for slot in range(slots):
        own = Poller[Connection](within=poller)
        watch = ControlWatch(flow, RUN, slot=slot, attempt_id=slot, offset=0, poller=own)
        watch.start()
        watches.append((own, watch))
    owners: dict[Connection, ControlWatch] = {}

    def step(timeout_s: float) -> None:
        for _, watch in watches:
            watch.fetcher.send()
        for connection in poller.wait(timeout_s):
            if connection not in owners:
                owners[connection] = next(watch for own, watch in watches if connection in own)
            owners[connection].receive(connection)

    return step


def _driver(flow: FlowSettings, _: int, __: int) -> Round:
    target = Cluster(flow.target)
    owner = Ownership(target, flow, RUN, lambda _: None)
    owner.at_start(once=False, take_over=True)
    reader = ControlTopicReader(target, control_topic(flow), only_new=True)
    looked = [0.0]

    def step(timeout_s: float) -> None:
        reports = reader.poll(int(timeout_s * 1000)).progress
        _heard[0] += len(reports)
        _slots_heard.update(one.slot for one in reports)
        now = time.monotonic()
        if now - looked[0] >= owner.check_interval_s:
            looked[0] = now
            owner.watch()

    return step


def _standby(flow: FlowSettings, _: int, __: int) -> Round:
    other = Ownership(Cluster(flow.target), flow, "standby", lambda _: None)
    other.stand_by()

    def step(timeout_s: float) -> None:
        other.check()
        time.sleep(other.check_interval_s)

    return step


def _work(
    trade: Callable[[FlowSettings, int, int], Round],
    servers: str,
    slots: int,
    partitions: int,
    lasts_s: float,
    begin: Any,
    results: Any,
) -> None:
    """Measure for ``lasts_s``: puts (sent, received, CPU s, reports) per second."""
    step = trade(_flow(servers), slots, partitions)
    begin.wait(_READY_S_MAX)
    begins = time.time() + _SETTLE_S
    while time.time() < begins:
        step(0.1)
    before, began, cpu, heard = _tcp_bytes(), time.time(), time.process_time(), _heard[0]
    while time.time() < begins + lasts_s:
        step(0.1)
    seconds = time.time() - began
    sent, received = (after - b for after, b in zip(_tcp_bytes(), before, strict=True))
    if trade is _driver and len(_slots_heard) < slots:
        raise RuntimeError(f"{len(_slots_heard)} of {slots} slots were heard")
    figures = sent, received, time.process_time() - cpu, _heard[0] - heard
    results.put((trade.__name__, *(figure / seconds for figure in figures)))


def measure(servers: str, slots: int, partitions: int, seconds: float) -> str:
    """One row of the table."""
    flow = _flow(servers)
    topic = NewTopic(control_topic(flow), CONTROL_PARTITIONS, 1, {"cleanup.policy": "compact"})
    Cluster(flow.target).create_topics([topic])
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    trades = (_driver, _standby, _sources, _sinks)
    args = servers, slots, partitions, seconds, context.Barrier(len(trades)), results
    workers = [context.Process(target=partial(_work, one, *args)) for one in trades]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
            if worker.exitcode:
                raise RuntimeError(f"a simulated worker ended with {worker.exitcode}")
    finally:
        for worker in workers:
            worker.kill()
    found = {name: figures for name, *figures in (results.get() for _ in trades)}
    written = found["_sinks"][0]
    read = [found[name][1] for name in ("_sources", "_driver", "_standby")]
    cells = [written, *read, written + sum(read)]
    shown = " | ".join(f"{cell / 1e6:.3f}" for cell in cells)
    for _ in range(2):
        began = time.monotonic()
        fence_slots(flow, slots)
    fenced_s = time.monotonic() - began
    cores, reports = found["_sources"][2], found["_driver"][3]
    return f"| {slots} | {reports:.0f} | {shown} | {cores:.2f} | {fenced_s:.2f} |"


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.control.control_traffic", description=__doc__
    )
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--partitions", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    rows = []
    for slots in options.slots:
        with KafkaCluster("B") as target:
            row = measure(target.bootstrap_servers, slots, options.partitions, options.seconds)
        say(row)
        rows.append(row)
    print(
        f"\n{options.partitions} busy partitions per slot, one driver, one standby, "
        f"{options.seconds:.0f} s, {os.cpu_count()} cores; MB/s of the control topic:\n\n"
        "| slots | reports/s | written | read by slots | by the driver | by a standby | all "
        "| cores of all slots' readers | fencing, s |\n|---|---|---|---|---|---|---|---|---|"
    )
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
