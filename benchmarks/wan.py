"""`make bench-wan`: mirrors between two places, one of which is far away.

usage: python -m benchmarks.wan [--round-trip-ms MS] [--side target|source] [--peers NAME ...]
                                [--records N] [--seconds S] [--name NAME] [--out DIR]

Each mirror copies one topic of 1 KiB JSON events in lz4 batches of 16 KiB (what most producers
write) for a while, with one cluster behind a proxy that delays every byte (`delay`). What counts is
the steady state: from two seconds after the first record until the topic is copied or the time is
over. Beside it stands what a plain copy brings over the same proxy, so that it is not the limit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from benchmarks.delay import HOST, carried, delayed
from benchmarks.load import Load, create, delete, fill
from benchmarks.machine import code, head, machine
from benchmarks.measure import Processors, TreeWatch, end_offsets
from benchmarks.peers import start
from benchmarks.run import BROKER, JVM, say
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.probe import free_ports

PARTITIONS = TASKS = 4
LOAD = Load(
    "bench-16k-lz4",
    "1 KiB JSON events, lz4, 16 KiB batches",
    PARTITIONS,
    1_000_000,
    1024,
    ("batch.size=16384", "linger.ms=5", "compression.type=lz4"),
    2,
    events=True,
)
_OFF = {"sparkmirror.link.joining": "off"}
_ZSTD = {"sparkmirror.link.compression": "zstd"}
# A long link needs larger batches than Java's default, and buffers that the kernel sizes.
_FAR = {
    "B.producer.batch.size": "1048576",
    "B.producer.send.buffer.bytes": "-1",
    "A.consumer.receive.buffer.bytes": "-1",
}
WAYS = {
    "sparkmirror": ("sparkmirror", "sparkmirror", {}),
    "mm2": ("MirrorMaker 2, tuned", "mm2", _FAR),
    "sparkmirror-zstd": ("sparkmirror, zstd for the link", "sparkmirror", _ZSTD),
    "sparkmirror-off": ("sparkmirror without joining", "sparkmirror", _OFF),
}
"""By name: in the table, the peer of `peers`, and what its file says more."""
START_MAX_S, WARM_S, SAMPLE_S, COPY_S = 120.0, 2.0, 0.2, 2.0
SHARE_MAX = 0.98


@dataclass
class Copied:
    """One mirror's steady state. Rates per second, CPU in seconds per GB of the source's log."""

    records: int
    window_s: float
    rate: float
    mb_per_s: float
    cpu_s_per_gb: float
    elsewhere: float
    complete: bool
    settings: str


@contextmanager
def far_clusters(side: str, round_trip_ms: float) -> Iterator[tuple[list[KafkaCluster], list[str]]]:
    """Two one-node clusters, and where mirrors reach them: that of ``side`` over the delay.

    ``side``: source, target or both.
    """
    clusters: list[KafkaCluster] = []
    far_address: dict[str, str] = {}
    with ExitStack() as stack:
        for name in "AB":
            if name not in {"source": "A", "target": "B", "both": "AB"}[side] or not round_trip_ms:
                clusters.append(KafkaCluster(name, config=BROKER, heap="1g", jvm=JVM))
                continue
            plain, controller, behind, far = free_ports(4)
            listeners = {"PLAINTEXT": plain, "CONTROLLER": controller, "FAR": behind}
            config = {
                **BROKER,
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "listeners": ",".join(f"{key}://{HOST}:{port}" for key, port in listeners.items()),
                "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},FAR://{HOST}:{far}",
                "listener.security.protocol.map": ",".join(f"{key}:PLAINTEXT" for key in listeners),
            }
            stack.enter_context(delayed(far, behind, round_trip_ms))
            clusters.append(KafkaCluster(name, ports=(plain,), config=config, heap="1g", jvm=JVM))
            far_address[name] = f"{HOST}:{far}"
        for one in clusters:
            stack.callback(one.stop)
        start_all(*clusters)
        yield clusters, [far_address.get(one.name, one.bootstrap_servers) for one in clusters]


def plain_copy(round_trip_ms: float) -> float:
    """MB/s of bytes that nobody looks at over a proxy like the one between the clusters."""
    far, behind = free_ports(2)
    with socket.create_server((HOST, behind)) as server, delayed(far, behind, round_trip_ms):
        return carried(far, server, COPY_S)


def measure(
    name: str,
    clusters: list[KafkaCluster],
    servers: list[str],
    work: Path,
    records: int,
    gigabytes: float,
    seconds: float,
) -> Copied:
    """Let one mirror copy the topic for ``seconds`` of steady state, or to its end."""
    _, peer, extra = WAYS[name]
    a, b = clusters
    remote = f"A.{LOAD.topic}"
    create(b.bootstrap_servers, remote, PARTITIONS)
    consumer = Consumer({"bootstrap.servers": b.bootstrap_servers, "group.id": "bench-watch"})
    running = start(peer, *servers, LOAD.topic, work, tasks=TASKS, latency=False, extra=extra)
    tree = TreeWatch(running.process.pid)
    try:
        deadline = time.monotonic() + START_MAX_S
        while not end_offsets(consumer, remote, PARTITIONS):
            if time.monotonic() > deadline or running.process.poll() is not None:
                tail = running.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{name} writes nothing:\n{tail}")
            time.sleep(SAMPLE_S)
        time.sleep(WARM_S)
        processors = Processors(tree)
        began, first, cpu_s = _mark(consumer, remote, tree)
        now, count, spent_s = began, first, cpu_s
        while now - began < seconds and count < SHARE_MAX * records:
            time.sleep(SAMPLE_S)
            now, count, spent_s = _mark(consumer, remote, tree)
        shares = processors.shares(tree)
    finally:
        consumer.close()
        tree.close()
        running.stop()
    share = (count - first) / records
    window_s = now - began
    _clean(a, b, remote)
    return Copied(
        count - first,
        window_s,
        (count - first) / window_s,
        gigabytes * share * 1000 / window_s,
        (spent_s - cpu_s) / (gigabytes * share) if share else 0.0,
        shares["elsewhere"],
        count >= SHARE_MAX * records,
        running.settings,
    )


def _mark(consumer: Consumer, topic: str, tree: TreeWatch) -> tuple[float, int, float]:
    return time.monotonic(), end_offsets(consumer, topic, PARTITIONS), tree.cpu_s()


def _clean(a: KafkaCluster, b: KafkaCluster, remote: str) -> None:
    """No data, and no positions that the next mirror would find."""
    there = Consumer({"bootstrap.servers": b.bootstrap_servers, "group.id": "c"})
    names = [one for one in there.list_topics(timeout=10).topics if one.startswith("mm2-")]
    there.close()
    delete(b.bootstrap_servers, remote, *names)
    delete(a.bootstrap_servers, *(f"mm2-offset-syncs.{one}.internal" for one in "AB"))
    time.sleep(2.0)


def gigabytes_of(cluster: KafkaCluster) -> float:
    """Size of the topic's log."""
    logs = cluster.data_path().glob(f"{LOAD.topic}-*/*.log")
    return sum(one.stat().st_size for one in logs) / 1e9


