"""MirrorMaker 1's group and record settings out of its two files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.config.mm1.load import Extras, load_mm1
from sparkmirror.errors import ConfigError
from sparkmirror.model import Partitioner
from sparkmirror.settings import FlowSettings, GroupSettings, RecordSettings
from tests.unit.config_files import write


def _flow(
    directory: Path, consumer: str = "", producer: str = "", extras: Extras | None = None
) -> FlowSettings:
    settings = load_mm1(
        write(directory, f"bootstrap.servers=a:1\ngroup.id=g\n{consumer}", "c"),
        write(directory, f"bootstrap.servers=b:1\n{producer}", "p"),
        include="t",
        extras=extras,
    )
    assert not [line for line in settings.warnings if "ignored" in line]
    return settings.flows[0]


def test_defaults_are_javas(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    assert flow.group == GroupSettings(
        ("range", "cooperative-sticky"), 45_000, 3_000, 300_000, "", "", None
    )
    assert flow.records == RecordSettings(Partitioner.KEY, -1, 16_384)
    assert flow.records.used


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("org.apache.kafka.clients.consumer.RoundRobinAssignor", ("roundrobin",)),
        ("range", ("range",)),
        (
            "org.apache.kafka.clients.consumer.StickyAssignor,"
            "org.apache.kafka.clients.consumer.RangeAssignor",
            ("sticky", "range"),
        ),
        ("cooperative-sticky", ("cooperative-sticky",)),
    ],
)
def test_strategies(tmp_path: Path, written: str, wanted: tuple[str, ...]) -> None:
    flow = _flow(tmp_path, f"partition.assignment.strategy={written}\n")
    assert flow.group.strategies == wanted


def test_group_keys(tmp_path: Path) -> None:
    text = "session.timeout.ms=6000\nheartbeat.interval.ms=1000\nmax.poll.interval.ms=9000\n"
    text += "group.instance.id=one\n"
    extras = Extras(listener="m:f", listener_args="x")
    group = _flow(tmp_path, text, extras=extras).group
    assert group == GroupSettings(
        ("range", "cooperative-sticky"), 6_000, 1_000, 9_000, "one", "m:f", "x"
    )


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner",
         RecordSettings(Partitioner.ROUND_ROBIN)),
        ("partitioner.class=org.apache.kafka.clients.producer.UniformStickyPartitioner",
         RecordSettings(Partitioner.STICKY)),
        ("partitioner.class=kafka.producer.DefaultPartitioner", RecordSettings(Partitioner.KEY)),
        ("partitioner.ignore.keys=true\nbatch.size=1000",
         RecordSettings(Partitioner.STICKY, sticky_bytes=1_000)),
        ("compression.type=ZSTD", RecordSettings(Partitioner.KEY, codec=4)),
        ("compression.type=none\nbatch.size=0", RecordSettings(Partitioner.KEY, 0, 1)),
    ],
)  # fmt: skip
def test_record_keys(tmp_path: Path, written: str, wanted: RecordSettings) -> None:
    assert _flow(tmp_path, producer=written + "\n").records == wanted


def test_options(tmp_path: Path) -> None:
    extras = Extras(
        keep_partitions=True, handler="m:f", handler_args="x", abort_on_send_failure=False
    )
    records = _flow(tmp_path, extras=extras).records
    assert records == RecordSettings(
        Partitioner.NUMBER, handler="m:f", handler_args="x", drop_failed=True
    )
    assert records.used
    assert not _flow(tmp_path, extras=Extras(keep_partitions=True)).records.used


@pytest.mark.parametrize(
    ("consumer", "producer", "told"),
    [
        ("partition.assignment.strategy=com.example.Mine\n", "", "com.example.Mine"),
        ("session.timeout.ms=3000\n", "", "must be less than session.timeout.ms"),
        ("heartbeat.interval.ms=50000\n", "", "heartbeat.interval.ms (50000)"),
        ("", "partitioner.class=com.example.Mine\n", "custom Java partitioners"),
        ("", "compression.type=brotli\n", "compression.type"),
    ],
)
def test_what_cannot_be(tmp_path: Path, consumer: str, producer: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _flow(tmp_path, consumer, producer)
    assert told in str(raised.value)
    assert "line" in str(raised.value) or ":3" in str(raised.value) or ":2" in str(raised.value)


@pytest.mark.parametrize("keep", [True, False], ids=["by number", "by key"])
def test_the_ring_is_reported_where_records_are_processed(tmp_path: Path, keep: bool) -> None:
    ring = "sparkmirror.ring.enabled=true\n"
    settings = load_mm1(
        write(tmp_path, f"bootstrap.servers=a:1\ngroup.id=g\n{ring}", "c"),
        write(tmp_path, "bootstrap.servers=b:1\n", "p"),
        include="t",
        extras=Extras(keep_partitions=keep),
    )
    (flow,) = settings.flows
    assert flow.ring
    assert flow.uses_ring == keep
    told = [line for line in settings.warnings if "sparkmirror.ring.enabled=true" in line]
    assert len(told) == (not keep)
