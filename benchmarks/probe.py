"""Latency probe, as processes of its own: ``write`` puts the send time into each value.

usage: probe.py write BOOTSTRAP TOPIC PARTITIONS SECONDS RATE
       probe.py read  BOOTSTRAP TOPIC PARTITIONS SECONDS OUTPUT
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

RECORD_BYTES = 100
TICK_S = 0.0005


def write(bootstrap: str, topic: str, partitions: int, seconds: float, rate: int) -> None:
    """Records at a steady rate, round-robin, without linger."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "1"})
    began, sent = time.time(), 0
    while (now := time.time()) - began < seconds:
        due = int((now - began) * rate)
        while sent < due:
            value = f"{time.time():.6f}".ljust(RECORD_BYTES).encode()
            producer.produce(topic, value, partition=sent % partitions)
            sent += 1
        producer.poll(0)
        time.sleep(TICK_S)
    producer.flush(30)


def read(bootstrap: str, topic: str, partitions: int, seconds: float, output: Path) -> None:
    """Latencies in ms of what arrives from now on; [seconds since start, ms] pairs are kept flat."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-probe",
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign(
        [
            TopicPartition(
                topic, index, consumer.get_watermark_offsets(TopicPartition(topic, index))[1]
            )
            for index in range(partitions)
        ]
    )
    found: list[float] = []
    began = time.time()
    while time.time() - began < seconds:
        message = consumer.poll(0.05)
        if message is not None and not message.error():
            found.append(round((time.time() - float(message.value()[:17])) * 1000, 3))
    consumer.close()
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    verb, servers, name, count, duration, last = sys.argv[1:7]
    if verb == "write":
        write(servers, name, int(count), float(duration), int(last))
    else:
        read(servers, name, int(count), float(duration), Path(last))