def table(found: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [
        f"# A round trip of {found['round_trip_ms']:g} ms to the {found['side']}, "
        f"{found['began'][:10]}",
        "",
        f"`python -m benchmarks.wan`: {LOAD.title}, {PARTITIONS} partitions, {TASKS} tasks, "
        f"{found['machine']['cores']} cores that both brokers and the proxy share.",
        f"A plain copy brings {found['plain_copy_mb_per_s']:,.0f} MB/s over the same proxy.",
        "",
        "| | records/s | MB/s | CPU-s/GB | measured for |",
        "|---|---|---|---|---|",
    ]
    for name, one in found["peers"].items():
        lines.append(
            f"| {WAYS[name][0]} | {one['rate']:,.0f} | {one['mb_per_s']:,.1f} | "
            f"{one['cpu_s_per_gb']:.1f} | {one['window_s']:.0f} s |"
        )
    lines += ["", "Other work on the machine took so much of its processors meanwhile: "]
    lines[-1] += ", ".join(f"{WAYS[n][0]} {o['elsewhere']:.0%}" for n, o in found["peers"].items())
    return "\n".join(lines) + ".\n"


def main() -> int:
    """Measure, write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--round-trip-ms", type=float, default=50.0)
    parser.add_argument("--side", choices=("target", "source"), default="target")
    parser.add_argument("--peers", nargs="+", choices=list(WAYS), default=["sparkmirror", "mm2"])
    parser.add_argument("--records", type=int, default=2 * LOAD.records)
    parser.add_argument("--seconds", type=float, default=20.0, help="steady state of each mirror")
    parser.add_argument("--name", help="of the result; by default from side, delay and date")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    found: dict[str, Any] = {
        "began": began,
        "side": options.side,
        "round_trip_ms": options.round_trip_ms,
        "commit": head(),
        "code": code(),
        "machine": machine(),
        "plain_copy_mb_per_s": plain_copy(options.round_trip_ms),
        "peers": {},
    }
    say(f"a plain copy: {found['plain_copy_mb_per_s']:,.0f} MB/s")
    name = options.name or f"wan-{options.side}-{options.round_trip_ms:g}ms-{began[:10]}"
    work = Path(tempfile.mkdtemp(prefix="sparkmirror-bench-"))
    try:
        with far_clusters(options.side, options.round_trip_ms) as (clusters, servers):
            create(clusters[0].bootstrap_servers, LOAD.topic, PARTITIONS)
            records = fill(clusters[0], LOAD, options.records)
            gigabytes = gigabytes_of(clusters[0])
            found |= {"records": records, "gigabytes": gigabytes}
            say(f"{records:,} records, {gigabytes:.2f} GB")
            for peer in options.peers:
                one = measure(peer, clusters, servers, work, records, gigabytes, options.seconds)
                say(
                    f"{peer}: {one.rate:,.0f} records/s, {one.cpu_s_per_gb:.1f} CPU-s/GB, "
                    f"{one.window_s:.1f} s, elsewhere {one.elsewhere:.0%}"
                )
                found["peers"][peer] = asdict(one)
                (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
                (options.out / f"{name}.md").write_text(table(found))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
