"""MirrorMaker 1's record path on real brokers: partitions by key, compression, latency."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, stored, wait_until, write_mm1
from tests.kafka.harness.support import Content, Sent, consume_all, contents, create_topic, produce

_LZ4 = 3


def _keyed(count: int, now_ms: int) -> list[Sent]:
    """Records whose partitions no partitioner chose; every tenth is a tombstone."""
    return [
        Sent(
            value=None if n % 10 == 0 else f"value {n}".encode() * (n % 9),
            key=f"key-{n % 97}".encode() * (1 + n % 3),
            headers=(("n", str(n).encode()), ("none", None)),
            timestamp_ms=now_ms + n,
            partition=n % 5,
        )
        for n in range(count)
    ]


def _by_key(records: list[Content]) -> dict[bytes | None, list[tuple[object, ...]]]:
    """Each key's records in the order of its partition, wherever that is."""
    found: dict[bytes | None, list[tuple[object, ...]]] = {}
    for one in records:
        found.setdefault(one.key, []).append((one.timestamp_ms, one.value, one.headers))
    return found


def test_records_go_by_key_where_partitions_differ(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"routed-{uuid.uuid4().hex[:8]}"
    keyless = f"{name}.keyless"
    create_topic(cluster_a, name, 5)
    create_topic(cluster_b, name, 3)
    create_topic(cluster_a, keyless, 1)
    create_topic(cluster_b, keyless, 4)
    # What another client with Java's partitioner makes of the same keys.
    expected = f"{name}.expected"
    create_topic(cluster_b, expected, 3)
    sent = _keyed(3000, int(time.time() * 1000) - 60_000)
    # One key always comes from one partition: only then has it an order to keep.
    sent = [one._replace(partition=sum(one.key or b"") % 5) for one in sent]
    produce(cluster_a, name, sent[:1500], compression="zstd")
    produce(cluster_a, name, sent[1500:])
    by_java = [one._replace(partition=None) for one in sent]
    produce(cluster_b, expected, by_java, config={"partitioner": "murmur2"})
    lone = [Sent(value=bytes(500) + str(n).encode(), partition=0) for n in range(2000)]
    produce(cluster_a, keyless, lone)

    options = write_mm1(tmp_path, cluster_a, cluster_b, name)
    with Path(options[3]).open("a") as producer:
        producer.write("compression.type=lz4\ncompression.lz4.level=12\nlinger.ms=10\n")
    options += ["--include", f"{name}.*", "--num.streams", "2"]
    mirror = MirrorProcess(tmp_path, options, command="kafka-mirror-maker")
    try:
        wait_until(
            lambda: (
                len(consume_all(cluster_b, name)) >= 3000
                and len(consume_all(cluster_b, keyless)) >= 2000
            ),
            "all records",
        )  # fmt: skip
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 143, mirror.text()
    got = contents(consume_all(cluster_b, name))
    wanted = contents(consume_all(cluster_b, expected))
    assert {(one.key, one.partition) for one in got} == {(one.key, one.partition) for one in wanted}
    assert _by_key(got) == _by_key(wanted)
    assert {batch.attributes & 7 for batch in stored(cluster_b, name)} == {_LZ4}
    # Without keys: every record once, and no partition without its share.
    spread = contents(consume_all(cluster_b, keyless))
    assert sorted(one.value or b"" for one in spread) == sorted(one.value or b"" for one in lone)
    assert {one.partition for one in spread} == {0, 1, 2, 3}


_HANDLERS = """
from pathlib import Path

from sparkmirror.model import SourceRecord, TargetRecord


class Split:
    \"\"\"Leaves out, keeps, doubles, and sends elsewhere.\"\"\"

    def __init__(self, suffix):
        self.suffix = suffix

    def __call__(self, record):
        kind = record.key[:1]
        if kind == b"n":
            return None
        same = record.to_target()
        if kind == b"2":
            return [same, same]
        if kind == b"e":
            return TargetRecord(
                record.topic + self.suffix, b"moved " + record.value, record.key,
                (("from", record.topic.encode()), *record.headers), partition=1,
            )
        return same


def listen(what, partitions, path):
    with Path(path).open("a") as file:
        file.write(f"{what} {len(partitions)}\\n")
"""


@pytest.mark.long
def test_handlers_listeners_and_dropped_records(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"handled-{uuid.uuid4().hex[:8]}"
    other = f"{name}.elsewhere"
    create_topic(cluster_a, name, 2)
    create_topic(cluster_b, name, 3, config={"max.message.bytes": "2000"})
    create_topic(cluster_b, other, 2)
    (tmp_path / "handlers.py").write_text(_HANDLERS)
    heard = tmp_path / "heard.txt"
    kinds = ("none", "2 times", "elsewhere", "same")
    produce(
        cluster_a,
        name,
        [
            Sent(f"{n}".encode(), f"{kinds[n % 4]} {n}".encode(), (("h", b"1"),), partition=n % 2)
            for n in range(400)
        ]
        + [Sent(bytes(5_000), b"same too large"), Sent(b"after it", b"same")],
    )
    options = [*write_mm1(tmp_path, cluster_a, cluster_b, name), "--include", name]
    options += ["--message.handler", "handlers:Split", "--message.handler.args", ".elsewhere"]
    options += ["--consumer.rebalance.listener", "handlers:listen"]
    options += ["--rebalance.listener.args", str(heard)]
    path = {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"}
    mirror = MirrorProcess(
        tmp_path, [*options, "--abort.on.send.failure", "false"],
        command="kafka-mirror-maker", environment=path, cold=True,  # its JVM passes the path on
    )  # fmt: skip
    try:
        wait_until(lambda: len(consume_all(cluster_b, other)) == 100, "what goes elsewhere")
        wait_until(lambda: len(consume_all(cluster_b, name)) == 301, "what stays")
        wait_until(lambda: "numDroppedMessages 1" in mirror.text(), "what was dropped")
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 143, mirror.text()
    assert heard.read_text().splitlines() == ["assigned 2", "revoked 2"]
    moved = contents(consume_all(cluster_b, other))
    assert {one.partition for one in moved} == {1}
    assert {one.headers[0] for one in moved} == {("from", name.encode())}
    assert sorted(one.value or b"" for one in moved) == sorted(
        f"moved {n}".encode() for n in range(2, 400, 4)
    )
    got = contents(consume_all(cluster_b, name))
    wanted = [f"{n}".encode() for n in range(400) for _ in range((0, 2, 0, 1)[n % 4])]
    assert sorted(one.value or b"" for one in got) == sorted([*wanted, b"after it"])
    assert {one.headers for one in got if one.value != b"after it"} == {(("h", b"1"),)}

    # What was not sent is written down.
    assert main(["gaps", *options[:4], "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["gaps"]
    found = [(gap["count"], gap["code"]) for gap in told if gap["topic"] == name]
    assert found == [(1, "MESSAGE_TOO_LARGE")]

    # By default nothing is given up: the mirror stops, and the record waits.
    produce(cluster_a, name, [Sent(bytes(5_000), b"too large"), Sent(b"waits", b"too")])
    again = MirrorProcess(
        tmp_path, options[: options.index("--message.handler")], command="kafka-mirror-maker"
    )
    try:
        assert again.wait() == 255
    finally:
        again.kill()
    assert "--abort.on.send.failure=false" in again.text()
    assert "MESSAGE_TOO_LARGE" in again.text()
    assert "Traceback" not in again.text()
