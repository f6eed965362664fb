"""`make bench-wan`: mirrors between two places, one of which is far away.

usage: python -m benchmarks.wan [--round-trip-ms MS ...] [--loss PERCENT ...] [--side SIDE ...]
                                [--mb-per-s MB] [--curve] [--tail] [--peers NAME ...]
                                [--congestion NAME] [--broker-buffers BYTES] [--records N]
                                [--seconds S] [--name NAME] [--out DIR]

Each mirror copies one topic of 1 KiB JSON events in lz4 batches of 16 KiB (what most producers
write) for a while, with one cluster behind a long link. What counts is the steady state: from two
seconds after the first record until the topic is copied or the time is over. Beside it stands
what a plain copy brings over the same link, in as many streams as a mirror has tasks. ``--tail``
adds latencies at 100 records/s. ``--curve`` takes all round trips, losses and both sides, and draws
them.

The link is made of packets where this machine allows it (`link`); elsewhere a proxy delays
connections (`delay`), and no packet is lost.
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
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol, Self

from confluent_kafka import Consumer

from benchmarks import link
from benchmarks.delay import HOST, delayed
from benchmarks.load import Load, create, delete, fill
from benchmarks.machine import code, head, machine, prepared
from benchmarks.measure import (
    Processors,
    TreeWatch,
    end_offsets,
    latencies,
    missed,
    quantiles,
    stalls,
    warm_mirror,
)
from benchmarks.peers import PEERS, Running, start
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
_ALWAYS = {"sparkmirror.link.joining": "always"}
_ZSTD = {"sparkmirror.link.compression": "zstd"}
# A long link needs larger batches than Java's default, and buffers that the kernel sizes.
_FAR = {
    "B.producer.batch.size": "1048576",
    "B.producer.send.buffer.bytes": "-1",
    "A.consumer.receive.buffer.bytes": "-1",
}
# At the end of the log nothing waits: no linger.
_FAR_TAIL = {
    "B.producer.send.buffer.bytes": "-1",
    "A.consumer.receive.buffer.bytes": "-1",
}
WAYS = {
    "sparkmirror": ("sparkmirror", "sparkmirror", {}),
    "mm2": ("MirrorMaker 2, tuned", "mm2", _FAR),
    "mm1": ("MirrorMaker 1, tuned", "mm1", _FAR),
    "sparkmirror-zstd": ("sparkmirror, zstd for the link", "sparkmirror", _ZSTD),
    "sparkmirror-off": ("sparkmirror without joining", "sparkmirror", _OFF),
    "sparkmirror-always": ("sparkmirror that always joins", "sparkmirror", _ALWAYS),
}
"""By name: in the table, the peer of `peers`, and what its file says more."""
CURVE_MS, CURVE_LOSSES, CURVE_TAIL_MS = (1.0, 20.0, 50.0, 100.0, 200.0), (0.0, 0.1), (50.0,)
START_MAX_S, WARM_S, SAMPLE_S = 120.0, 2.0, 0.2
# TCP needs some round trips until it fills a long link.
COPY_WARM_S, COPY_S = 4.0, 5.0
SHARE_MAX = 0.98
WARM_UP_S = 15.0
TAIL_RATE, TAIL_S = 100, 60.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Point:
    """One place on the curve. ``side``: which cluster is far. ``loss``: percent of the packets.

    ``mb_per_s``: what passes at most, both directions together; 0: as much as the machine can.
    """

    side: str
    round_trip_ms: float
    loss: float
    mb_per_s: float = 0.0

    @property
    def title(self) -> str:
        """As in the tables."""
        lossy = f", {self.loss:g} % lost" if self.loss else ""
        narrow = f", at most {self.mb_per_s:g} MB/s" if self.mb_per_s else ""
        return f"{self.round_trip_ms:g} ms to the {self.side}{lossy}{narrow}"


@dataclass
class Copied:
    """One mirror's steady state. Rates per second, CPU in seconds per GB of the source's log.

    ``idle``, ``stolen``, ``elsewhere``: see `Processors.shares`.
    """

    records: int
    window_s: float
    rate: float
    mb_per_s: float
    cpu_s_per_gb: float
    idle: float
    stolen: float
    elsewhere: float
    complete: bool
    settings: str


WARM_UP = Point("both", 1.0, 0.0)


class Way(Protocol):
    """How the far cluster is reached. ``listener``, ``advertised``: HOST:PORT of its broker."""

    name: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def addresses(self, port: int) -> tuple[str, str]:
        """Where what listens on ``port`` listens, and where it is reached from afar."""

    def at(self, point: Point, ports: Sequence[int]) -> AbstractContextManager[None]:
        """Have the link there for what listens on ``ports``."""


class Packets:
    """A `link`."""

    name = "packets"

    def __init__(self, congestion: str) -> None:
        self._link = link.Link(congestion)

    def __enter__(self) -> Self:
        self._link.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._link.__exit__()

    def addresses(self, port: int) -> tuple[str, str]:
        """At the two ends of the link."""
        return f"{link.NEAR}:{port}", f"{link.FAR}:{port}"

    def at(self, point: Point, ports: Sequence[int]) -> AbstractContextManager[None]:
        """For all ports at once."""
        return self._link.at(point.round_trip_ms, point.loss, point.mb_per_s)


class Proxy:
    """A process that delays what connections carry."""

    name = "proxy"

    def __init__(self) -> None:
        self._far: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def addresses(self, port: int) -> tuple[str, str]:
        """The second one is the proxy's."""
        self._far[port] = free_ports(1)[0]
        return f"{HOST}:{port}", f"{HOST}:{self._far[port]}"

    @contextmanager
    def at(self, point: Point, ports: Sequence[int]) -> Iterator[None]:
        """A process for each port."""
        with ExitStack() as stack:
            for port in ports:
                far, slow = self._far[port], (point.round_trip_ms, point.mb_per_s)
                stack.enter_context(delayed(far, port, *slow))
            yield


