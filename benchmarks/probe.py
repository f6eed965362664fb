"""Latency probe, as processes of its own: ``write`` puts the send time into each value.

usage: probe.py write BOOTSTRAP TOPIC PARTITIONS SECONDS RATE [json]
       probe.py read  BOOTSTRAP TOPIC PARTITIONS SECONDS OUTPUT

With ``json`` the values are documents that a transform can filter and mask. A value without a send
time counts from the record's timestamp (whole milliseconds, so half a millisecond too much on
average).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition

RECORD_BYTES = 100
TICK_S = 0.0005
TEXT, DOCUMENT = "{:.6f}", '{{"at": {:.6f}, "region": "US", "card": "4000123412341234"}}'
_AT = len('{"at": ')


def write(
    bootstrap: str, topic: str, partitions: int, seconds: float, rate: int, form: str = TEXT
) -> None:
    """Records at a steady rate, round-robin, without linger."""
    # One connection answers one request at a time: several keep the source itself from queueing.
    producers = [
        Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "1"}) for _ in range(4)
    ]
    began, sent = time.time(), 0
    while (now := time.time()) - began < seconds:
        due = int((now - began) * rate)
        while sent < due:
            value = form.format(time.time()).ljust(RECORD_BYTES).encode()
            partition = sent % partitions
            producers[partition % 4].produce(topic, value, partition=partition)
            sent += 1
        for producer in producers:
            producer.poll(0)
        time.sleep(TICK_S)
    for producer in producers:
        producer.flush(30)


def read(bootstrap: str, topic: str, partitions: int, seconds: float, output: Path) -> None:
    """Write ``[sent at, latency]`` in ms of what arrives from now on, as a JSON list."""
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
    found: list[tuple[float, float]] = []
    began = time.time()
    while time.time() - began < seconds:
        message = consumer.poll(0.05)
        if message is not None and not message.error():
            sent_ms = _sent_ms(message)
            found.append((sent_ms, round(time.time() * 1000 - sent_ms, 3)))
    consumer.close()
    output.write_text(json.dumps(found))


def _sent_ms(message: Message) -> float:
    value = message.value()
    first = _AT if value.startswith(b"{") else 0
    try:
        return float(value[first : first + 17]) * 1000
    except ValueError:
        return float(message.timestamp()[1])


if __name__ == "__main__":
    verb, servers, name, count, duration, last = sys.argv[1:7]
    if verb == "write":
        form = DOCUMENT if sys.argv[7:] == ["json"] else TEXT
        write(servers, name, int(count), float(duration), int(last), form)
    else:
        read(servers, name, int(count), float(duration), Path(last))
