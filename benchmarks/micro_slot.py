"""What a Fetch response and a report cost a slot, without sockets, by its number of partitions.

Run: ``python -m benchmarks.micro_slot [--seconds 1.0]``. Processor time of one thread, one broker,
best of five.

A response has news of some partitions: the fetcher receives it, continues behind it, asks again,
and looks once more when the next request must be sent, as a slot does (`data.read.slot_reader`). A
report is one of the sink's, while all partitions are busy or while one of them is.
"""

from __future__ import annotations

import argparse
import struct
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.unit.wire.fetch.test_due import NODE, Cluster

from sparkmirror.data.write.partition_state import Lane
from sparkmirror.data.write.progress import SinkReports
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.samples import steady_ms
from sparkmirror.progress import Halt, JoinCounts
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.fetcher import Fetcher

_BYTES = b"x" * 200


@dataclass(eq=False)
class Broker(Cluster):
    """A connection whose responses have ``news``, and its `ClusterConnections`."""

    topic_ids: dict[str, str] = field(default_factory=dict)
    news: list[TopicPartition] = field(default_factory=list)
    round_trip_s: float = 0.0
    host: str = "broker"
    port: int = 9092

    def receive_available(self, _: object) -> memoryview:
        """A response with ``news``."""
        out = [struct.pack(">iihii", self.sent - 1, 0, 0, 7, len(self.news))]
        for tp in self.news:
            name = tp.topic.encode()
            out.append(struct.pack(f">h{len(name)}si", len(name), name, 1))
            out.append(struct.pack(">ihqqqiii", tp.partition, 0, 9, 9, 0, 0, -1, len(_BYTES)))
            out.append(_BYTES)
        return memoryview(b"".join(out))


def microseconds(partitions: int, news: int, seconds: float) -> float:
    """Per response with news of ``news`` of ``partitions`` partitions."""
    members = [
        TopicPartition(f"orders-{number // 10:03d}", number % 10) for number in range(partitions)
    ]
    broker: Any = Broker(leaders={tp: SimpleNamespace(node=NODE, epoch=0) for tp in members})
    time_s = 0.0
    fetcher = Fetcher(broker, FetchSettings(), clock=lambda: time_s)
    for tp in members:
        fetcher.assign(tp, 0)
    fetcher.send()
    done, turn = 0, 0
    began = time.thread_time()
    while (lasted := time.thread_time() - began) < seconds or done < 20:
        broker.news = [members[(turn + step) % partitions] for step in range(news)]
        turn += news
        for part in fetcher.receive(broker):
            fetcher.advance(part.tp, part.fetch_offset + 2)
        time_s += 1.0  # no pause
        fetcher.send()
        fetcher.send()
        fetcher.next_due_s()
        done += 1
    return lasted / done * 1e6


def report_milliseconds(partitions: int, busy: int, reports: int = 50) -> float:
    """Per report of a sink with ``partitions``, of which ``busy`` move each second."""
    sink = SinkReports("A->B")
    sink.slot = 0
    lanes = []
    for number in range(partitions):
        source = TopicPartition(f"orders-{number // 10:03d}", number % 10)
        lane = Lane(source, TopicPartition(f"A.{source.topic}", source.partition), 1 << 40)
        lane.age.add(steady_ms(), 3.7, 41.9, 10)
        lane.latency.add(steady_ms(), 5.1, 77.3, 10)
        lanes.append(lane)
    halts: dict[Lane, Halt | None] = dict.fromkeys(lanes)
    lasted = 0.0
    for second in range(reports + 1):
        for lane in lanes[:busy]:
            lane.position += 97
            lane.records += 97
        began = time.thread_time()
        sink.record(float(second + 1), halts, {}, JoinCounts())
        sink.take_pieces()
        # The first report has everything, once in an epoch.
        lasted += time.thread_time() - began if second else 0.0
    return lasted / reports * 1e3


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    seconds = parser.parse_args().seconds / 5
    print("| partitions | µs, news of 1 | news of 10 | ms of a report, all busy | one busy |")
    print("|---|---|---|---|---|")
    for partitions in (1, 10, 250, 2_500):
        cells = [
            min(microseconds(partitions, min(news, partitions), seconds) for _ in range(5))
            for news in (1, 10)
        ]
        row = f"| {partitions:,} | {cells[0]:.0f} | {cells[1]:.0f} "
        for busy in (partitions, 1):
            cells.append(min(report_milliseconds(partitions, busy) for _ in range(5)))
        print(f"{row}| {cells[2]:.2f} | {cells[3]:.2f} |")


if __name__ == "__main__":
    main()