def way(congestion: str) -> Way:
    """The best that this machine allows."""
    return Packets(congestion) if link.available() else Proxy()


@dataclass
class Places:
    """Two one-node clusters with a broker each that is near and, at another port, far away."""

    clusters: tuple[KafkaCluster, KafkaCluster]
    far: tuple[str, str]
    far_ports: tuple[int, int]

    def servers(self, side: str) -> tuple[str, str]:
        """Where a mirror reaches source and target. ``side``: source, target, both or neither."""
        near = [one.bootstrap_servers for one in self.clusters]
        source, target = (
            far if side in (name, "both") else here
            for name, here, far in zip(("source", "target"), near, self.far, strict=True)
        )
        return source, target


@contextmanager
def places(over: Way, socket_bytes: int = -1) -> Iterator[Places]:
    """Starts both clusters. ``socket_bytes``: buffers of the brokers' sockets, -1: the kernel's."""
    clusters, far, far_ports = [], [], []
    with ExitStack() as stack:
        for name in "AB":
            plain, controller, behind = free_ports(3)
            listening, advertised = over.addresses(behind)
            near = {"PLAINTEXT": f"{HOST}:{plain}", "CONTROLLER": f"{HOST}:{controller}"}
            listeners = {**near, "FAR": listening}
            config = {
                **BROKER,
                "socket.send.buffer.bytes": str(socket_bytes),
                "socket.receive.buffer.bytes": str(socket_bytes),
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "listeners": ",".join(f"{key}://{where}" for key, where in listeners.items()),
                "advertised.listeners": f"PLAINTEXT://{near['PLAINTEXT']},FAR://{advertised}",
                "listener.security.protocol.map": ",".join(f"{key}:PLAINTEXT" for key in listeners),
            }
            clusters.append(KafkaCluster(name, ports=(plain,), config=config, heap="1g", jvm=JVM))
            stack.callback(clusters[-1].stop)
            far.append(advertised)
            far_ports.append(behind)
        start_all(*clusters)
        yield Places((clusters[0], clusters[1]), (far[0], far[1]), (far_ports[0], far_ports[1]))


