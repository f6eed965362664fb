"""A loop in Python that consumes, transforms and produces, as one would write it without a mirror.

usage: loop.py SOURCE TARGET GROUP TOPIC REMOTE PARTITIONS where|mask CODEC PROCESSES

confluent-kafka with batches, large queues and a linger. Each process has its share of the
partitions. Records keep key, partition, headers and timestamp. Positions are committed every five
seconds, when all records before them are acknowledged, so nothing is lost in a crash. It runs until
SIGTERM.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

__all__ = ["CONSUMER", "PRODUCER", "TRANSFORMS"]

CONSUMER = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.max.bytes": 52_428_800,
    "max.partition.fetch.bytes": 10_485_760,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 524_288,
    "fetch.queue.backoff.ms": 10,
    "socket.receive.buffer.bytes": 1_048_576,
}
PRODUCER = {
    "acks": "all",
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
    "message.max.bytes": 10_485_760,
    "socket.send.buffer.bytes": 1_048_576,
    "delivery.report.only.error": True,
}
BATCH = 10_000
COMMIT_S = 5.0


def _where(value: bytes) -> bytes | str | None:
    return value if json.loads(value)["region"] != "EU" else None


def _mask(value: bytes) -> bytes | str | None:
    event = json.loads(value)
    if "card" not in event:
        return value
    event["card"] = "***"
    return json.dumps(event)


TRANSFORMS: dict[str, Callable[[bytes], bytes | str | None]] = {"where": _where, "mask": _mask}
"""The new value of a record; None leaves it out."""


def copy(
    servers: tuple[str, str],
    group: str,
    topic: str,
    remote: str,
    partitions: list[int],
    kind: str,
    codec: str,
) -> None:
    """Copy ``partitions`` until SIGTERM. Ends with an exception if a record cannot be written."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))

    def failed(error: object, _: Message) -> None:
        raise KafkaException(error)

    consumer = Consumer({"bootstrap.servers": servers[0], "group.id": group, **CONSUMER})
    producer = Producer(
        {
            "bootstrap.servers": servers[1],
            "compression.type": codec,
            "on_delivery": failed,
            **PRODUCER,
        }
    )
    transform, produce = TRANSFORMS[kind], producer.produce
    consumer.assign([TopicPartition(topic, number) for number in partitions])
    due = time.monotonic() + COMMIT_S
    while not stopped:
        messages = consumer.consume(BATCH, 0.1)
        for message in messages:
            if error := message.error():
                raise KafkaException(error)
            value = transform(message.value())
            if value is None:
                continue
            where = (remote, value, message.key(), message.partition())
            while True:
                try:
                    produce(*where, timestamp=message.timestamp()[1], headers=message.headers())
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        if time.monotonic() > due:
            _commit(consumer, producer)
            due = time.monotonic() + COMMIT_S
    _commit(consumer, producer)
    consumer.close()


def _commit(consumer: Consumer, producer: Producer) -> None:
    """Commit what was read, when all that came of it is written."""
    while producer.flush(1.0):
        pass
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        # Nothing was read since the last commit.
        if error.args[0].code() != KafkaError._NO_OFFSET:
            raise


def main() -> int:
    source, target, group, topic, remote, partitions, kind, codec, processes = sys.argv[1:]
    children = [
        multiprocessing.Process(
            target=copy,
            args=(
                (source, target),
                group,
                topic,
                remote,
                list(range(number, int(partitions), int(processes))),
                kind,
                codec,
            ),
        )
        for number in range(int(processes))
    ]
    for child in children:
        child.start()
    signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in children])
    # One that fails ends all.
    while all(child.is_alive() for child in children):
        time.sleep(0.1)
    for child in children:
        child.terminate()
        child.join()
    return max(abs(child.exitcode or 0) for child in children)


if __name__ == "__main__":
    sys.exit(main())