def plain_copy(over: Way, point: Point) -> float:
    """MB/s of bytes that nobody looks at over the link of ``point``, in `TASKS` streams."""
    port = free_ports(1)[0]
    listening, advertised = over.addresses(port)
    began = time.monotonic() + COPY_WARM_S
    ends = began + COPY_S
    counts = [0] * TASKS

    def drain(server: socket.socket, number: int) -> None:
        taken, _ = server.accept()
        room = bytearray(_CHUNK_BYTES)
        with taken:
            while size := taken.recv_into(room):
                if began <= time.monotonic() < ends:
                    counts[number] += size

    def send() -> None:
        data = bytes(_CHUNK_BYTES)
        with socket.create_connection(_pair(advertised)) as sender:
            sender.settimeout(COPY_WARM_S + COPY_S)
            while time.monotonic() < ends:
                sender.sendall(data)

    with over.at(point, [port]), socket.create_server(_pair(listening)) as server:
        threads = [threading.Thread(target=drain, args=(server, n)) for n in range(TASKS)]
        threads += [threading.Thread(target=send) for _ in range(TASKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts) / COPY_S / 1e6


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class Bench:
    """The mirrors between two places. ``gigabytes``: of the source's log, with all ``records``."""

    def __init__(self, there: Places, over: Way, work: Path) -> None:
        self.there, self.over, self.work = there, over, work
        self.records, self.gigabytes = 0, 0.0

    def fill(self, records: int) -> None:
        """The topic that all mirrors copy."""
        source = self.there.clusters[0]
        create(source.bootstrap_servers, LOAD.topic, PARTITIONS)
        self.records = fill(source, LOAD, records)
        logs = source.data_path().glob(f"{LOAD.topic}-*/*.log")
        self.gigabytes = sum(one.stat().st_size for one in logs) / 1e9

    def warm_up(self, name: str) -> None:
        """Copy a part without measuring it: brokers' JVMs compile for a while what serves a mirror.

        Else the first mirror that is measured would meet slower brokers than the others.
        """
        remote = PEERS[WAYS[name][1]].remote.format(topic=LOAD.topic)
        with (
            self._mirror(name, WARM_UP, LOAD.topic, WAYS[name][2]) as (running, _),
            self._watching() as consumer,
        ):
            self._await_records(name, running, consumer, remote)
            until = time.monotonic() + WARM_UP_S
            while time.monotonic() < until:
                time.sleep(SAMPLE_S)
                if end_offsets(consumer, remote, PARTITIONS) >= SHARE_MAX * self.records:
                    break

    def copied(self, name: str, point: Point, seconds: float) -> Copied:
        """Let one mirror copy the topic for ``seconds`` of steady state, or to its end."""
        remote = PEERS[WAYS[name][1]].remote.format(topic=LOAD.topic)
        with (
            self._mirror(name, point, LOAD.topic, WAYS[name][2]) as (running, tree),
            self._watching() as consumer,
        ):
            self._await_records(name, running, consumer, remote)
            time.sleep(WARM_S)
            processors = Processors(tree)
            began, first, cpu_s = _mark(consumer, remote, tree)
            now, count, spent_s = began, first, cpu_s
            while now - began < seconds and count < SHARE_MAX * self.records:
                time.sleep(SAMPLE_S)
                now, count, spent_s = _mark(consumer, remote, tree)
            shares = processors.shares(tree)
        if first >= SHARE_MAX * self.records:
            raise RuntimeError(
                f"{name} had copied the topic before anything was measured: more --records"
            )
        share, window_s = (count - first) / self.records, now - began
        return Copied(
            count - first,
            window_s,
            (count - first) / window_s,
            self.gigabytes * share * 1000 / window_s,
            (spent_s - cpu_s) / (self.gigabytes * share) if share else 0.0,
            shares["idle"],
            shares["stolen"],
            shares["elsewhere"],
            count >= SHARE_MAX * self.records,
            running.settings,
        )

    def tail(self, name: str, point: Point) -> dict[str, Any]:
        """Quantiles in ms from a producer beside the source to a consumer beside the target.

        ``stalls``: how often records were later than 100 ms; ``source p99``: of a consumer beside
        the producer, who shows what the machine itself delays. ``wrong``: see `missed`.
        """
        topic = f"probe-{name}-{time.monotonic_ns()}"
        remote = PEERS[WAYS[name][1]].remote.format(topic=topic)
        source, target = (one.bootstrap_servers for one in self.there.clusters)
        create(source, topic, PARTITIONS)
        extra = _FAR_TAIL if WAYS[name][2] is _FAR else WAYS[name][2]
        rate = {"rate": TAIL_RATE, "work": self.work, "seconds": TAIL_S}
        with self._mirror(name, point, topic, extra, latency=True):
            warm_mirror(source, target, topic, remote, PARTITIONS)
            found = latencies(source, target, topic, remote, PARTITIONS, **rate)
        delete(source, topic)
        there, here = (quantiles(found[place]) for place in ("source", "target"))
        return {
            **here,
            "stalls": stalls(found["target"]),
            "source p99": there.get("p99", 0.0),
            "wrong": missed(there, here),
        }

    @contextmanager
    def _watching(self) -> Iterator[Consumer]:
        """What looks at the target's end offsets."""
        target = self.there.clusters[1].bootstrap_servers
        consumer = Consumer({"bootstrap.servers": target, "group.id": "bench-watch"})
        try:
            yield consumer
        finally:
            consumer.close()

    @contextmanager
    def _mirror(
        self,
        name: str,
        point: Point,
        topic: str,
        extra: Mapping[str, str],
        *,
        latency: bool = False,
    ) -> Iterator[tuple[Running, TreeWatch]]:
        """A mirror over the link; afterwards nothing of it is left at either cluster."""
        a, b = self.there.clusters
        peer = WAYS[name][1]
        remote = PEERS[peer].remote.format(topic=topic)
        create(b.bootstrap_servers, remote, PARTITIONS)
        with self.over.at(point, self.there.far_ports):
            running = start(
                *(peer, *self.there.servers(point.side), topic, self.work),
                tasks=TASKS,
                latency=latency,
                extra=dict(extra),
            )
            tree = TreeWatch(running.process.pid)
            try:
                yield running, tree
            finally:
                tree.close()
                running.stop()
        with self._watching() as there:
            names = [one for one in there.list_topics(timeout=10).topics if one.startswith("mm2-")]
        delete(b.bootstrap_servers, remote, *names)
        delete(a.bootstrap_servers, *(f"mm2-offset-syncs.{one}.internal" for one in "AB"))
        time.sleep(2.0)

    def _await_records(self, name: str, running: Running, consumer: Consumer, remote: str) -> None:
        deadline = time.monotonic() + START_MAX_S
        while not end_offsets(consumer, remote, PARTITIONS):
            self._check(name, running, deadline)
            time.sleep(SAMPLE_S)

    def _check(self, name: str, running: Running, deadline: float) -> None:
        if time.monotonic() > deadline or running.process.poll() is not None:
            tail = running.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{name} writes nothing:\n{tail}")


def _mark(consumer: Consumer, topic: str, tree: TreeWatch) -> tuple[float, int, float]:
    return time.monotonic(), end_offsets(consumer, topic, PARTITIONS), tree.cpu_s()


def _buffers(size: int) -> str:
    if size < 0:
        return (
            "The brokers leave their sockets' buffers to the kernel (`socket.*.buffer.bytes=-1`)."
        )
    return f"The brokers' sockets have buffers of {size:,} bytes (`socket.*.buffer.bytes`)."


def table(found: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    carrier = (
        f"A link of packets, TCP with {found['congestion']}"
        if found["link"] == "packets"
        else "A proxy that delays connections, no losses"
    )
    lines = [
        f"# Long links, {found['began'][:10]}",
        "",
        f"`python -m benchmarks.wan`: {LOAD.title}, {PARTITIONS} partitions, {TASKS} tasks, "
        f"{found['machine']['cores']} cores that both brokers and the link share, one run each.",
        f"{carrier}. {_buffers(found['broker_buffers'])}",
        f"A plain copy goes over the same link in {TASKS} streams. Other work: the share of the "
        "processors that was taken by what is neither mirror, broker nor link. "
        "Idle: what nobody took.",
        "",
        "| | plain copy, MB/s | | records/s | MB/s of the source's log | CPU-s/GB | idle "
        "| other work |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in found["points"]:
        title, plain = Point(**point["point"]).title, f"{point['plain_copy_mb_per_s']:,.1f}"
        for name, one in point["peers"].items():
            lines.append(
                f"| {title} | {plain} | {WAYS[name][0]} | {one['rate']:,.0f} | "
                f"{one['mb_per_s']:,.1f} | {one['cpu_s_per_gb']:.1f} | "
                f"{one['idle']:.0%} | {one['elsewhere']:.0%} |"
            )
            title = plain = ""
    if any(point["tails"] for point in found["points"]):
        lines += [
            "",
            f"Latency in ms at {TAIL_RATE} records/s, from a producer beside the source to a "
            "consumer beside the target; the Java mirrors with linger 0:",
            "",
            "| | | p50 | p99 | p99.9 | times above 100 ms | p99 beside the source |",
            "|---|---|---|---|---|---|---|",
        ]
    for point in found["points"]:
        title = Point(**point["point"]).title
        for name, one in point["tails"].items():
            figures = " | ".join(
                f"{one[key]:.1f}" if key in one else "never" for key in ("p50", "p99", "p99.9")
            )
            figures += f" | {one['stalls']:.0f} | {one['source p99']:.1f}"
            wrong = f", **{one['wrong']}**" if one.get("wrong") else ""
            lines.append(f"| {title} | {WAYS[name][0]}{wrong} | {figures} |")
            title = ""
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Records per second over the round trip, a picture for each side and loss."""
    import matplotlib  # noqa: PLC0415  (only for the picture)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    points = [(Point(**one["point"]), one) for one in found["points"]]
    panels = sorted({(point.side, point.loss) for point, _ in points})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.2), squeeze=False)
    for axis, (side, loss) in zip(axes[0], panels, strict=True):
        here = [(p, one) for p, one in points if (p.side, p.loss) == (side, loss)]
        for name, (label, *_) in WAYS.items():
            line = [(p.round_trip_ms, one["peers"].get(name)) for p, one in here]
            # Nothing arrived in some windows: the axis has no such place.
            kept = [(x, y["rate"] / 1000) for x, y in line if y and y["rate"]]
            if kept:
                axis.plot(*zip(*kept, strict=True), marker="o", label=label)
        per_mb = found["records"] / found["gigabytes"] / 1000
        copies = [(p.round_trip_ms, one["plain_copy_mb_per_s"] * per_mb / 1000) for p, one in here]
        axis.plot(*zip(*copies, strict=True), "k:", label="plain copy of as many bytes")
        axis.set_title(f"far {side}, {loss:g} % lost")
        axis.set_xlabel("round trip, ms")
        axis.set_ylabel("thousand records/s")
        axis.set_yscale("log")
        axis.legend(fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Measure, write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--round-trip-ms", type=float, nargs="+", default=[50.0])
    parser.add_argument("--loss", type=float, nargs="+", help="percent")
    parser.add_argument(
        "--side", choices=("target", "source", "both"), nargs="+", default=["target", "source"]
    )
    parser.add_argument(
        "--mb-per-s", type=float, default=0.0, help="the link carries no more; 0: no such limit"
    )
    parser.add_argument(
        "--curve", action="store_true", help="all round trips, and losses unless they are named"
    )
    parser.add_argument("--tail", action="store_true", help="latencies too")
    parser.add_argument("--peers", nargs="+", choices=list(WAYS), default=["sparkmirror", "mm2"])
    parser.add_argument("--congestion", default="cubic", help="of TCP, as Linux names it")
    parser.add_argument(
        "--broker-buffers",
        type=int,
        default=-1,
        help="bytes of the brokers' socket buffers; -1: as the kernel sees fit; Kafka's: 102400",
    )
    parser.add_argument("--records", type=int, default=2 * LOAD.records)
    parser.add_argument("--seconds", type=float, default=10.0, help="steady state of each mirror")
    parser.add_argument("--name", help="of the result; by default wan-DATE")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.loss = options.loss or (CURVE_LOSSES if options.curve else [0.0])
    if options.curve:
        options.round_trip_ms = CURVE_MS
        options.side, options.peers = ["target", "source"], ["sparkmirror", "mm2", "mm1"]
    over = way(options.congestion)
    if any(options.loss) and not isinstance(over, Packets):
        parser.error("losses need root, iproute2 and /dev/net/tun: say --loss 0")
    began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    options.out.mkdir(parents=True, exist_ok=True)
    prepared(say)
    found: dict[str, Any] = {
        "began": began,
        "link": over.name,
        "congestion": options.congestion,
        "broker_buffers": options.broker_buffers,
        "commit": head(),
        "code": code(),
        "machine": machine(),
        "points": [],
    }
    path = options.out / (options.name or f"wan-{began[:10]}")
    work = Path(tempfile.mkdtemp(prefix="sparkmirror-bench-"))
    try:
        with over, places(over, options.broker_buffers) as there:
            bench = Bench(there, over, work)
            bench.fill(options.records)
            found |= {"records": bench.records, "gigabytes": bench.gigabytes}
            say(f"{bench.records:,} records, {bench.gigabytes:.2f} GB")
            for peer in options.peers:
                bench.warm_up(peer)
            for side, loss, delay in product(options.side, options.loss, options.round_trip_ms):
                point = Point(side, delay, loss, options.mb_per_s)
                tails = options.tail or (options.curve and delay in CURVE_TAIL_MS)
                found["points"].append({"point": asdict(point), "peers": {}, "tails": {}})
                _measure(bench, point, options, found["points"][-1], tails=tails)
                path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
                path.with_suffix(".md").write_text(table(found))
            if options.curve:
                draw(found, path.with_suffix(".png"))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(table(found))
    return 0


def _measure(
    bench: Bench, point: Point, options: argparse.Namespace, found: dict[str, Any], *, tails: bool
) -> None:
    found["plain_copy_mb_per_s"] = plain_copy(bench.over, point)
    say(f"{point.title}: a plain copy {found['plain_copy_mb_per_s']:,.1f} MB/s")
    for peer in options.peers:
        one = bench.copied(peer, point, options.seconds)
        found["peers"][peer] = asdict(one)
        say(
            f"  {peer}: {one.rate:,.0f} records/s, {one.mb_per_s:,.1f} MB/s, "
            f"{one.cpu_s_per_gb:.1f} CPU-s/GB, {one.window_s:.1f} s, "
            f"idle {one.idle:.0%}, stolen {one.stolen:.0%}, elsewhere {one.elsewhere:.0%}"
        )
    for peer in options.peers if tails else ():
        found["tails"][peer] = bench.tail(peer, point)
        say(f"  {peer}: latency {found['tails'][peer]}")


if __name__ == "__main__":
    sys.exit(main())
